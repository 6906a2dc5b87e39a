"""A cluster answers manifests: first kubectl, then the API server behind it, and then the operator.

The cluster has no nodes. A job counts as accepted when its StatefulSets are made, and their pods don't matter.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.operator_under_test import install_crd, running_operator
from tests.mistakes.entries import Entry
from tests.mistakes.offline import write
from trainmaster_local.config import ClusterConfig
from trainmaster_local.testing.clusters import (
    KUBECTL,
    KUBECTL_ENVIRONMENT,
    Cluster,
    NotAnswered,
    new_namespace,
    open_cluster,
)

# kubectl waits more than it computes.
_AT_ONCE = 4
# Seconds until the operator has answered all jobs.
_OPERATOR_SECONDS = 120.0


@dataclass(frozen=True)
class Answer:
    """Names the side that refused a manifest, and its words; `by` is None if all accepted it. `jobs` are the manifest's
    jobs.
    """

    by: str | None
    text: str = ""
    jobs: tuple[str, ...] = ()


@contextmanager
def opened_cluster(folder: Path) -> Iterator[Cluster]:
    """Opens a cluster that has the custom resource: an embedded one, or the one that KUBEBUILDER_ASSETS and
    TRAINMASTER_TEST_KUBECONFIG choose.
    """
    config = ClusterConfig(state_dir=folder, nodes=())
    with (
        open_cluster(config, os.environ.get("TRAINMASTER_TEST_KUBECONFIG")) as shared,
        new_namespace(shared) as cluster,
    ):
        install_crd(cluster)
        yield cluster


def answers(cluster: Cluster, entries: Sequence[Entry], folder: Path) -> dict[str, Answer]:
    """Returns the cluster's answer to each entry, by the entry's name."""
    files = {entry.name: write(entry, folder) for entry in entries}
    kubeconfig = _kubeconfig(cluster, folder)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = dict(zip(files, pool.map(lambda path: _dry_run(kubeconfig, path), files.values()), strict=True))
    # If kubectl cut a manifest, the operator would get a different one.
    left = [entry.name for entry in entries if found[entry.name].by is None and not entry.why]
    jobs = {name: found[name].jobs for name in left}
    # The API server has accepted these in the dry run, so one call applies them. If it fails, each is applied alone.
    together = [argument for name in left for argument in ("-f", str(files[name]))]
    if together and cluster.kubectl("apply", *together, check=False).returncode:
        for name in left:
            done = cluster.kubectl("apply", "-f", str(files[name]), check=False)
            if done.returncode:
                # For instance because another entry has made a job of the same name.
                found[name] = Answer("server", done.stderr)
                del jobs[name]
    found.update(_operators_answers(cluster, jobs, folder))
    return found


def _kubeconfig(cluster: Cluster, folder: Path) -> Path:
    """Returns a kubeconfig whose context has the namespace, like users' kubeconfigs.

    With --namespace on the command line kubectl would refuse every manifest with another namespace.
    """
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    for one in config["contexts"]:
        one["context"]["namespace"] = cluster.namespace
    made = folder / "kubeconfig"
    made.touch(mode=0o600)
    made.write_text(yaml.safe_dump(config))
    return made


def _dry_run(kubeconfig: Path, path: Path) -> Answer:
    command = [str(KUBECTL), "--kubeconfig", str(kubeconfig), "apply", "--dry-run=server", "-o", "name"]
    done = subprocess.run(
        [*command, "-f", str(path)],
        env={**os.environ, **KUBECTL_ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode == 0:
        names = (one.split("/")[1] for one in done.stdout.split() if one.startswith("distributedtrainingjob"))
        return Answer(None, jobs=tuple(names))
    text = " ".join(done.stderr.replace(str(path), path.name).split())
    # kubectl writes others' answers as "Error from server (…): …" or "The … is invalid: …".
    return Answer("kubectl" if text.startswith("error: ") else "server", text)


def _operators_answers(cluster: Cluster, jobs: Mapping[str, Sequence[str]], folder: Path) -> dict[str, Answer]:
    found: dict[str, Answer] = {}
    with running_operator(cluster, folder):
        deadline = time.monotonic() + _OPERATOR_SECONDS
        while not found.keys() >= jobs.keys() and time.monotonic() < deadline:
            time.sleep(0.2)
            waiting = {name: jobs[name] for name in jobs if name not in found}
            try:
                found.update(_decided(cluster.items("dtj"), cluster.items("sts"), waiting))
            except NotAnswered:
                # An overloaded machine answers the next time.
                continue
        states = {job["metadata"]["name"]: str(job.get("status")) for job in cluster.items("dtj")}
    for name in set(jobs) - set(found):
        found[name] = Answer("silence", "; ".join(states.get(job, "no job") for job in jobs[name]))
    return found


def _decided(
    jobs: Sequence[dict[str, Any]], sets: Sequence[dict[str, Any]], waiting: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, Answer]]:
    conditions = {
        job["metadata"]["name"]: {one["type"]: one for one in job.get("status", {}).get("conditions", [])}
        for job in jobs
    }
    owners = {owner["name"] for one in sets for owner in one["metadata"].get("ownerReferences", [])}
    for name, names in waiting.items():
        failed = [conditions[job]["Failed"] for job in names if "Failed" in conditions[job]]
        if failed:
            yield name, Answer("operator", "; ".join(f"{one['reason']}: {one['message']}" for one in failed))
        elif owners.issuperset(names):
            yield name, Answer(None)

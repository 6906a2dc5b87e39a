"""An API server accepts the snippets of docs/pods.md and docs/migrating.md and everything made from them, and running
pods do what the page describes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.operator_under_test import install_crd, running_operator
from tests.unit.docs.snippets import OURS, Block, blocks
from trainmaster_local.testing.clusters import Cluster
from trainmaster_operator.api.merge import merge
from trainmaster_operator.api.parsing import parse_job
from trainmaster_operator.api.v1alpha1 import JobIdentity
from trainmaster_operator.rendering import Settings, first_assignment, render

SNIPPETS = [
    block
    for page in ("pods.md", "migrating.md")
    for block in blocks(page, "yaml")
    if block.objects()[0]["kind"] not in ("PyTorchJob", "TrainJob")
]
# A worker prints this for the test that runs: variables, then the content of files that others have made.
_PROGRAM = """
import json, os, pathlib
names = ("LEARNING_RATE", "WANDB_API_KEY", "DATASET", "TEAM")
files = ("/models/ready", "/data/hello")
print(json.dumps([{name: os.environ.get(name) for name in names}, [pathlib.Path(name).read_text() for name in files]]))
pathlib.Path("/outputs/result").write_text("done")
"""


@pytest.mark.parametrize("block", SNIPPETS, ids=lambda block: block.name)
def test_an_api_server_accepts_a_snippet_and_what_it_becomes(cluster: Cluster, block: Block) -> None:
    install_crd(cluster)
    for document in block.objects():
        bodies: list[Mapping[str, Any]] = [document]
        if document["kind"] == OURS:
            job = parse_job(document)
            identity = JobIdentity(cluster.namespace, job.name, "00000000-0000-0000-0000-000000000000")
            children = render(identity, job.spec, first_assignment(identity, job.spec), settings=Settings())
            # The cluster of these tests has no gang scheduler.
            bodies += [child.body for child in children if child.body["kind"] != "Workload"]
        cluster.kubectl(
            *("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"),
            stdin=yaml.safe_dump_all([dict(body) for body in bodies]),
        )


def test_what_the_snippets_say_is_so_in_a_pod(cluster: Cluster, pods_run: None, tmp_path: Path) -> None:
    """Variables, a claim, an init container and a sidecar are together in one job, as on the page."""
    headings = ("Environment variables", "A data volume", "An init container", "A sidecar")
    spec: dict[str, Any] = {
        "image": "python:3.12",
        "command": ["python3", "-c", _PROGRAM],
        "launcher": "exec",
        "workers": 2,
    }
    needed = _objects("Environment variables") + _objects("Requirements of a claim")
    for heading in headings:
        first = next(item for item in _objects(heading) if item["kind"] == OURS)
        spec["podTemplate"] = merge(spec.get("podTemplate", {}), first["spec"]["podTemplate"])
    cluster.apply(*(item for item in needed if item["kind"] != OURS))
    cluster.apply(_writer())
    cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/writer", "--timeout=60s")
    with running_operator(cluster, tmp_path):
        job = {"apiVersion": "trainmaster.dev/v1alpha1", "kind": OURS, "metadata": {"name": "together"}, "spec": spec}
        cluster.apply(job)
        cluster.eventually(
            lambda: cluster.get("dtj", "together").get("status", {}).get("phase") == "Succeeded", 90, "it succeeds"
        )
        logs = cluster.eventually(lambda: cluster.get("configmap", "together-logs")["data"], 30, "its logs are kept")
    variables, files = json.loads(logs["worker-1.log"].strip().removeprefix("[rank 1]: "))
    assert variables == {
        "LEARNING_RATE": "0.001",
        "WANDB_API_KEY": "not-a-real-token",
        "DATASET": "imagenet",
        "TEAM": "vision",
    }
    assert files == ["fetched\n", "hello from the claim"]


def _objects(heading: str) -> list[dict[str, Any]]:
    return [item for block in blocks("pods.md", "yaml") if block.heading == heading for item in block.objects()]


def _writer() -> dict[str, Any]:
    """Returns a pod that fills the claim before the job."""
    program = "import pathlib; pathlib.Path('/data/hello').write_text('hello from the claim')"
    container = {
        "name": "writer",
        "image": "python:3.12",
        "command": ["python3", "-c", program],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    spec = {"restartPolicy": "Never", "containers": [container], "volumes": volumes}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "writer"}, "spec": spec}

"""`python -m tests.why.record [JOB...]` makes the situations of `recorded.yaml` on the embedded cluster.

For each, `recorded/JOB.json` contains the API server's objects of the job's namespace, without those parts that no
reader needs (managed fields, the agent's archive).
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.gang_schedulers import KUEUE, installed
from tests.cluster.operator_under_test import install_crd, running_operator
from tests.cluster.test_troubleshooting import job, shown
from tests.why.jobs import JOBS
from trainmaster.local import configure
from trainmaster_local.testing.clusters import Cluster, new_namespace, open_cluster, suite_config

FOLDER = Path(__file__).resolve().parent
# As kubectl names them.
KINDS = ("dtj", "pods", "statefulsets", "events", "configmaps", "persistentvolumeclaims", "resourcequotas")
# Seconds that a situation lasts before it is recorded: events come a little after the status.
SETTLE = {"slow": 30.0, "well": 30.0}


def kept(cluster: Cluster, name: str, *others: str) -> list[dict[str, Any]]:
    """Returns the objects of the namespace, and the nodes."""
    found = [item for kind in (*KINDS, *others) for item in cluster.items(kind)]
    for item in found:
        item["metadata"].pop("managedFields", None)
        item.pop("binaryData", None)
    return [item for item in found if item["kind"] == "Node" or _is_about(item, name)]


def _is_about(item: dict[str, Any], name: str) -> bool:
    """Returns whether an object belongs to the situation or was made beside it, rather than left by earlier jobs."""
    about = str(item.get("involvedObject", item["metadata"])["name"])
    own = about == name or about.startswith(f"{name}-")
    return own or item["kind"] in ("ResourceQuota", "PersistentVolumeClaim", "LocalQueue")


def record(cluster: Cluster, name: str) -> None:
    """Makes one situation and writes its file."""
    situation = JOBS.get(name)
    with ExitStack() as stack:
        if name == "queued":
            stack.enter_context(installed(cluster, *KUEUE))
        for item in () if situation is None else situation.beside:
            cluster.apply(dict(item))
        spec = JOBS["late"].spec if situation is None else situation.spec
        cluster.apply(job(name, spec))
        if situation is not None:
            wanted = (situation.phase, situation.reason)
            kinds = ("Succeeded", "Running", "Failed", "Suspended")

            def there() -> bool:
                status = cluster.get("dtj", name).get("status", {})
                reasons = [each["reason"] for each in status.get("conditions", []) if each["type"] in kinds]
                return status.get("phase") == wanted[0] and wanted[1] in reasons

            try:
                cluster.eventually(there, 90, f"{name}: {wanted}")
            except pytest.fail.Exception as error:
                print(f"{name}: {error}; it is {shown(cluster, name)}")
        time.sleep(SETTLE.get(name, 2.5))
        objects = kept(cluster, name, "nodes", *(("workloads",) if name == "queued" else ()))
        path = FOLDER / "recorded" / f"{name}.json"
        lines = (json.dumps(item, sort_keys=True, separators=(",", ":")) for item in objects)
        path.write_text("[\n" + ",\n".join(lines) + "\n]\n")
        print(f"{name}: {len(objects)} objects, {path.stat().st_size} bytes", flush=True)
        cluster.kubectl("delete", "dtj", name)
        cluster.eventually(lambda: not cluster.items("pods"), 90, "its pods are gone")
        for item in () if situation is None else situation.beside:
            cluster.kubectl("delete", item["kind"], item["metadata"]["name"])


def main(names: list[str]) -> None:
    """Records the named situations, or all."""
    entries = yaml.safe_load((FOLDER / "recorded.yaml").read_text())["recorded"]
    wanted = names or [entry["job"] for entry in entries]
    with tempfile.TemporaryDirectory() as folder, open_cluster(configure(suite_config(Path(folder)))) as shared:
        if "ignored" in wanted:
            with new_namespace(shared) as cluster:
                install_crd(cluster)
                record(cluster, "ignored")
        with new_namespace(shared) as cluster, running_operator(cluster, Path(folder)):
            for name in wanted:
                if name != "ignored":
                    record(cluster, name)


if __name__ == "__main__":
    main(sys.argv[1:])

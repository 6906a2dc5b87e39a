"""Anyone who can create only jobs, or only pods, can't stop the operator: others' jobs continue, and a sentence says
why.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.operator_under_test import running_operator, training_job
from trainmaster_local.testing.clusters import Cluster

QUICK = "print('done')"


def deep_job(name: str, depth: int) -> str:
    """Returns a manifest whose training is nested lists, 2 KB or more of them."""
    job = json.dumps(training_job(name, QUICK, training={"layers": "@"}))
    return job.replace('"@"', "[" * depth + "]" * depth)


def bare_pod(name: str, job: str, uid: str, **annotations: str) -> dict[str, Any]:
    """Returns a tenant's own pod that claims to be a job's."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"trainmaster.dev/job-name": job, "trainmaster.dev/job-uid": uid},
            "annotations": annotations,
        },
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "worker", "image": "python:3.12", "command": ["python3", "-c", WRITES_MESSAGE]}],
        },
    }


MESSAGE = '{"state":"Failed","worker":1,"attempt":1,"at":' + "9" * 400 + "}"
WRITES_MESSAGE = f"open('/dev/termination-log', 'w').write({MESSAGE!r})"


def succeeds(cluster: Cluster, name: str) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(training_job(name, QUICK)))
    cluster.kubectl("wait", "--for=condition=Succeeded", f"dtj/{name}", "--timeout=60s")


@pytest.mark.usefixtures("pods_run")
def test_jobs_and_pods_that_broke_the_operator_cost_only_themselves(cluster: Cluster, tmp_path: Path) -> None:
    with running_operator(cluster, tmp_path) as operator:
        for depth in (1_100, 5_000):
            cluster.kubectl("create", "-f", "-", stdin=deep_job(f"deep-{depth}", depth))
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(training_job("victim", "import time; time.sleep(600)")))
        uid = cluster.kubectl("get", "dtj", "victim", "-o", "jsonpath={.metadata.uid}").stdout
        for name, assignment in (("victim-8", '{"attempt": Infinity}'), ("victim-" + "9" * 20, "[" * 5_000)):
            pod = bare_pod(name, "victim", uid, **{"trainmaster.dev/assignment": assignment})
            cluster.kubectl("create", "-f", "-", stdin=json.dumps(pod))
        for depth in (1_100, 5_000):
            cluster.kubectl("wait", "--for=condition=Accepted=False", f"dtj/deep-{depth}", "--timeout=60s")
            shown = cluster.kubectl("get", "dtj", f"deep-{depth}", "-o", "wide").stdout
            assert "spec.training: has more than 64 lists and mappings in each other" in shown
        succeeds(cluster, "beside")
        cluster.kubectl("wait", "--for=condition=Running", "dtj/victim", "--timeout=60s")
        assert operator.is_alive()
        assert "Watching ended" not in operator.text()
        # The next operator finds all of it in its first list.
        operator.kill()
        operator.start()
        succeeds(cluster, "afterwards")
        assert operator.is_alive()

"""An attack from a security review fails on a real operator and real agents: viewing and patching a job's pods moves
nothing.
"""

from __future__ import annotations

import base64
import json
import socket
from typing import Any

import pytest

from tests.cluster.operator_under_test import OperatorProcess, status, training_job
from tests.signer import FOREIGN
from trainmaster_local.testing.clusters import Cluster
from trainmaster_operator.wire.assignment import Assignment, parse_text
from trainmaster_operator.wire.names import ASSIGNMENT_ANNOTATION

pytestmark = pytest.mark.usefixtures("pods_run")

PATIENT = "import time; time.sleep(600)"
FORGED = 999_999


def annotation(cluster: Cluster, pod: str = "job-0") -> dict[str, Any]:
    return dict(json.loads(cluster.get("pod", pod)["metadata"]["annotations"][ASSIGNMENT_ANNOTATION]))


def forged(genuine: dict[str, Any]) -> str:
    """Returns an attacker's version of an annotation: a far attempt, with the attacker's signatures."""
    text = json.dumps({**genuine, "attempt": FORGED, "uids": None})
    return FOREIGN.sign(Assignment.parse(parse_text(text)))


def test_who_views_and_patches_pods_neither_finds_the_token_nor_moves_an_attempt(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    cluster.apply(training_job("job", PATIENT))
    cluster.eventually(lambda: status(cluster).get("phase") == "Running", 90, "it runs")
    shown = json.dumps(cluster.items("pods")) + json.dumps(cluster.items("statefulsets"))
    (secret,) = [one for one in cluster.items("secrets") if one["type"] == "trainmaster.dev/agents"]
    value = base64.b64decode(secret["data"]["secret"]).decode()
    assert value not in shown and secret["metadata"]["name"] in shown
    # Viewing pods shows everything that an attacker knows; that was enough before, but the port no longer accepts it.
    pod = cluster.get("pod", "job-0")
    with socket.create_connection((pod["status"]["podIP"], 8472), timeout=10) as connection:
        connection.sendall(b"GET /v1/state HTTP/1.1\r\nTrainmaster-Token: " + b"0" * 64 + b"\r\n\r\n")
        assert b" 401 " in connection.recv(4_096)[:20]
    # Patching them affects neither the agents nor the operator, which overwrites it with its own annotation.
    genuine = annotation(cluster)
    body = {"metadata": {"annotations": {ASSIGNMENT_ANNOTATION: forged(genuine)}}}
    cluster.patch("pod", "job-0", body)
    cluster.eventually(lambda: annotation(cluster) == genuine, 60, "the operator's own assignment again")
    assert (status(cluster)["phase"], status(cluster)["attempt"]) == ("Running", 1)
    # The same holds if the status is lost and the attempt is read from the annotations.
    operator.stop()
    cluster.patch("pod", "job-0", body)
    cluster.kubectl("patch", "dtj", "job", "--subresource=status", "--type=merge", "-p", '{"status": null}')
    operator.start()
    cluster.eventually(lambda: status(cluster).get("phase") == "Running", 90, "it runs again")
    assert 1 <= status(cluster)["attempt"] <= 3
    assert annotation(cluster)["attempt"] == status(cluster)["attempt"]


def test_a_namespace_without_its_agents_secret_recovers_the_sure_way(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    script = "import os, sys; sys.exit(7 if os.environ['RANK'] + os.environ['TRAINMASTER_ATTEMPT'] == '11' else 0)"
    cluster.apply(training_job("first", PATIENT, workers=1))
    (name,) = cluster.eventually(
        lambda: [o["metadata"]["name"] for o in cluster.items("secrets") if o["type"] == "trainmaster.dev/agents"], 60
    )
    cluster.delete("secret", name)
    cluster.apply(training_job("job", script))
    cluster.eventually(lambda: status(cluster).get("phase") == "Succeeded", 120, "succeeded by exits alone")
    assert (status(cluster)["attempt"], status(cluster)["restarts"]) == (2, 1)

"""kubectl requests stacks from the real operator and agents: all ranks answer, and the job trains on as before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.scenarios import Scenario, Stage, train

pytestmark = pytest.mark.usefixtures("pods_run")

BIN = Path(sys.executable).parent
REGISTER = """
import faulthandler
kept = open(os.environ["TRAINMASTER_STACKS_FILE"] + f".{rank}", "w")
if rank == 0:
    faulthandler.register(signal.SIGUSR2, file=kept, all_threads=True, chain=False)
"""


def ask(scenario: Scenario, request: str) -> Mapping[str, Any]:
    """Annotates the job; returns the data of the ConfigMap with the answer."""
    cluster, name = scenario.cluster, scenario.name
    cluster.kubectl("annotate", "dtj", name, "--overwrite", f"trainmaster.dev/stacks={request}")

    def answered() -> Mapping[str, Any] | None:
        data: Mapping[str, Any] = cluster.get("configmap", f"{name}-stacks")["data"]
        return data if json.loads(data["stacks.json"])["request"] == request else None

    found: Mapping[str, Any] = scenario.until(answered, f"the answer to {request}")
    return found


def dtj(scenario: Scenario, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `kubectl dtj`."""
    cluster = scenario.cluster
    return subprocess.run(
        [BIN / "kubectl-dtj", *arguments, "--namespace", cluster.namespace],
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def step(scenario: Scenario) -> int:
    return int((scenario.status.get("progress") or {}).get("step") or 0)


def test_all_ranks_answer_and_the_job_trains_on_in_the_same_attempt(scenario: Scenario, stage: Stage) -> None:
    scenario.apply(train(faults=1, first=REGISTER))
    started = scenario.until_training()
    uids = scenario.uids()
    data = ask(scenario, "first")
    answer = json.loads(data["stacks.json"])
    assert (answer["attempt"], answer["unanswered"], answer["problem"]) == (1, [], "")
    assert sorted(answer["ranks"]) == ["0", "1"]
    assert 'File "<string>", line' in data["rank-0.txt"], "the stacks of a rank that can print them"
    assert "Thread" not in data["rank-1.txt"] and "pid" in data["rank-1.txt"], "the kernel's view of one that can't"
    shown = dtj(scenario, "stacks", scenario.name)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("Attempt 1, ") and ": 2 ranks have answered\n" in shown.stdout
    assert "\n  Rank 0: step " in shown.stdout and "\n  Rank 1: step " in shown.stdout
    asked = scenario.status["stacksRequest"]
    assert asked["id"] not in ("", "first"), "what the command asked after that"

    # The next operator knows the earlier request, and answers new ones.
    version = scenario.cluster.get("configmap", f"{scenario.name}-stacks")["metadata"]["resourceVersion"]
    stage.operator.kill()
    stage.operator.start()
    before = step(scenario)
    scenario.until(lambda: step(scenario) > before, "it trains on, and the new operator says so", 60)
    found = scenario.cluster.get("configmap", f"{scenario.name}-stacks")
    assert found["metadata"]["resourceVersion"] == version and scenario.status["stacksRequest"] == asked
    assert json.loads(ask(scenario, "second")["stacks.json"])["unanswered"] == []

    assert (scenario.accounts, scenario.uids(), scenario.container_restarts()) == ((1, 0, 0), uids, [0, 0])
    assert scenario.until_started() == started, "the same processes"
    owner = found["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("DistributedTrainingJob", scenario.name)

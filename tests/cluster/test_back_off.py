"""No restart waits for the kubelet's crash back-off, even if every failure is reported by an exit because the operator
reaches no agent, or if an agent is killed repeatedly.

The kubelet here backs off as Kubernetes' does: 10 s from a container's second exit on, doubled each time.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.operator_under_test import running_operator
from tests.cluster.scenarios import Scenario, Stage, train
from trainmaster_local.config import KubeletTimings
from trainmaster_local.testing.clusters import SharedCluster, new_namespace
from trainmaster_operator.reconciling.observed.situation import CLOCK_SLACK

# Nothing listens there.
NO_STREAMS = ("--reach", "direct", "--agent-port", "9")


@pytest.fixture
def deaf(shared_cluster: SharedCluster, pods_run: None, tmp_path: Path) -> Iterator[Stage]:
    """Starts an operator that no agent reaches."""
    with new_namespace(shared_cluster) as made, running_operator(made, tmp_path, *NO_STREAMS) as operator:
        yield Stage(made, made, operator)


@pytest.fixture
def hearing(shared_cluster: SharedCluster, pods_run: None, tmp_path: Path) -> Iterator[Stage]:
    """Starts an operator that agents reach."""
    with new_namespace(shared_cluster) as made, running_operator(made, tmp_path) as operator:
        yield Stage(made, made, operator)


@contextmanager
def patient_node(stage: Stage) -> Iterator[dict[str, str]]:
    """Selects a node whose kubelet waits as long as Kubernetes' does."""
    if stage.main.shared.embedded is None:
        yield {}
        return
    with stage.nodes(1) as (name,):
        stage.main.embedded.cluster.kubelets[name].timings = KubeletTimings()
        yield {"for": name}


def test_an_agent_is_killed_again_and_again_and_no_container_backs_off(hearing: Stage) -> None:
    with patient_node(hearing) as node, hearing.scenario() as scenario:
        # There is one node, and it isn't to blame.
        forgiving = {"nodes": {"quarantineAfter": 0}}
        scenario.apply(train(faults=4), podTemplate={"spec": {"nodeSelector": node}}, failurePolicy=forgiving)
        uids: list[dict[str, str]] = []
        for attempt in (1, 2, 3, 4):
            started = scenario.until_started(attempt)
            uids.append(scenario.uids())
            assert max(scenario.container_restarts()) <= 1
            # Later, so that the end can't belong to the previous attempt.
            time.sleep(CLOCK_SLACK + 0.5)
            # This kills the agent and everything in its container: its rank is the agent's own child.
            scenario.send(1, started[1].parent, signal.SIGKILL)
        scenario.succeeds(attempt=5, restarts=4)
        killed, other = f"{scenario.name}-1", f"{scenario.name}-0"
        assert [item["reason"] for item in scenario.failures] == ["AgentLost"] * 4
        assert uids[0] == uids[1], "the first restart of a container comes at once"
        assert uids[1][killed] != uids[2][killed], "the second one would have waited for 10 s"
        assert uids[2] == uids[3], "the first restart in the new pod"
        assert len({each[other] for each in uids}) == 1


def test_the_same_rank_fails_again_and_again_and_no_container_backs_off(deaf: Stage) -> None:
    with patient_node(deaf) as node, deaf.scenario() as scenario:
        scenario.apply(train(faults=3), podTemplate={"spec": {"nodeSelector": node}})
        uids: list[dict[str, str]] = []
        for attempt in (1, 2, 3):
            started = scenario.until_started(attempt)
            uids.append(scenario.uids())
            # One immediate restart, which costs nothing, and never a second one.
            assert max(scenario.container_restarts()) <= 1
            scenario.send(1, started[1].pid, signal.SIGKILL)
        scenario.succeeds(attempt=4, restarts=3)
        check(scenario, uids)


def check(scenario: Scenario, uids: list[dict[str, str]]) -> None:
    failed, other = f"{scenario.name}-1", f"{scenario.name}-0"
    assert [item["reason"] for item in scenario.failures] == ["Signal"] * 3
    assert uids[0] == uids[1], "the first restart of a container comes at once"
    assert uids[1][failed] != uids[2][failed], "the second one would have waited for 10 s"
    assert len({each[other] for each in uids}) == 1, "who only suffered stays"
    lines = "jsonpath={range .items[*]}{.reason}: {.message}{'\\n'}{end}"
    events = scenario.cluster.kubectl("get", "events", "-o", lines).stdout.splitlines()
    (event,) = [line for line in events if line.startswith("ReplacingPods")]
    assert f"replacing {failed}, which the kubelet's crash back-off would keep waiting" in event
    evidence = {kept.attempt: kept for kept in scenario.client.evidence(scenario.name)}
    assert "rank 1 of 2, attempt 2" in evidence[2].logs[1], "the log of the pod that is gone"

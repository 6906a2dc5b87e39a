"""If agents hang and nobody is left to notice, the kubelet's probe of the worker's container finds them."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

from tests.cluster.scenarios import Scenario, Stage, Start

# Short, but longer than a loaded machine delays a healthy agent, which must not be ended.
PROBE = {
    "initialDelaySeconds": 1,
    "periodSeconds": 1,
    "timeoutSeconds": 3,
    "failureThreshold": 4,
    "terminationGracePeriodSeconds": 1,
}
QUICKLY_PROBED: dict[str, Any] = {"spec": {"containers": [{"name": "worker", "livenessProbe": PROBE}]}}


def stop_agent(scenario: Scenario, started: Start) -> None:
    scenario.cluster.shared.needs_embedded("a container can't stop its own first process (pid_namespaces(7))")
    scenario.send(started.rank, started.parent, signal.SIGSTOP)


def kubelet_events(scenario: Scenario, worker: int) -> list[str]:
    path = "jsonpath={range .items[*]}{.reason} {.message}{'\\n'}{end}"
    selector = f"--field-selector=involvedObject.name={scenario.name}-{worker}"
    return scenario.cluster.kubectl("get", "events", selector, "-o", path).stdout.splitlines()


def is_lost_to_the_probe(failure: Any, worker: int) -> bool:
    facts = (failure["reason"], failure["worker"], failure["exitCode"])
    message = "the kubelet: Container worker failed liveness probe, will be restarted"
    return facts == ("AgentLost", worker, 137) and failure["message"].endswith(message)


def test_agents_stand_still_and_leave_nobody_to_notice(stage: Stage, scenario: Scenario) -> None:
    """The only worker's agent hangs, and all agents of another job at the same time: that costs each job one
    restart.
    """
    scenario.apply(workers=1, podTemplate=QUICKLY_PROBED)
    with stage.scenario() as other:
        other.apply(podTemplate=QUICKLY_PROBED)
        (alone,) = scenario.until_training(workers=1).values()
        both = other.until_training()
        before = scenario.uids()
        stop_agent(scenario, alone)
        stop_agent(other, both[0])
        # So that the kubelet reaches the second one when an attempt has started without it.
        time.sleep(4)
        stop_agent(other, both[1])
        scenario.until(lambda: scenario.container_restarts() == [1], "the kubelet starts the container again")
        assert scenario.uids() == before
        for each in (scenario, other):
            each.succeeds(attempt=2, restarts=1)
            assert is_lost_to_the_probe(each.failures[0], 0), each.failures
        left = [start.pid for start in (alone, *both.values()) if Path("/proc", str(start.pid)).exists()]
        assert not left, "the ranks that the agents had left alone"
    events = kubelet_events(scenario, 0)
    silence = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
    assert any(event.startswith("Unhealthy Liveness probe failed: Get") and silence in event for event in events)
    assert "Killing Container worker failed liveness probe, will be restarted" in events


def test_a_job_can_do_without_the_probe(scenario: Scenario) -> None:
    """A null isn't used for that, because kubectl's client-side apply leaves it out when it creates an object."""
    worker = {"name": "worker", "livenessProbe": {"$patch": "delete"}}
    scenario.apply(workers=1, podTemplate={"spec": {"containers": [worker]}})
    scenario.until_training(workers=1)
    (pod,) = scenario.pods().values()
    assert "livenessProbe" not in pod["spec"]["containers"][0]

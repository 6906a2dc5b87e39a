"""The cluster takes pods away: these are disruptions, which cost no restart."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest

from tests.cluster.scenarios import Scenario, Stage, train

# A budget of restarts that is used up from the start: anything that counts would end the job.
NO_RESTART = {"maxRestarts": 0}
QUICK = {"spec": {"terminationGracePeriodSeconds": 3}}


def test_deleted_pods_are_replaced_for_nothing_again_and_again(scenario: Scenario) -> None:
    scenario.apply(train(faults=2), failurePolicy=NO_RESTART, podTemplate=QUICK)
    scenario.until_training()
    before = scenario.uids()
    scenario.cluster.delete("pod", f"{scenario.name}-1", wait=False)
    scenario.until_training(attempt=2)
    between = scenario.uids()
    # At once, without asking its agent or its kubelet.
    scenario.cluster.delete("pod", f"{scenario.name}-0", grace=0, wait=False)
    scenario.succeeds(attempt=3, disruptions=2)
    assert [(item["reason"], item["worker"]) for item in scenario.failures] == [("PodDeleted", 0), ("PodDeleted", 1)]
    assert before[f"{scenario.name}-0"] == between[f"{scenario.name}-0"], "the other pod stayed"


def test_an_evicted_pod_is_named_as_evicted(scenario: Scenario) -> None:
    scenario.apply(failurePolicy=NO_RESTART, podTemplate=QUICK)
    scenario.until_training()
    pod = f"{scenario.name}-1"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    path = f"/api/v1/namespaces/{scenario.cluster.namespace}/pods/{pod}/eviction"
    scenario.cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
    scenario.succeeds(attempt=2, disruptions=1)
    failure = scenario.failures[0]
    assert (failure["reason"], failure["worker"], failure["pod"]) == ("Evicted", 1, pod), failure


def test_a_drained_nodes_workers_go_on_elsewhere(stage: Stage, scenario: Scenario) -> None:
    with stage.nodes(2) as nodes:
        scenario.apply(
            train(faults=2),
            failurePolicy=NO_RESTART,
            resources={"gpus": 1},
            podTemplate={"spec": {**QUICK["spec"], "nodeSelector": {"for": nodes[0]}}},
        )
        scenario.until_training()
        drained = scenario.nodes()[f"{scenario.name}-0"]
        scenario.cluster.kubectl("drain", drained, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s")
        scenario.until_training(attempt=2)
        assert set(scenario.nodes().values()) == set(nodes) - {drained}
        # The second fault, after which the ranks end.
        scenario.cluster.delete("pod", f"{scenario.name}-0", wait=False)
        scenario.succeeds(attempt=3, disruptions=2)
        failure = scenario.failures[-1]
        assert (failure["reason"], failure["node"]) == ("Evicted", drained), failure


@pytest.fixture
def urgent(stage: Stage) -> Iterator[str]:
    """Makes a priority class above that of pods without one."""
    name = f"urgent-{stage.main.namespace}"
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 10}
    stage.main.apply(priority)
    yield name
    stage.main.delete("priorityclass", name)


def test_a_preempted_job_waits_for_its_room_and_then_goes_on(stage: Stage, scenario: Scenario, urgent: str) -> None:
    """One node has room for two workers: an urgent job of one takes half of it from a job of two."""
    with stage.nodes(1) as nodes, stage.scenario() as rival:
        pod = {"spec": {**QUICK["spec"], "nodeSelector": {"for": nodes[0]}}}
        scenario.apply(failurePolicy=NO_RESTART, resources={"gpus": 1}, podTemplate=pod)
        scenario.until_training()
        rival.apply(
            train(faults=0), workers=1, resources={"gpus": 1}, podTemplate=pod, scheduling={"priorityClassName": urgent}
        )
        rival.succeeds(attempt=1)
        scenario.succeeds(attempt=2, disruptions=1)
        failure = scenario.failures[0]
        assert (failure["reason"], failure["node"]) == ("Preempted", nodes[0]), failure


def test_a_finished_workers_pod_is_drained_and_the_others_train_on(scenario: Scenario) -> None:
    """Rank 1 has ended with 0. Its pod's successor doesn't train, and rank 0's work isn't lost."""
    program = """
import os, signal, time
ended = []
signal.signal(signal.SIGUSR1, lambda *_: ended.append(1))
rank, attempt = os.environ["RANK"], os.environ["TRAINMASTER_ATTEMPT"]
print(f"rank {rank} of 2, attempt {attempt}, pid {os.getpid()}, parent {os.getppid()}.", flush=True)
while rank == "0" and not ended:
    time.sleep(0.1)
"""
    scenario.apply(program, launcher="exec", failurePolicy=NO_RESTART, podTemplate=QUICK)
    first = scenario.until_training()
    pod = f"{scenario.name}-1"
    # The template names the pods of attempt 1 two seconds after a worker has finished.
    scenario.until(lambda: '"uids":["' in _template(scenario), "a template that names pods")
    before = scenario.uids()[pod]
    scenario.cluster.delete("pod", pod, wait=False)
    scenario.until(lambda: scenario.uids().get(pod, before) != before, "another pod")
    scenario.until(lambda: _is_ready(scenario, pod), "its agent runs")
    assert scenario.status["workers"]["finished"] == 1
    assert {start.rank for start in scenario.starts()} == {0}
    scenario.send(0, first[0].pid, signal.SIGUSR1)
    scenario.succeeds(attempt=1)


def _template(scenario: Scenario) -> str:
    """Returns the assignment with which the next pod of the job's set starts."""
    found = scenario.cluster.get("statefulset", scenario.name)
    return str(found["spec"]["template"]["metadata"]["annotations"]["trainmaster.dev/assignment"])


def _is_ready(scenario: Scenario, pod: str) -> bool:
    found = scenario.pods().get(pod, {}).get("status", {})
    return any(each["type"] == "Ready" and each["status"] == "True" for each in found.get("conditions", []))

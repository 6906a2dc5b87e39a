"""Spares take the places of lost workers, with the real operator and real agents."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.operator_under_test import training_job
from tests.cluster.scenarios import Scenario, Stage, train

NO_RESTART = {"maxRestarts": 0}
QUICK = {"spec": {"terminationGracePeriodSeconds": 3}}
NO_MORE = "no-more-pods"
# The time that a rank needs to save a checkpoint when it is asked to leave: longer than a broken attempt's rank gets.
SAVES = """
def save(*_):
    time.sleep(1)
    print(f"rank {rank} has saved.", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, save)
"""


def until_spares(scenario: Scenario, count: int) -> None:
    """Waits until the status shows this many ready spares."""
    scenario.until(lambda: scenario.status.get("workers", {}).get("spares") == count, f"{count} spares are ready")


@pytest.fixture
def limited(stage: Stage) -> Iterator[Scenario]:
    """Makes a job in the namespace in which a test may forbid more pods."""
    with stage.scenario(stage.other) as made:
        yield made
    stage.other.delete("resourcequota", NO_MORE, missing_ok=True)


def test_a_deleted_pods_place_is_taken_before_its_replacement_runs(limited: Scenario) -> None:
    scenario, name = limited, limited.name
    scenario.apply(train(faults=2), spares=1, failurePolicy=NO_RESTART, podTemplate=QUICK)
    scenario.until_training()
    until_spares(scenario, 1)
    assert sorted(scenario.pods()) == [f"{name}-0", f"{name}-1", f"{name}-2"]
    before = scenario.uids()
    # If a worker's report comes before its pod's end, the cluster may replace the pod faster.
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": NO_MORE}, "spec": {"hard": {"pods": 0}}}
    scenario.cluster.apply(quota)
    scenario.cluster.delete("pod", f"{name}-1", wait=False, grace=0)
    started = scenario.until_training(attempt=2)
    assert scenario.status["workerOrder"] == [0, 2]
    assert scenario.status["podUIDs"] == [before[f"{name}-0"], before[f"{name}-2"]], "nobody was waited for"
    assert {start.world for start in started.values()} == {2}
    scenario.cluster.delete("resourcequota", NO_MORE)
    until_spares(scenario, 1)
    # The pod that came back under the lost index is the spare, and the leader's place is taken like any other's.
    scenario.cluster.delete("pod", f"{name}-0", wait=False, grace=0)
    scenario.succeeds(attempt=3, disruptions=2)
    assert scenario.status["workerOrder"] == [1, 2]


def test_a_deleted_spare_costs_nothing(scenario: Scenario) -> None:
    spare = f"{scenario.name}-2"
    scenario.apply(spares=1, failurePolicy=NO_RESTART, podTemplate=QUICK)
    scenario.until_training()
    until_spares(scenario, 1)
    before = scenario.uids()
    scenario.cluster.delete("pod", spare, wait=False)
    scenario.until(lambda: scenario.uids().get(spare) not in (None, before[spare]), "a new spare")
    until_spares(scenario, 1)
    assert scenario.accounts == (1, 0, 0)
    assert scenario.status["phase"] == "Running"
    scenario.cluster.delete("pod", f"{scenario.name}-0", wait=False, grace=0)
    scenario.succeeds(attempt=2, disruptions=1)


def test_of_two_pods_lost_at_once_one_is_waited_for(scenario: Scenario) -> None:
    name = scenario.name
    scenario.apply(workers=3, spares=1, failurePolicy=NO_RESTART, podTemplate=QUICK)
    scenario.until_training(workers=3)
    until_spares(scenario, 1)
    scenario.cluster.delete("pod", f"{name}-0", f"{name}-1", wait=False, grace=0)
    scenario.until_phase("Succeeded")
    _, restarts, disruptions = scenario.accounts
    # The operator may have answered the first deletion before it knew of the second one.
    assert (restarts, disruptions in (1, 2)) == (0, True), scenario.failures
    assert scenario.status["workerOrder"][2] == 2
    assert 3 in scenario.status["workerOrder"][:2]


def test_an_evicted_pods_ranks_save_before_a_spare_takes_its_place(scenario: Scenario) -> None:
    name = scenario.name
    in_peace = {"spec": {"terminationGracePeriodSeconds": 20}}
    scenario.apply(train(first=SAVES), spares=1, failurePolicy=NO_RESTART, podTemplate=in_peace)
    scenario.until_training()
    until_spares(scenario, 1)
    scenario.cluster.delete("pod", f"{name}-1", wait=False)
    scenario.succeeds(attempt=2, disruptions=1)
    assert scenario.status["workerOrder"] == [0, 2]
    assert "rank 0 has saved." in scenario.kept_log(0)


def test_a_suspended_job_keeps_no_spare_and_has_them_again_afterwards(scenario: Scenario) -> None:
    scenario.apply(train(faults=2), spares=1, failurePolicy=NO_RESTART, podTemplate=QUICK)
    scenario.until_training()
    until_spares(scenario, 1)
    scenario.patch('{"runPolicy": {"suspend": true}}')
    scenario.until_phase("Suspended")
    scenario.until(lambda: scenario.pods() == {}, "no pods")
    scenario.patch('{"runPolicy": {"suspend": false}}')
    scenario.until_training(attempt=2)
    until_spares(scenario, 1)
    scenario.cluster.delete("pod", f"{scenario.name}-0", wait=False, grace=0)
    scenario.succeeds(attempt=3, disruptions=1)


def test_scaling_changes_the_workers_and_keeps_the_spares(scenario: Scenario) -> None:
    name = scenario.name
    scenario.apply(
        train(faults=3),
        spares=1,
        elastic={"minWorkers": 1, "maxWorkers": 3},
        failurePolicy=NO_RESTART,
        podTemplate=QUICK,
    )
    scenario.until_training()
    until_spares(scenario, 1)
    scenario.cluster.scale("dtj", name, 3)
    scenario.until_training(attempt=2, workers=3)
    assert scenario.status["workerOrder"] == [0, 1, 2], "who was the spare"
    until_spares(scenario, 1)
    assert sorted(scenario.pods()) == [f"{name}-{index}" for index in range(4)]
    assert scenario.status["replicas"] == 3
    scenario.cluster.delete("pod", f"{name}-0", wait=False, grace=0)
    scenario.until_training(attempt=3, workers=3)
    assert scenario.status["workerOrder"] == [3, 1, 2], "a spare comes before a smaller group"
    scenario.cluster.scale("dtj", name, 1)
    scenario.succeeds(attempt=4, disruptions=1)
    assert scenario.status["workerOrder"] == [1], "of those that have an index still, the first by rank"


def test_a_spare_of_another_kind_of_machine_stands_in_for_nobody(scenario: Scenario) -> None:
    name = scenario.name
    groups = [{"name": "large", "workers": 1, "spares": 1}, {"name": "small", "workers": 1}]
    job = training_job(name, train(faults=2), workerGroups=groups, failurePolicy=NO_RESTART, podTemplate=QUICK)
    del job["spec"]["workers"]
    scenario.cluster.apply(job)
    scenario.until_training()
    until_spares(scenario, 1)
    assert sorted(scenario.pods()) == [f"{name}-large-0", f"{name}-large-1", f"{name}-small-2"]
    scenario.cluster.delete("pod", f"{name}-small-2", wait=False, grace=0)
    scenario.until_training(attempt=2)
    assert scenario.status["workerOrder"] == [0, 2]
    until_spares(scenario, 1)
    scenario.cluster.delete("pod", f"{name}-large-0", wait=False, grace=0)
    scenario.succeeds(attempt=3, disruptions=2)
    assert scenario.status["workerOrder"] == [1, 2]


def test_pods_of_a_group_with_spares_stand_apart_where_they_can(stage: Stage, scenario: Scenario) -> None:
    with stage.nodes(2, gpus=3) as nodes:
        # Another user's pod, so that all pods would go to the other node, which has more room.
        resources = {"requests": {"cpu": "48", "memory": "48Gi"}}
        container = {"name": "c", "image": "busybox:1.37", "command": ["sleep", "600"], "resources": resources}
        metadata = {"name": f"{scenario.name}-other"}
        pod = {"containers": [container], "nodeName": nodes[1], "terminationGracePeriodSeconds": 0}
        scenario.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod})
        scenario.apply(
            spares=1,
            resources={"gpus": 1},
            podTemplate={"spec": {"nodeSelector": {"for": nodes[0]}}},
        )
        scenario.until_training()
        # Three pods on two nodes: none of them waits.
        until_spares(scenario, 1)
        assert {scenario.nodes()[f"{scenario.name}-{index}"] for index in range(3)} == set(nodes)


@pytest.mark.parametrize(("worker", "order"), [(0, [2, 1]), (1, [0, 2])], ids=["the leader's", "another"])
def test_a_lost_nodes_worker_is_replaced_before_kubernetes_ends_its_pod(
    stage: Stage, scenario: Scenario, worker: int, order: list[int]
) -> None:
    with stage.nodes(3, gpus=1) as nodes:
        scenario.apply(
            spares=1,
            failurePolicy={"nodes": {"lostAfterSeconds": 30}},
            resources={"gpus": 1},
            podTemplate={"spec": {"nodeSelector": {"for": nodes[0]}, "terminationGracePeriodSeconds": 30}},
        )
        scenario.until_training()
        until_spares(scenario, 1)
        lost = scenario.nodes()[f"{scenario.name}-{worker}"]
        cluster = stage.main.embedded
        cluster.call(cluster.cluster.lose_node(lost))
        scenario.until_phase("Succeeded")
        assert scenario.accounts[1:] == (0, 1), scenario.failures
        failure = scenario.failures[0]
        assert (failure["reason"], failure["worker"], failure["node"]) == ("NodeLost", worker, lost), failure
        assert "its agent hasn't joined" in failure["message"]
        assert scenario.status["workerOrder"] == order

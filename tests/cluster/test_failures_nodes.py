"""Nodes are lost while a job trains: removed, unreachable but alive, the master's own (more:
test_operator_nodes.py).
"""

from __future__ import annotations

import os
from typing import Any

from tests.cluster.scenarios import Scenario, Stage, train
from trainmaster_operator.agent.process.children import process_state

QUICK = {"nodes": {"lostAfterSeconds": 2}}


def on(nodes: list[str]) -> dict[str, Any]:
    """Places one worker on each node, which has one GPU."""
    return {
        "failurePolicy": QUICK,
        "resources": {"gpus": 1},
        "podTemplate": {"spec": {"nodeSelector": {"for": nodes[0]}, "terminationGracePeriodSeconds": 2}},
    }


def test_a_node_that_is_removed_takes_its_workers_elsewhere(stage: Stage, scenario: Scenario) -> None:
    with stage.nodes(3, gpus=1) as nodes:
        scenario.apply(**on(nodes))
        scenario.until_training()
        lost = scenario.nodes()[f"{scenario.name}-1"]
        stage.main.embedded.call(stage.main.embedded.cluster.remove_node(lost))
        scenario.until_phase("Succeeded")
        # The peer's broken connection is often known before the node's loss, and costs nothing in the end.
        assert scenario.accounts[1:] == (0, 1), scenario.failures
        failure = scenario.failures[0]
        assert (failure["reason"], failure["worker"], failure["node"]) == ("NodeLost", 1, lost), failure


def test_the_masters_node_cannot_be_reached_but_its_ranks_live_on_without_a_part_in_it(
    stage: Stage, scenario: Scenario
) -> None:
    """The kubelet is cut off from the API server: nobody can end the old rank 0, and it must not train with the new
    ranks.
    """
    with stage.nodes(3, gpus=1) as nodes:
        cluster = stage.main.embedded
        scenario.apply(train(faults=2), **on(nodes))
        before = scenario.until_training()
        lost = scenario.nodes()[f"{scenario.name}-0"]
        cluster.call(cluster.cluster.lose_node(lost, kill=False))
        after = scenario.until_training(attempt=2)
        assert lost not in scenario.nodes().values()
        failure = scenario.failures[0]
        assert (failure["reason"], failure["worker"], failure["node"]) == ("NodeLost", 0, lost), failure
        assert before[0].pid not in {start.pid for start in after.values()}
        os.kill(before[0].parent, 0)  # The old agent lives.
        cluster.call(cluster.cluster.recover_node(lost))
        scenario.until(lambda: process_state(before[0].parent) in "XZ", "the old agent is ended")
        assert scenario.accounts == (2, 0, 1), "nothing else happened"
        assert scenario.status["phase"] == "Running"


def test_an_elastic_job_whose_masters_node_is_lost_goes_on_with_another_master(
    stage: Stage, scenario: Scenario
) -> None:
    with stage.nodes(2, gpus=1) as nodes:
        script = train(first="last = world == 1")
        scenario.apply(script, elastic={"minWorkers": 1, "maxWorkers": 2}, **on(nodes))
        scenario.until_training()
        lost = scenario.nodes()[f"{scenario.name}-0"]
        stage.main.embedded.call(stage.main.embedded.cluster.lose_node(lost))
        scenario.until_phase("Succeeded")
        attempt, restarts, disruptions = scenario.accounts
        assert (restarts, disruptions) == (0, 1), scenario.failures
        assert [item["reason"] for item in scenario.failures] == ["NodeLost"]
        assert scenario.status["workerOrder"] == [1]
        assert f"rank 0 of 1, attempt {attempt}" in scenario.kept_log(1)

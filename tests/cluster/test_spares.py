"""Spares take the places of lost workers, with the real operator and real agents."""

from __future__ import annotations

from tests.cluster.scenarios import Scenario, train

NO_RESTART = {"maxRestarts": 0}
QUICK = {"spec": {"terminationGracePeriodSeconds": 3}}
# Long enough after the spare has taken its place for a test to see that the replacement hadn't come before.
BY_FORCE = ("--force", "--grace-period=0", "--wait=false")


def until_spares(scenario: Scenario, count: int) -> None:
    """Waits until so many spares are ready, by the status."""
    scenario.until(lambda: scenario.status.get("workers", {}).get("spares") == count, f"{count} spares are ready")


def test_a_deleted_pods_place_is_taken_before_its_replacement_runs(scenario: Scenario) -> None:
    name = scenario.name
    scenario.apply(train(faults=2), spares=1, failurePolicy=NO_RESTART, podTemplate=QUICK)
    scenario.until_training()
    until_spares(scenario, 1)
    assert sorted(scenario.pods()) == [f"{name}-0", f"{name}-1", f"{name}-2"]
    before = scenario.uids()
    scenario.cluster.kubectl("delete", "pod", f"{name}-1", *BY_FORCE)
    started = scenario.until_training(attempt=2)
    assert scenario.status["workerOrder"] == [0, 2]
    assert scenario.status["podUIDs"] == [before[f"{name}-0"], before[f"{name}-2"]], "nobody was waited for"
    assert {start.world for start in started.values()} == {2}
    until_spares(scenario, 1)
    # The pod that came back under the lost index is the spare, and the leader's place is taken as any other's.
    scenario.cluster.kubectl("delete", "pod", f"{name}-0", *BY_FORCE)
    scenario.succeeds(attempt=3, disruptions=2)
    assert scenario.status["workerOrder"] == [1, 2]

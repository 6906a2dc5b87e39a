"""Jobs that can't start show the scheduler's, the kubelet's or the quota's own message, at once if waiting can't help.

The kubelet's sentences differ between container runtimes and versions, so the tests check only the names in them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.scenarios import Scenario, Stage

# Long enough for pods to appear and be refused; cases that must not wait for it have ten minutes.
SOON = {"startupSeconds": 4}
# A real runtime first asks DNS for the registry, several times.
PULLED = {"startupSeconds": 30} if os.environ.get("TRAINMASTER_TEST_KUBECONFIG") else SOON


def failed(scenario: Scenario, seconds: float = 60) -> tuple[str, str]:
    """Returns reason and sentence of the job's failure, once its pods are gone."""
    scenario.until_phase("Failed", seconds=seconds)
    scenario.until(lambda: not scenario.pods(), "pods gone")
    why = scenario.why("Failed")
    assert scenario.accounts == (1, 0, 0)
    return why["reason"], why["message"]


def test_an_image_that_does_not_exist_fails_after_startup_seconds_with_the_kubelets_message(scenario: Scenario) -> None:
    image = "registry.invalid/team/trainer:1"
    scenario.apply(image=image, failurePolicy=PULLED)
    waiting = scenario.until(
        lambda: scenario.why("Running").get("reason") == "ImagePull" and scenario.why("Running"), "why"
    )
    assert image in waiting["message"], "shown while it still waits"
    reason, message = failed(scenario)
    assert reason == "ImagePull"
    assert f"within {PULLED['startupSeconds']} s (startupSeconds)" in message
    assert f"of pod {scenario.name}-" in message
    assert image in message


@pytest.mark.parametrize(
    ("change", "reason", "expected"),
    [
        # The API server checks the job's own image; only the kubelet reads those of other containers.
        (
            {"podTemplate": {"spec": {"initContainers": [{"name": "fetch", "image": "Not/An:Image"}]}}},
            "InvalidImageName",
            "InvalidImageName",
        ),
        # One worker: with two, the one that was only stopped may report first, and the operator starts another attempt.
        ({"command": ["no-such-program", "--x"], "workers": 1}, "LaunchError", "no-such-program"),
    ],
)
def test_what_time_cannot_heal_fails_at_once(
    scenario: Scenario, change: dict[str, Any], reason: str, expected: str
) -> None:
    scenario.apply(**change)
    ended, message = failed(scenario)
    assert ended == reason
    assert expected in message
    assert "startupSeconds" not in message


def test_the_output_of_a_failed_init_container_is_quoted_and_kept(scenario: Scenario) -> None:
    fetch = {"name": "fetch", "image": "python:3.11", "command": ["python3", "-c", "raise SystemExit('no bucket')"]}
    scenario.apply(workers=1, podTemplate={"spec": {"initContainers": [fetch]}}, failurePolicy=SOON)
    reason, message = failed(scenario)
    assert reason == "InitFailed"
    assert f"init container fetch of pod {scenario.name}-0 ended with exit code 1: no bucket" in message
    assert "--- init container fetch ---" in scenario.kept_log(0) and "no bucket" in scenario.kept_log(0)


def test_nine_gpus_where_there_are_eight_fail_with_the_schedulers_message(scenario: Scenario) -> None:
    scenario.apply(workers=1, resources={"gpus": 9}, failurePolicy=SOON)
    reason, message = failed(scenario)
    assert reason == "Unschedulable"
    assert f"pod {scenario.name}-0 can't be scheduled: 0/" in message
    assert "Insufficient nvidia.com/gpu" in message


@pytest.fixture
def crowded(stage: Stage) -> Iterator[Scenario]:
    """Makes a job in a namespace that may have one pod."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    stage.other.apply(quota)
    with stage.scenario(stage.other) as made:
        yield made
    stage.other.delete("resourcequota", "few")


def test_two_jobs_that_each_hold_a_part_of_a_quota_both_run(stage: Stage) -> None:
    """With a quota of four pods, two jobs of three workers each hold two, until one gives its own up for a while."""

    def quota(pods: int) -> dict[str, Any]:
        hard = {"spec": {"hard": {"pods": str(pods)}}}
        return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, **hard}

    stage.other.apply(quota(2))
    try:
        with stage.scenario(stage.other) as one, stage.scenario(stage.other) as two:
            one.apply("print('trained')", workers=3, failurePolicy={"startupSeconds": 45})
            one.until(lambda: len(one.pods()) == 2, "two of three pods")
            # Its set's controller now waits for seconds between two attempts, and the other job takes the new room.
            time.sleep(6)
            stage.other.apply(quota(4))
            two.apply("print('trained')", workers=3, failurePolicy={"startupSeconds": 45})
            for each in (one, two):
                each.until_phase("Succeeded", seconds=150)
    finally:
        stage.other.delete("resourcequota", "few")


def test_a_quota_that_leaves_no_room_fails_the_job_with_its_message(crowded: Scenario) -> None:
    crowded.apply(failurePolicy=SOON)
    reason, message = failed(crowded)
    assert reason == "QuotaExceeded"
    assert "exceeded quota: few" in message
    assert "limited: pods=1" in message

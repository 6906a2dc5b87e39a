"""Failures have a price: rules on exit codes, the budget and its back-off, and whose success counts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from typing import Any

import pytest

from tests.cluster.scenarios import Scenario, Stage, train

RULES = {"rules": [{"exitCodes": [3], "action": "Ignore"}, {"reasons": ["Error"], "action": "Fail"}]}
BACKOFF = {"maxRestarts": 2, "backoff": {"initialSeconds": 1, "factor": 2, "maxSeconds": 300}}


def end(code: str) -> str:
    """Returns a program that ends rank 1 with a code, which may depend on the attempt."""
    return train(faults=9, together=f"if rank == 1: time.sleep(0.5); sys.exit({code})")


@pytest.fixture(scope="module")
def jobs(stage: Stage) -> Iterator[dict[str, Scenario]]:
    """Starts the jobs together, because they spend most of their time waiting."""
    specs: dict[str, dict[str, Any]] = {
        "ruled": {"script": end("3 if attempt == 1 else 4"), "failurePolicy": {**RULES, "maxRestarts": 0}},
        "backing off": {"script": end("1"), "failurePolicy": BACKOFF},
    }
    with ExitStack() as stack:
        made = {name: stack.enter_context(stage.scenario()) for name in specs}
        for name, spec in specs.items():
            made[name].apply(**spec)
        yield made


def test_the_first_rule_that_matches_an_exit_code_decides(jobs: dict[str, Scenario]) -> None:
    """Code 3 is ignored although it is also an Error; 4 ends the job. Neither uses the budget, which is zero."""
    job = jobs["ruled"]
    job.until_phase("Failed")
    assert job.accounts == (2, 0, 1)
    assert [(item["exitCode"], item["rank"]) for item in job.failures] == [(4, 1), (3, 1)]
    why = job.why("Failed")
    assert why["reason"] == "Error"
    assert "exit code 4" in why["message"]
    assert "(failurePolicy.rules)" in why["message"]


def test_restarts_back_off_and_the_last_failure_ends_the_job(jobs: dict[str, Scenario]) -> None:
    job = jobs["backing off"]
    job.until_phase("Failed")
    assert job.accounts == (3, 2, 0)
    ended = [datetime.fromisoformat(item["failedAt"]) for item in reversed(job.failures)]
    waited = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(ended)]
    assert waited[0] > 1.5, "half a second of training and one of waiting"
    assert waited[1] > 2.5, "and two the second time"
    why = job.why("Failed")
    assert why["reason"] == "MaxRestartsExceeded"
    assert "failurePolicy.maxRestarts is 2" in why["message"]
    assert "pod " + job.failures[0]["pod"] in why["message"]


def test_with_rank_zero_as_success_the_others_are_ended_when_it_has_finished(scenario: Scenario) -> None:
    scenario.apply(train(faults=0, first="if rank == 1: time.sleep(600)\nworld = 1"), successPolicy="RankZero")
    scenario.succeeds(attempt=1)
    scenario.until(lambda: not scenario.pods(), "pods gone")
    assert "the worker with rank 0 finished" in scenario.why("Succeeded")["message"]
    assert "is done" in scenario.kept_log(0)

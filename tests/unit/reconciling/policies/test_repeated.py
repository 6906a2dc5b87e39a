"""A start that repeats its failure ends the job, and identical failures in a row are one entry with a count."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.reconciling.builders import NOW, decided, job, observed, running, said
from trainmaster_operator.api.times import to_text
from trainmaster_operator.api.v1alpha1 import Failure, JobStatus
from trainmaster_operator.reconciling.observed.snapshot import Observed
from trainmaster_operator.reconciling.policies.repeated import is_same, with_recorded, without_newest
from trainmaster_operator.wire.ranks import RankProgress

MISSING = "ModuleNotFoundError: No module named 'transformerz'"


def failed(attempt: int, error: str = MISSING, worker: int = 1, **fields: Any) -> Failure:
    message = f"worker {worker} (rank {worker}, pod bert-{worker}, node n{worker}) ended with exit code 1: x | {error}"
    values = {"reason": "Error", "message": message, "worker": worker, "exit_code": 1, "failed_at": to_text(NOW - 20)}
    return Failure(attempt=attempt, **{**values, **fields})


def failing_again(error: str = MISSING, *, worker: int = 0, **fields: Any) -> Observed:
    return observed(said(worker, "Failed", 2, error=f"Traceback\n{error}"), attempt=2, **fields)


def second(error: str = MISSING, **fields: Any) -> JobStatus:
    return running(2, **{"ago": 10.0, "restarts": 1, "unproven_since": 1, "failures": [failed(1, error)], **fields})


def reason(status: JobStatus) -> str:
    return next((item.reason for item in status.conditions if item.type == "Failed"), "")


@pytest.mark.parametrize(
    "error",
    [
        MISSING,
        "FileNotFoundError: [Errno 2] No such file or directory: 'train.bin'",
        "SyntaxError: invalid syntax",
        "omegaconf.errors.ConfigKeyError: Missing key lr",
        "AssertionError",
    ],
)
def test_a_start_that_repeats_its_exception_ends_the_job(error: str) -> None:
    status = decided(job(second(error)), failing_again(error)).status
    assert (status.phase, reason(status), status.restarts) == ("Failed", "FailsAtStart", 1)
    message = next(item.message for item in status.conditions if item.type == "Failed")
    assert error in message
    assert message.endswith("; attempt 1 failed in the same way before its first step, so a restart wouldn't help")
    assert [(one.attempt, one.count, one.first_attempt) for one in status.failures] == [(2, 2, 1)]


def test_a_usage_error_of_argparse_ends_the_job() -> None:
    error = "train.py: error: unrecognized arguments: --lrr"
    report = said(0, "Failed", 2, error=error, exit_code=2)
    before = failed(1, message=f"worker 1 (rank 1, pod bert-1) ended with exit code 2: usage: | {error}", exit_code=2)
    assert reason(decided(job(second(failures=[before])), observed(report, attempt=2)).status) == "FailsAtStart"


@pytest.mark.parametrize(
    "error",
    [
        "ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded",
        "TimeoutError: timed out",
        "OSError: [Errno 110] Connection timed out",
        "RuntimeError: NCCL error in: init.cpp: unhandled system error",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
        "torch.distributed.DistNetworkError: The client socket has timed out",
        "ValueError: Error initializing torch.distributed using env:// rendezvous",
        "RuntimeError: something that the device may cause",
        "Killed",
    ],
)
def test_a_cause_that_may_pass_is_tried_again(error: str) -> None:
    status = decided(job(second(error)), failing_again(error)).status
    assert (status.phase, status.restarts) == ("Starting", 2)


@pytest.mark.parametrize(
    "status",
    [
        second(unproven_since=None),
        second(unproven_since=2),
        second("KeyError: 'y'"),
        second(failures=[]),
        # Without progress reports, nobody knows whether this attempt has trained.
        second(ago=3600.0),
    ],
    ids=["a step was finished", "the code is new", "another exception", "the first time", "it may have trained"],
)
def test_other_failures_are_tried_again(status: JobStatus) -> None:
    assert decided(job(status), failing_again()).status.phase != "Failed"


def test_a_rule_decides_before() -> None:
    of = job(second(), failurePolicy={"rules": [{"reasons": ["Error"], "action": "Restart"}]})
    assert decided(of, failing_again()).status.restarts == 2


@pytest.mark.parametrize(("step", "phase"), [(None, "Failed"), (0, "Failed"), (1, "Starting")])
def test_a_script_that_reports_fails_at_its_start_until_a_step_is_finished(step: int | None, phase: str) -> None:
    progress = {0: {0: RankProgress(step=step, section="setup")}}
    around = failing_again(progress=progress, progress_attempt=2, progress_at=NOW - 5)
    status = decided(job(second(ago=3600.0)), around).status
    assert status.phase == phase
    assert status.unproven_since == (1 if phase == "Failed" else None)


def test_a_step_shows_that_the_code_works() -> None:
    around = observed(progress={0: {0: RankProgress(step=1)}}, progress_attempt=1, progress_at=NOW - 5)
    assert decided(job(running(unproven_since=1)), around).status.unproven_since is None


def test_new_code_and_a_request_are_given_two_attempts() -> None:
    code = {"digest": "1" * 64, "configMap": "bert-code"}
    stopped = [said(worker, "Stopped", 2) for worker in (0, 1)]
    before = second(phase="Restarting", stopping=True, code_digest="0" * 64, unproven_since=None)
    assert decided(job(before, code=code), observed(*stopped, attempt=2)).status.unproven_since == 3


# The entries


EXCEPTIONS = st.sampled_from(["KeyError: 'x'", "ValueError: lost", "OSError: gone at 0x7f00"])


@given(st.lists(st.tuples(EXCEPTIONS, st.integers(0, 2)), min_size=1, max_size=60))
def test_identical_failures_in_a_row_are_one_entry(history: list[tuple[str, int]]) -> None:
    failures: list[Failure] = []
    for attempt, (error, worker) in enumerate(history, start=1):
        failures = with_recorded(failures, failed(attempt, error, worker, failed_at=to_text(NOW + attempt)))
    kinds = [error for error, _ in history]
    runs = [place for place in range(len(kinds)) if place == 0 or kinds[place] != kinds[place - 1]][-10:]
    assert [one.first_attempt or one.attempt for one in reversed(failures)] == [place + 1 for place in runs]
    assert sum(one.count or 1 for one in failures) == len(history) - runs[0]
    assert failures[0].attempt == len(history)


@given(st.lists(EXCEPTIONS, max_size=9), EXCEPTIONS)
def test_a_failure_that_is_taken_back_was_never_counted(history: list[str], error: str) -> None:
    failures: list[Failure] = []
    for attempt, each in enumerate(history, start=1):
        failures = with_recorded(failures, failed(attempt, each))
    again = without_newest(with_recorded(failures, failed(len(history) + 1, error)))
    shown = [[(one.attempt, one.first_attempt, one.count) for one in each] for each in (again, failures)]
    assert shown[0] == shown[1]


def test_an_undone_pair_is_the_first_failure_again() -> None:
    first = failed(3, failed_at=to_text(NOW - 100))
    assert without_newest(with_recorded([first], failed(4))) == [first]


def test_provisional_failures_stay_alone() -> None:
    assert len(with_recorded([failed(1)], failed(2, provisional=True))) == 2


def test_addresses_and_ranks_make_no_difference_but_places_do() -> None:
    at, other = failed(1, "OSError: at 0x7f01", worker=0), failed(2, "OSError: at 0x8000", worker=1)
    assert is_same(at, other)
    assert not is_same(at, other.model_copy(update={"location": "train.py:4"}))
    killed = failed(1, "", worker=0, reason="Signal", message="worker 0 (pod bert-0) was killed by signal 9")
    assert not is_same(killed, killed.model_copy(update={"worker": 1}))

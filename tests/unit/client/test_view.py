"""A job has one view, which a notebook shows as a table, and texts of users and programs stay text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from IPython.core.formatters import DisplayFormatter

from tests.unit.client.fakes import FakeTransport, job
from trainmaster.client import JobClient, JobHandle, JobNotFound, TrainingJob
from trainmaster.client.view import job_html, job_text, rate, recovery_sentence, view_of
from trainmaster_operator.api.times import to_text

JOBS = "/apis/trainmaster.dev/v1alpha1/namespaces/default/distributedtrainingjobs"
HOSTILE = '<script>alert(1)</script>\x1b[31m"'
RUNNING: dict[str, Any] = {
    "phase": "Running",
    "attempt": 2,
    "restarts": 1,
    "workers": {"desired": 2, "created": 2, "running": 2},
    "progress": {"step": 30, "totalSteps": 120, "loss": 0.51234, "samplesPerSecond": 1234.5, "etaSeconds": 90},
    "failures": [{"attempt": 1, "reason": "Error", "message": HOSTILE, "failedAt": "2026-11-21T04:00:00Z"}],
}


def test_a_job_is_shown_with_what_it_does_now() -> None:
    shown = view_of(job(**RUNNING))
    assert job_text(shown).splitlines()[:7] == [
        "reviews: Running",
        "  attempt: 2 (1 restart, 0 disruptions)",
        "  workers: 2/2 running",
        "  step: 30/120",
        "  loss: 0.5123",
        "  samples/s: 1,234",
        "  ETA: 90s",
    ]
    assert '<progress value="30" max="120">' in job_html(shown)
    assert shown.progress == "step 30 of 120, 1,234 samples/s"


def failed(seconds_ago: float, **fields: Any) -> dict[str, Any]:
    moment = datetime(2026, 11, 21, 4, 0, tzinfo=UTC) - timedelta(seconds=seconds_ago)
    return {"attempt": 1, "reason": "Error", "message": "ValueError: lost", "failedAt": moment.isoformat(), **fields}


@pytest.mark.parametrize(
    ("phase", "failures", "trouble"),
    [
        ("Running", [failed(12, count=4)], "failed 4 times, most recently 12 s ago: ValueError: lost"),
        (
            "Restarting",
            [failed(12), failed(300)],
            "failed twice in the last 5m, most recently 12 s ago: ValueError: lost",
        ),
        ("Running", [failed(12)], ""),
        ("Running", [failed(12, counted=False, count=4)], ""),
        ("Running", [failed(12), failed(2 * 3600, count=9)], ""),
        ("Running", [failed(900, count=4)], ""),
        ("Succeeded", [failed(12, count=4)], ""),
    ],
)
def test_failures_that_recur_are_trouble_until_the_job_has_run_for_a_while(
    phase: str, failures: list[dict[str, Any]], trouble: str
) -> None:
    view = view_of(job(phase=phase, failures=failures))
    assert view.trouble(datetime(2026, 11, 21, 4, 0, tzinfo=UTC)) == trouble


def test_a_stall_comes_before_a_crash_loop_and_a_notice_and_names_its_section() -> None:
    now = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
    progress = {"step": 3, "notice": "the script reports no progress", "stall": {"since": "2026-11-21T03:59:00Z"}}
    assert view_of(job(phase="Running", progress=progress)).trouble(now) == "no step for 60 s"
    progress["stall"] |= {"section": "evaluate", "usualSeconds": 20, "message": "rank 1 is at eval.py:9"}
    words = "no progress (evaluate) for 60 s (an evaluation takes 20 s): rank 1 is at eval.py:9"
    assert view_of(job(phase="Running", progress=progress, failures=[failed(9, count=3)])).trouble(now) == words
    assert "trouble: the script reports no progress" in job_text(
        view_of(job(phase="Running", progress={**progress, "stall": None}))
    )


@pytest.mark.parametrize("phase", ["Failed", "Succeeded", "Suspended", "Restarting"])
def test_only_a_running_job_has_a_speed_and_an_eta(phase: str) -> None:
    """Notebooks and `why` once showed the last speed of a job that had ended."""
    found = view_of(job(**{**RUNNING, "phase": phase}))
    assert (found.samples_per_second, found.eta_seconds, found.progress) == (None, None, "step 30 of 120")
    assert "samples" not in job_text(found) and "ETA" not in job_text(found)


def test_a_job_that_has_done_its_last_step_has_no_eta() -> None:
    done = {**RUNNING["progress"], "step": 120}
    assert view_of(job(**{**RUNNING, "progress": done})).eta_seconds is None


def test_small_figures_keep_their_digits() -> None:
    assert [rate(each) for each in (5123.4, 12.3, 0.42, None)] == ["5,123", "12", "0.42", ""]
    assert view_of(job(progress={"loss": 0.00001234})).figures["loss"] == "1.234e-05"


def test_a_deadline_ended_a_job_though_a_rank_had_failed_before() -> None:
    """The dashboard's list once named the old failure as the end of the job."""
    ended = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "it took too long"}
    conditions = [{**ended, "lastTransitionTime": "2026-11-21T05:00:00Z"}]
    found = view_of(job(**{**RUNNING, "phase": "Failed", "conditions": conditions}))
    assert found.failure == "DeadlineExceeded: it took too long"
    assert found.last_failure == "it took too long"
    assert found.outcome == "reviews: Failed (DeadlineExceeded: it took too long)"
    restarted = view_of(job(**RUNNING))
    assert (restarted.failure, restarted.outcome) == ("", "reviews: Running")


def at(seconds: float) -> str:
    return to_text(datetime(2026, 11, 21, 4, tzinfo=UTC).timestamp() + seconds)


@pytest.mark.parametrize(
    ("count", "minutes", "lasted", "says"),
    [
        (5, 10, 12, "failed 5 times in the last 10m, most recently 12 s ago: "),
        # The attempt has lasted long enough to show that this was over.
        (5, 10, 400, ""),
        (60, 118, 12, "failed 15 times in the last 28m, most recently 12 s ago: "),
    ],
)
def test_identical_failures_that_recur_are_counted_within_the_last_half_hour(
    count: int, minutes: int, lasted: float, says: str
) -> None:
    message = "ValueError: lost, at train.py:41 in step; rank 1 (worker 1, pod x-1) ended with exit code 1"
    failure = {"attempt": count, "reason": "Error", "message": message, "failedAt": at(0), "count": count}
    failure |= {"firstAttempt": 1, "firstFailedAt": at(-60 * minutes)}
    status = {**RUNNING, "failures": [failure], "attempt": count + 1, "attemptStartTime": at(0)}
    view = view_of(job(**status))
    shown = view.trouble(datetime(2026, 11, 21, 4, tzinfo=UTC) + timedelta(seconds=lasted))
    assert shown == (says + "ValueError: lost, at train.py:41 in step; rank 1 ended with exit code 1" if says else "")
    assert view.failures[0].place == f"attempt {count} ({count} times since attempt 1)"


def test_a_recovery_names_its_phases_in_their_order() -> None:
    times = {"firstStep": 0.5, "joined": 0.2, "assigned": 0.35, "detected": 0, "seconds": 0.96, "repeatedSteps": 1}
    assert recovery_sentence(times) == (
        "recovered in 0.96 s, 1 step repeated: detected 0.00, assigned 0.35, joined 0.20, first step 0.50"
    )
    assert recovery_sentence({"detected": 1.0}) == "" and recovery_sentence({"seconds": 2}) == "recovered in 2.00 s"


def test_a_job_that_trains_without_some_ranks_says_with_whom_and_for_how_long() -> None:
    continued = {"attemptStartTime": "2026-11-21T04:00:00Z", "trainingWith": "3 of 4 workers"}
    now = datetime(2026, 11, 21, 4, 0, 14, tzinfo=UTC)
    assert view_of(job(**{**RUNNING, **continued})).members(now) == "with 3 of 4 workers for 14 s"
    assert view_of(job(**{**RUNNING, **continued, "phase": "Failed"})).members(now) == ""


@pytest.mark.parametrize("value", [None, [], {}, "x" * 10_000, -1, 10**400, float("nan"), True, [None], {"a": {}}])
def test_no_object_breaks_a_view(value: Any) -> None:
    names = ("phase", "progress", "workers", "failures", "conditions", "nodeFailures", "avoidedNodes")
    for raw in ({"metadata": value, "status": value}, {"status": dict.fromkeys(names, value)}):
        found = view_of(raw)
        assert job_text(found) and job_html(found) and found.outcome and found.end and found.figures is not None


def test_what_others_wrote_is_text() -> None:
    html = job_html(view_of(job(HOSTILE, **RUNNING)))
    assert "<script" not in html and "\x1b" not in html
    assert "&lt;script&gt;" in html


def test_a_job_that_was_refused_says_why() -> None:
    condition = {"type": "Failed", "status": "True", "reason": "InvalidSpec", "message": "spec.image: is missing"}
    refused = job(phase="Failed", conditions=[{**condition, "lastTransitionTime": "2026-11-21T04:00:00Z"}])
    assert "failed: spec.image: is missing" in job_text(view_of(refused))


def formatted(transport: FakeTransport) -> dict[str, str]:
    """Returns the job as IPython shows it, by media type."""
    formatter: Any = DisplayFormatter()
    data: dict[str, str] = formatter.format(JobHandle(JobClient("default", transport=transport), "reviews"))[0]
    return data


def test_ipython_takes_the_table_and_a_terminal_the_text() -> None:
    transport = FakeTransport({f"GET {JOBS}/reviews": job(**RUNNING)})
    data = formatted(transport)
    assert data["text/html"].startswith("<div><b>reviews</b>")
    assert data["text/plain"].startswith("reviews: Running")


def test_a_job_that_get_or_wait_returned_is_shown_in_the_same_way_and_printed_on_a_line() -> None:
    shown = TrainingJob.of(job(**RUNNING))
    data = DisplayFormatter().format(shown)[0]  # type: ignore[no-untyped-call]
    assert data["text/html"] == job_html(view_of(shown.raw))
    assert data["text/plain"] == job_text(view_of(shown.raw))
    assert repr(shown) == "TrainingJob('reviews', namespace='default', phase='Running', attempt=2, step=30)"
    waiting = TrainingJob.of(job())
    assert repr([waiting]) == "[TrainingJob('reviews', namespace='default', phase='Pending', attempt=0)]"


@pytest.mark.filterwarnings("error")
def test_a_job_that_is_gone_is_a_sentence() -> None:
    transport = FakeTransport({f"GET {JOBS}/reviews": JobNotFound("there is no such job")})
    data = formatted(transport)
    assert data["text/plain"] == "there is no such job"
    assert "text/html" not in data

"""A notebook shows a job as a table; what users and programs wrote into it stays text."""

from __future__ import annotations

from typing import Any

import pytest
from IPython.core.formatters import DisplayFormatter

from tests.unit.client.fakes import FakeTransport, job
from trainmaster.client import JobClient, JobHandle, JobNotFound, TrainingJob
from trainmaster.client.notebook import job_html, job_text

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
    shown = TrainingJob.of(job(**RUNNING))
    assert job_text(shown).splitlines()[:6] == [
        "reviews: Running",
        "  attempt: 2 (1 restarts, 0 disruptions)",
        "  workers: 2 of 2 running",
        "  step: 30 of 120",
        "  loss: 0.5123",
        "  samples a second: 1,234",
    ]
    assert '<progress value="30" max="120">' in job_html(shown)


def test_what_others_wrote_is_text() -> None:
    html = job_html(TrainingJob.of(job(HOSTILE, **RUNNING)))
    assert "<script" not in html and "\x1b" not in html
    assert "&lt;script&gt;" in html


def test_a_job_that_was_refused_says_why() -> None:
    condition = {"type": "Failed", "status": "True", "reason": "InvalidSpec", "message": "spec.image: is missing"}
    refused = job(phase="Failed", conditions=[{**condition, "lastTransitionTime": "2026-11-21T04:00:00Z"}])
    assert "failed: spec.image: is missing" in job_text(TrainingJob.of(refused))


def formatted(transport: FakeTransport) -> dict[str, str]:
    """What IPython shows of the job."""
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
    assert data["text/html"] == job_html(shown) and data["text/plain"] == job_text(shown)
    assert repr(shown) == "TrainingJob('reviews', namespace='default', phase='Running', attempt=2, step=30)"
    waiting = TrainingJob.of(job())
    assert repr([waiting]) == "[TrainingJob('reviews', namespace='default', phase='Pending', attempt=0)]"


@pytest.mark.filterwarnings("error")
def test_a_job_that_is_gone_is_a_sentence() -> None:
    transport = FakeTransport({f"GET {JOBS}/reviews": JobNotFound("there is no such job")})
    data = formatted(transport)
    assert data["text/plain"] == "there is no such job"
    assert "text/html" not in data

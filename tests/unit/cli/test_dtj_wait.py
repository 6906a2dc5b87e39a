"""`kubectl dtj wait` ends with exit codes that scripts can rely on."""

from __future__ import annotations

import pytest
import typer

from tests.unit.cli.dtj_command import JOBS, RUNNING, condition, run
from tests.unit.client.fakes import FakeTransport, job
from trainmaster.cli.connection import seconds


@pytest.mark.parametrize(("phase", "code"), [("Succeeded", 0), ("Failed", 1)])
def test_wait_exits_by_how_the_job_ended(transport: FakeTransport, phase: str, code: int) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(**{**RUNNING, "phase": phase})}
    result = run("wait", "reviews")
    assert result.exit_code == code
    assert f"reviews: {phase}" in result.output


def test_wait_says_why_a_job_failed(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(**{**RUNNING, "phase": "Failed"})}
    assert "reviews: Failed (OOMKilled of rank 5, exit code 137)" in run("wait", "reviews").output


def test_wait_says_why_a_job_failed_that_no_rank_failed(transport: FakeTransport) -> None:
    over = condition("Failed", "True", "DeadlineExceeded", "active for longer than 60 s")
    transport.answers = {f"GET {JOBS}/reviews": job(**{**RUNNING, "phase": "Failed", "conditions": [over]})}
    assert "reviews: Failed (DeadlineExceeded: active for longer than 60 s)" in run("wait", "reviews").output


@pytest.mark.parametrize(("phase", "code"), [("Succeeded", 0), ("Failed", 1)])
def test_submit_says_as_wait_does_how_the_job_ended(transport: FakeTransport, phase: str, code: int) -> None:
    ended = job(**{**RUNNING, "phase": phase})
    transport.answers = {f"POST {JOBS}": job(), f"GET {JOBS}/reviews": ended}
    submitted = run("submit", "--name", "reviews", "--image", "i", "--wait", "--", "make")
    waited = run("wait", "reviews")
    assert (submitted.exit_code, submitted.stdout.splitlines()[1:]) == (code, waited.stdout.splitlines())
    assert f"reviews: {phase}" in submitted.stdout and phase not in submitted.stderr


@pytest.mark.parametrize(
    ("phase", "wanted", "code"),
    [("Succeeded", "running", 0), ("Succeeded", "failed", 1), ("Succeeded", "Suspended", 1), ("Failed", "failed", 0)],
)
def test_wait_for_a_phase_that_cant_come_any_more_fails(
    transport: FakeTransport, phase: str, wanted: str, code: int
) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(phase=phase)}
    assert run("wait", "reviews", "--for", wanted).exit_code == code


def test_wait_refuses_a_phase_and_a_time_that_are_none(transport: FakeTransport) -> None:
    for wrong in (["--for", "Succeded"], ["--timeout", "soon"], ["--timeout", ""]):
        assert run("wait", "reviews", *wrong).exit_code == 2
    transport.answers = {f"GET {JOBS}/reviews": job(phase="Running")}
    assert "timed out after 0 s" in run("wait", "reviews", "--timeout", "0s").output


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0", 0.0),
        ("30", 30.0),
        ("2.5", 2.5),
        ("30s", 30.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("2h45m", 9900.0),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("1ms", 0.001),
        ("1m1ms", 60.001),
        ("250us", 0.00025),
        ("250\u00b5s", 0.00025),
        ("5ns", 5e-9),
    ],
)
def test_durations_are_parsed_as_kubectl_parses_them(text: str, wanted: float) -> None:
    assert seconds(text) == wanted


@pytest.mark.parametrize("text", ["", "soon", "s", "1h30", "-1s", "1 s", "1d", "1e3", "\u0661s", "9" * 400])
def test_what_kubectl_takes_for_no_duration_is_none(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        seconds(text)


def test_wait_exits_with_3_when_the_time_is_over(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(phase="Running")}
    result = run("wait", "reviews", "--timeout", "0")
    assert (result.exit_code, result.output) == (3, "error: timed out after 0 s: job reviews is still Running\n")


@pytest.mark.parametrize(("second", "code"), [("Succeeded", 0), ("Failed", 1)])
def test_several_jobs_are_waited_for_and_each_is_reported(transport: FakeTransport, second: str, code: int) -> None:
    transport.answers = {f"GET {JOBS}/a": job("a", phase="Succeeded"), f"GET {JOBS}/b": job("b", phase=second)}
    result = run("wait", "a", "b")
    assert (result.exit_code, result.output) == (code, f"a: Succeeded\nb: {second}\n")


def test_the_time_is_that_of_all_jobs(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}/{name}": job(name, phase="Running") for name in ("a", "b")}
    result = run("wait", "a", "b", "--timeout", "0")
    assert (result.exit_code, result.output.count("error: ")) == (3, 1)

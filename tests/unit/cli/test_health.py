"""Views say since when the API server or the operator is silent, and a lost right leaves nothing on the screen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.cli.dtj_command import JOBS, PODS, RUNNING, run
from tests.unit.cli.test_hostile_text import a_terminal
from tests.unit.client.fakes import FakeTransport, job
from trainmaster.cli import health, live
from trainmaster.cli.console import SafeConsole
from trainmaster.cli.health import Health
from trainmaster.client import JobClient, NoCluster, NotAllowed, TrainingJob, operator_sign, patience
from trainmaster.client.blocking import run as finished
from trainmaster_operator.api.times import to_micro_text

LEASE = "GET /apis/coordination.k8s.io/v1/namespaces/trainmaster-system/leases/trainmaster-operator"
DOWN = NoCluster("The cluster at x doesn't answer: Connection refused.")
SILENT = "The operator hasn't been seen since "


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_sign, "CONFIRM_SECONDS", 0.01)
    monkeypatch.setattr(patience, "FIRST_SECONDS", 0.001)
    monkeypatch.setattr(health, "LOOK_SECONDS", 0.05)


def lease(age: float) -> dict[str, Any]:
    return {"spec": {"renewTime": to_micro_text(time.time() - age)}}


@pytest.mark.parametrize("command", [("list",), ("status", "reviews"), ("status", "reviews", "-o", "wide"), ("top",)])
def test_each_view_says_that_the_operator_is_gone(transport: FakeTransport, command: tuple[str, ...]) -> None:
    transport.answers = {
        f"GET {JOBS}": {"items": [job(**RUNNING)], "metadata": {}},
        f"GET {JOBS}/reviews": job(**RUNNING),
        f"GET {PODS}": {"items": []},
        LEASE: lease(720),
    }
    result = run(*command)
    assert result.exit_code == 0 and result.stderr.startswith(SILENT)
    assert "(12m ago): phases, steps and figures are as of then." in result.stderr
    transport.answers[LEASE] = lease(1)
    assert SILENT not in run(*command).output


def test_a_wait_outlasts_an_outage_and_reports_it(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}/reviews": [job(**RUNNING), job(**RUNNING), DOWN, DOWN, job(phase="Succeeded")]}
    result = run("wait", "reviews")
    assert (result.exit_code, result.stdout) == (0, "reviews: Succeeded\n")
    assert result.stderr.splitlines()[0] == f"{DOWN} Trying again."


def test_a_wait_for_a_job_that_no_operator_accepts_names_what_to_look_at(
    transport: FakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "UNSEEN_SECONDS", 0.05)
    transport.answers = {f"GET {JOBS}/reviews": job()}
    result = run("wait", "reviews", "--timeout", "1")
    assert result.exit_code == 3
    assert "`kubectl dtj why reviews -n default` names the cause" in result.stderr


def test_the_picture_stays_marked_as_stale_until_the_cluster_answers_again(
    transport: FakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(patience, "FIRST_SECONDS", 0.1)
    transport.answers = {f"GET {JOBS}/reviews": [job(**RUNNING), DOWN, job(phase="Succeeded")], LEASE: lease(720)}
    watched = Health(JobClient("default", transport=transport), is_drawn=True)

    def views() -> Iterator[live.View]:
        for _ in range(2):
            found = watched.jobs.get("reviews")
            watched.shown = [found]
            yield lambda found=found: f"reviews is {found.phase}"  # type: ignore[misc]
            time.sleep(0.3)

    with a_terminal(monkeypatch) as written:
        live.draw(SafeConsole(), views(), watched.beside)
        drawn = written()
    stale = drawn.index("The API server hasn't answered since ")
    assert "reviews is Running" in drawn[stale:] and SILENT in drawn
    assert "hasn't answered" not in drawn[drawn.rindex("reviews is Succeeded") :]


@pytest.mark.parametrize("full", [False, True])
def test_a_lost_right_leaves_nothing_on_the_screen(monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    def views() -> Iterator[live.View]:
        yield lambda: "secret-job"
        time.sleep(0.1)
        raise NotAllowed("You may not list jobs.")

    with a_terminal(monkeypatch) as written:
        with pytest.raises(NotAllowed):
            (live.draw_full_screen if full else live.draw)(SafeConsole(), views())
        drawn = written()
    # The picture's line is erased, or stays on the alternate screen that the terminal has left.
    assert "secret-job" not in drawn[max(drawn.rfind("\x1b[2K"), drawn.rfind("\x1b[?1049l")) :]
    assert "secret-job" in drawn


def test_an_outage_is_no_silence_of_the_operator(transport: FakeTransport) -> None:
    old = lease(720)
    transport.answers = {LEASE: [old, old, DOWN, old]}
    sign = operator_sign.OperatorSign(JobClient("default", transport=transport).asynchronous.transport)
    raw = [TrainingJob.of(job(**RUNNING)).raw]
    assert finished(sign.look(raw)) is None
    time.sleep(0.02)
    assert finished(sign.look(raw)) is not None
    with pytest.raises(NoCluster):
        finished(sign.look(raw))
    assert finished(sign.look(raw)) is None, "the operator couldn't renew its Lease either"

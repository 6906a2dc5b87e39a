"""`kubectl dtj status --watch` prints a row for each change, and a clock."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest

from tests.unit.cli.dtj_command import JOBS, RUNNING, run
from tests.unit.client.fakes import FakeTransport, event, job
from trainmaster.cli import live
from trainmaster.cli.console import SafeConsole
from trainmaster.client import NotAllowed


def test_watching_into_a_pipe_is_a_row_for_each_change_that_shows(transport: FakeTransport) -> None:
    running = job(**RUNNING, version="2")
    transport.answers = {f"GET {JOBS}/reviews": job(version="1")}
    transport.streams = {
        JOBS: [[event("MODIFIED", each) for each in (running, running, job(phase="Succeeded", version="3"))]]
    }
    result = run("status", "reviews", "-w")
    assert [line.split()[:2] for line in result.stdout.splitlines()] == [
        ["NAME", "PHASE"],
        ["reviews", "Pending"],
        ["reviews", "Running"],
        ["reviews", "Succeeded"],
    ]
    assert result.exit_code == 0


def test_watching_all_jobs_shows_new_changed_and_deleted_ones(transport: FakeTransport) -> None:
    changes = [
        event("ADDED", job("b", version="5")),
        event("MODIFIED", job("a", phase="Running", version="6")),
        event("DELETED", job("a", phase="Running", version="7")),
    ]
    first = {"items": [job("a", version="4")], "metadata": {"resourceVersion": "4"}}
    later = {"items": [job("c", phase="Starting")], "metadata": {}}
    transport.answers = {f"GET {JOBS}": [first, first, later, NotAllowed("You may not list jobs.")]}
    transport.streams = {JOBS: [changes, []]}
    result = run("status", "-w")
    assert [line.split()[:2] for line in result.stdout.splitlines()[1:]] == [
        ["a", "Pending"],
        ["b", "Pending"],
        ["a", "Running"],
        ["a", "Deleted"],
        ["b", "Deleted"],
        ["c", "Starting"],
    ]
    assert (result.exit_code, result.stderr) == (1, "error: You may not list jobs.\n")


def test_watching_as_json_is_a_document_in_a_line_for_each_change(transport: FakeTransport) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(**RUNNING)}
    transport.streams = {JOBS: [[event("MODIFIED", job(phase="Succeeded", version="3"))]]}
    documents = [json.loads(line) for line in run("status", "reviews", "-w", "-o", "json").stdout.splitlines()]
    assert [document["status"]["phase"] for document in documents] == ["Running", "Succeeded"]
    assert documents[0]["status"] == RUNNING


@pytest.mark.parametrize("output", [[], ["-o", "json"]])
def test_watching_a_job_that_is_deleted_ends_with_1(transport: FakeTransport, output: list[str]) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(**RUNNING)}
    transport.streams = {JOBS: [[event("DELETED", job(**RUNNING))]]}
    result = run("status", "reviews", "-w", *output)
    assert (result.exit_code, result.stderr) == (1, "error: Job reviews was deleted while it was watched.\n")


def test_the_clock_moves_between_events_and_asks_the_cluster_nothing(
    transport: FakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "TICK_SECONDS", 0.001)
    drawn: list[str] = []
    ended = threading.Event()

    def draw() -> str:
        drawn.append("")
        if len(drawn) == 5:
            ended.set()
        return "now"

    def views() -> Iterator[live.View]:
        yield draw
        assert ended.wait(20)

    live.draw(SafeConsole(), views())
    assert len(drawn) >= 5
    assert transport.asked == []

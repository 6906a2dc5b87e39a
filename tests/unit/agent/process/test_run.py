"""An attempt ends its own processes and leaves those of the next attempt alone (`process/run`)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.signer import GOOD, environment
from trainmaster_operator.agent.loop import Loop
from trainmaster_operator.agent.planner.actions import Regroup
from trainmaster_operator.agent.process import children
from trainmaster_operator.agent.process.launcher import Launch
from trainmaster_operator.agent.process.output import Printers
from trainmaster_operator.agent.process.rank_processes import RankStarts
from trainmaster_operator.agent.process.run import RunProcesses
from trainmaster_operator.agent.settings import read_settings
from trainmaster_operator.wire.assignment import Assignment

SILENT = cast(Printers, SimpleNamespace(say=lambda _text: None))


class NoLoop:
    """Replaces the event loop, and only remembers the delayed calls."""

    def __init__(self) -> None:
        self.later: list[Any] = []

    def call_later(self, _seconds: float, call: Any) -> None:
        self.later.append(call)


def test_the_process_that_served_the_store_ends_with_the_first_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = read_settings(
        {**environment(), "TRAINMASTER_WORKER": "0", "TRAINMASTER_STATE_DIR": str(tmp_path)},
    )
    killed: list[int] = []
    monkeypatch.setattr(children, "send", lambda pids, _number: killed.extend(pids))
    first = Assignment.parse(GOOD)
    run = RunProcesses(cast(Loop, NoLoop()), RankStarts(Launch(settings, first, 0, {}), ["x"]), SILENT, [].append)
    Path(run.folder).mkdir(parents=True)
    run._ranks.store_pid = 4_194_305
    for attempt in (first.attempt + 1, first.attempt + 2):
        run.regroup(Regroup(first._replace(attempt=attempt, continues=first.attempt), 0, (4_194_307,), ()))
    assert killed == [4_194_307, 4_194_305, 4_194_307]


@pytest.mark.parametrize("answered_first", [True, False])
def test_an_attempt_that_has_ended_kills_nothing_of_the_next_one(
    answered_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the order to fork its ranks may arrive after the attempt's end, or after its wait is over."""
    settings = read_settings(
        {**environment(), "TRAINMASTER_WORKER": "0", "TRAINMASTER_STATE_DIR": str(tmp_path)},
    )
    below: list[int] = [4_194_305]
    killed: list[int] = []
    monkeypatch.setattr(children, "descendants", lambda _root: list(below))
    monkeypatch.setattr(children, "send", lambda pids, _number: killed.extend(pids))
    loop, put = NoLoop(), []
    starts = RankStarts(Launch(settings, Assignment.parse(GOOD), 0, {}), ["x"])
    run = RunProcesses(cast(Loop, loop), starts, SILENT, put.append)
    if answered_first:
        run._ordered = {0}
        run._forked(None, "the warm process has ended by signal 9")
        assert killed == [4_194_305], "which it may have forked"
    below.clear()
    run.sweep()
    assert list(map(repr, put)) == ["RunEmptied()"]
    killed.clear()
    below.append(4_194_306)
    for call in loop.later:
        call()
    if not answered_first:
        run._ordered = {0}
        run._forked(None, "it was ended while it started")
    assert not killed and list(map(repr, put)) == ["RunEmptied()"]

"""In forty simulated hangs with steps of 20 ms, the ranks' reports are as new as the values that decide."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import trainloop.progress as reporting
from tests.signer import environment
from tests.unit.agent.hang.test_observation import a_run
from trainloop.progress import Progress
from trainmaster_operator.agent.hang.hung_rank import classify_stall
from trainmaster_operator.agent.hang.observation import POLL_SECONDS, Observation
from trainmaster_operator.agent.planner.state import Now
from trainmaster_operator.agent.settings import read_settings
from trainmaster_operator.wire.ranks import RankState

STEP_SECONDS, LIMIT = 0.02, 24.0


class SparingScript:
    """Writes the file at most every 0.2 s, as a user's script may, and has no counter."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path, self._clock, self._written = path, clock, -1.0

    def begin(self, step: int) -> None:
        """Report nothing before the first step."""

    def step(self, step: int) -> None:
        """Report a step if the last report is old enough."""
        if self._clock.now - self._written >= 0.2:
            self._path.write_text(json.dumps({"step": step}))
            self._written = self._clock.now


class Clock:
    """Plays the ranks' clock, which advances only by events. It replaces the module `time` for progress reports."""

    def __init__(self, now: float) -> None:
        self.now = now

    def monotonic(self) -> float:
        """Returns this clock's seconds."""
        return self.now

    time = monotonic


def states_after_a_hang(folder: Path, clock: Clock, ranks: list[Any]) -> dict[int, RankState]:
    """Both ranks finish step 79 at slightly different times; rank 1 then sleeps in its forward pass, and rank 0 waits
    for it.
    """
    environ = {"TRAINMASTER_WORKER": "0", "NPROC_PER_NODE": "2", "TRAINMASTER_PROGRESS_TIMEOUT": f"{LIMIT:g}"}
    settings = read_settings({**environment(), **environ, "TRAINMASTER_STATE_DIR": str(folder)})
    started = clock.now
    observation = Observation(settings, a_run(settings, folder / "attempt-1", 1, 0, 2, started))
    apart = [random.random() * STEP_SECONDS / 2 for _ in ranks]
    events = [(started, rank, 0) for rank in range(2)]
    for step in range(1, 80):
        for rank in range(2):
            events.append((started + step * STEP_SECONDS + apart[rank] + random.random() * 0.002, rank, step))
    due = started + random.random() * POLL_SECONDS
    for at, rank, step in sorted(events):
        while due < at:
            clock.now = due
            observation.poll(True, Now(due, due))
            due += POLL_SECONDS
        clock.now = at
        (ranks[rank].step if step else ranks[rank].begin)(step)
    decided = clock.now + LIMIT + 6.0
    while due < decided:
        observation.poll(True, Now(due, due))
        due += POLL_SECONDS
    observation.refresh(decided)
    stood = {0: "collective", 1: "nothing"}
    return {rank: state._replace(waits=stood[rank]) for rank, state in observation.states(decided).items()}


@pytest.mark.parametrize("counts", [True, False], ids=["trainloop", "a script that spares the disk"])
def test_the_rank_that_hangs_is_named_in_forty_of_forty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: bool
) -> None:
    random.seed(7)
    wrong = []
    for trial in range(40):
        clock = Clock(100.0 + random.random() * 10)
        monkeypatch.setattr(reporting, "time", clock)
        folder = tmp_path / str(trial)
        (folder / "attempt-1").mkdir(parents=True)
        paths = [folder / "attempt-1" / f"progress.{rank}" for rank in range(2)]
        ranks = [Progress(path) if counts else SparingScript(path, clock) for path in paths]
        states = states_after_a_hang(folder, clock, ranks)
        found = classify_stall(states)
        assert found is not None and not found.patience
        if counts:
            assert [state.step for state in states.values()] == [79, 79]
        if found.rank != 1:
            wrong.append((trial, found.message))
    assert wrong == []

"""torch itself counts a rank's collectives: its flight recorder is asked, now and then, how far a silent rank is.

A rank that says nothing of its progress may be in one collective for longer than any step may take. That is a hang
whatever the script does: torch's own limit for it is 10 minutes with NCCL (torch 2.13, `default_pg_nccl_timeout`).
Nothing else that is counted is: a rank without collectives may be at anything. Only ranks that answer by themselves
are asked (`hang/recorder`: NCCL's process groups do, and ranks that serve the pipe), one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Optional

from trainmaster_operator.agent.hang.rank_states import Waiting
from trainmaster_operator.agent.hang.recorder import ANSWER_SECONDS, Recorded, Recorder
from trainmaster_operator.agent.process.rank_processes import RankProcess

LEAST_SECONDS, MOST_SECONDS = 1.0, 60.0
"""Between two questions to a rank: a tenth of the limit, within these. An answer costs the rank 5 ms in a thread of
torch's own, and the agent 10 ms (measured with 2,000 collectives on record)."""
PART_OF_LIMIT = 10


class Counters:
    """Counters has what the ranks of one attempt have answered. `ranks` returns those that live."""

    def __init__(self, ranks: Callable[[], Sequence[RankProcess]], limit: float) -> None:
        self._ranks = ranks
        self._every = min(max(limit / PART_OF_LIMIT, LEAST_SECONDS), MOST_SECONDS)
        self._asked: dict[int, float] = {}
        self._recorder: Optional[tuple[int, Recorder, float]] = None
        self._last: dict[int, Recorded] = {}
        self._since: dict[int, float] = {}
        """When a rank was first seen to be where it was when it answered last."""
        self._answered_at: dict[int, float] = {}
        self.moved_at: dict[int, float] = {}
        """When a rank was last seen to have gone on since the question before, on the monotonic clock."""

    def poll(self, silent: Iterable[int], now: float) -> None:
        """Read the answer that is awaited, or ask one of the ranks that have been silent for long."""
        if self._recorder is not None:
            rank, recorder, asked_at = self._recorder
            answer = recorder.answer()
            if answer is not None:
                self._take(rank, answer, now)
            if answer is None and now - asked_at < ANSWER_SECONDS:
                return
            self._recorder = None
        due = [rank for rank in silent if now - self._asked.get(rank, -self._every) >= self._every]
        if not due:
            return
        rank = min(due, key=lambda each: self._asked.get(each, 0.0))
        self._asked[rank] = now
        process = next((each for each in self._ranks() if each.rank == rank), None)
        if process is not None:
            recorder = Recorder(process.environ, rank)
            if recorder.ask():
                self._recorder = rank, recorder, now

    def waiting(self, rank: int) -> Optional[Waiting]:
        """Returns the collective that a rank was in when it was asked last; None where it was in none, or can't say."""
        last = self._last.get(rank)
        if last is None or last.oldest_open is None:
            return None
        return Waiting(last.oldest_open > 0, self._answered_at[rank] - self._since[rank], last.timeout)

    def _take(self, rank: int, answer: Recorded, now: float) -> None:
        last = self._last.get(rank)
        moved = last is None or (last.newest, last.oldest_open) != (answer.newest, answer.oldest_open)
        if moved and now - self._answered_at.get(rank, -math.inf) < 2 * self._every + ANSWER_SECONDS:
            self.moved_at[rank] = now
        if moved:
            self._since[rank] = now
        self._last[rank], self._answered_at[rank] = answer, now

"""The leader's stall diagnosis: it finds out which rank of the whole job stopped first. Pure.

A worker whose rank is over its limit says `stalled`; the leader asks all workers for evidence (`collect`), waits for
their answers for ANSWER_SECONDS at most, and sends all of them the conclusion: `hung`, and the worker with that rank
reports it, or `patience`. A worker from which nothing has come since, and which isn't known to have come further than
the others, is named before them: its leader reports it as lost, because it can't. Where no conclusion comes (no leader,
or it is what hangs), the worker that stalled reports by itself (`stall`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, Optional, Union

from trainmaster_operator.agent.hang.rank_states import classify_stall, is_stopped, steps_of
from trainmaster_operator.wire.joining import Collect, Hung, Patience
from trainmaster_operator.wire.limits import MAX_EVIDENCE_BYTES
from trainmaster_operator.wire.ranks import RankState
from trainmaster_operator.wire.stream import EvidenceLine

ANSWER_SECONDS = 4.0
"""A second more than the slowest evidence takes (`recorder`)."""
MAX_KEPT_EVIDENCE_BYTES = 4_194_304
"""What the leader keeps of all workers' evidence of an attempt."""


class Silent(NamedTuple):
    """Silent has the workers that give no answer and are named for it."""

    attempt: int
    workers: tuple[int, ...]
    message: str


Conclusion = Union[Hung, Patience, Silent]


class Diagnosis:
    """Diagnosis asks one question at a time, about one attempt."""

    def __init__(self) -> None:
        self.question: Optional[Collect] = None
        """What all workers are asked at present, and one that joins at once."""
        self.asked_at = 0.0
        self.deadline = math.inf
        """When the diagnosis is concluded with the answers that are there, on the monotonic clock."""
        self._answered: set[int] = set()
        self._ranks: dict[int, RankState] = {}
        self._worker_of: dict[int, int] = {}
        """Who has answered for a rank: nobody answers for another worker's."""

    def begin(self, attempt: int, workers: int, now: float) -> Optional[Collect]:
        """Returns the question to ask the attempt's workers, so many; None where it is being asked already."""
        if self.question is not None and self.question.attempt == attempt:
            return None
        self._answered, self._ranks, self._worker_of = set(), {}, {}
        self.asked_at, self.deadline = now, now + ANSWER_SECONDS
        size = min(MAX_EVIDENCE_BYTES, MAX_KEPT_EVIDENCE_BYTES // max(workers, 1))
        self.question = Collect(attempt, size)
        return self.question

    def add(self, worker: int, line: EvidenceLine) -> None:
        """Add a worker's answer; one with many ranks comes in several lines."""
        if self.question is None or line.attempt != self.question.attempt:
            return
        for rank, state in line.ranks.items():
            if self._worker_of.setdefault(rank, worker) == worker:
                self._ranks[rank] = state
        if not line.more:
            self._answered.add(worker)

    def unanswered(self, workers: frozenset[int]) -> frozenset[int]:
        """Returns those of the attempt's workers that haven't answered."""
        return workers - self._answered

    def close(self) -> None:
        """End without a conclusion: the attempt is over."""
        self.question, self.deadline = None, math.inf

    def conclude(self, silent: Mapping[int, Optional[int]]) -> Optional[Conclusion]:
        """Close, and return what the answers say; None where no rank is over its limit.

        `silent`: the workers without an answer, and the steps of each by its last progress: -1 where it never said,
        None where something else has come from it since it was asked.
        """
        question = self.question
        self.close()
        found = classify_stall(self._ranks)
        if found is None or question is None:
            return None
        if found.patience:
            return Patience(question.attempt, round(found.patience, 3))
        message = found.message
        if silent:
            message = f"no answer from worker {', '.join(map(str, sorted(silent)[:8]))}\n{message}"
            reached = steps_of(self._ranks[found.rank])
            first = tuple(sorted(worker for worker, steps in silent.items() if steps is not None and steps <= reached))
            if first and not any(map(is_stopped, self._ranks.values())):
                return Silent(question.attempt, first, message)
        return Hung(question.attempt, found.rank, message)

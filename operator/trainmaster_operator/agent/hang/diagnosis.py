"""The leader and the workers together find the rank of the job that stopped first in a stall. Pure.

A worker whose rank is over its limit sends `stalled`. The leader asks all workers for evidence (`collect`), waits at
most ANSWER_SECONDS for their answers, and sends all of them the conclusion. This is `hung`, which the worker with that
rank reports, or `patience`. If a worker has sent nothing since the question, and isn't known to be ahead of the others,
it is blamed first, and the leader reports it as lost.

If a leader doesn't answer, the worker leaves it and asks the next leader. If there is no conclusion within
ALONE_SECONDS, the worker judges by its own ranks alone, because reporting the wrong rank is better than reporting no
hang.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Optional, Union

from trainmaster_operator.agent.hang.hung_rank import classify_stall, is_over, is_stopped, steps_of
from trainmaster_operator.agent.planner.actions import SendToLeader
from trainmaster_operator.agent.planner.state import Now
from trainmaster_operator.agent.process.stacks import shortened
from trainmaster_operator.wire.joining import Collect, Hung, Patience, Stalled
from trainmaster_operator.wire.limits import MAX_EVIDENCE_BYTES
from trainmaster_operator.wire.ranks import RankState
from trainmaster_operator.wire.stream import EvidenceLine

ANSWER_SECONDS = 4.0
"""One second longer than the slowest evidence takes (`recorder`)."""
MAX_KEPT_EVIDENCE_BYTES = 4_194_304
"""The limit of all workers' evidence of an attempt that the leader keeps."""


class SilentWorkers(NamedTuple):
    """SilentWorkers contains the workers that are blamed for not answering."""

    attempt: int
    workers: tuple[int, ...]
    message: str


class Diagnosis:
    """Diagnosis asks one question at a time, about one attempt."""

    def __init__(self) -> None:
        self.question: Optional[Collect] = None
        """The present question to all workers, including workers that join later."""
        self.asked_at = 0.0
        self.deadline = math.inf
        """When the diagnosis ends with the answers received so far, on the monotonic clock."""
        self._answered: set[int] = set()
        self._ranks: dict[int, RankState] = {}
        self._worker_of: dict[int, int] = {}
        """The worker that answered for each rank, so that no other worker answers for it."""

    def begin(self, attempt: int, workers: int, now: float) -> Optional[Collect]:
        """Returns the question for the attempt's `workers` workers; None if it has been asked already."""
        if self.question is not None and self.question.attempt == attempt:
            return None
        self._answered, self._ranks, self._worker_of = set(), {}, {}
        self.asked_at, self.deadline = now, now + ANSWER_SECONDS
        size = min(MAX_EVIDENCE_BYTES, MAX_KEPT_EVIDENCE_BYTES // max(workers, 1))
        self.question = Collect(attempt, size)
        return self.question

    def add(self, worker: int, line: EvidenceLine) -> None:
        """Add a worker's answer; many ranks need several lines."""
        if self.question is None or line.attempt != self.question.attempt:
            return
        for rank, state in line.ranks.items():
            if self._worker_of.setdefault(rank, worker) == worker:
                self._ranks[rank] = state
        if not line.more:
            self._answered.add(worker)

    def unanswered(self, workers: frozenset[int]) -> frozenset[int]:
        return workers - self._answered

    def close(self) -> None:
        """End without a conclusion, because the attempt is over."""
        self.question, self.deadline = None, math.inf

    def conclude(self, silent: Mapping[int, Optional[int]]) -> Optional[Union[Hung, Patience, SilentWorkers]]:
        """Close, and return the conclusion; None if no rank is over its limit.

        `silent` maps each worker without an answer to its steps, by its last progress. The steps are -1 if the worker
        never reported any, and None if it has sent anything else since the question.
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
                return SilentWorkers(question.attempt, first, message)
        return Hung(question.attempt, found.rank, message)


STATE_BYTES = 250
"""The bytes that a rank's state takes in a line, without the rank's text."""
ALONE_SECONDS = ANSWER_SECONDS + 1.0
REJOIN_SECONDS = 2.0
"""The time until all workers have found the next leader: each unresponsive host costs a second (network/joining.py)."""


class CollectEvidence(NamedTuple):
    """Collect the evidence of this worker's ranks."""


class LeaveLeader(NamedTuple):
    """Try to join another leader, because the present one doesn't answer in a stall."""


class FailHung(NamedTuple):
    """End the attempt with a hang, and blame this rank of the worker."""

    rank: int
    message: str


StallAction = Union[SendToLeader, CollectEvidence, LeaveLeader, FailHung]


def within(ranks: Mapping[int, RankState], size: int) -> dict[int, RankState]:
    """Returns a worker's ranks with their texts shortened to `size` bytes together."""
    share = max(size // max(len(ranks), 1) - STATE_BYTES, 0)
    return {rank: state._replace(text=shortened(state.text, share)) for rank, state in ranks.items()}


class Stall:
    """Stall handles an attempt's stalls on a worker. `leader` is the leading worker's index, None if unknown."""

    def __init__(self, attempt: int, worker: int, ranks: range) -> None:
        self._attempt, self._worker, self._own = attempt, worker, ranks
        self._text_bytes = MAX_EVIDENCE_BYTES
        self._collecting = False
        self._collected: Optional[Mapping[int, RankState]] = None
        self._quiet_until = -math.inf
        """The earliest time for a new stall, on the monotonic clock."""
        self._has_leader = False
        self._answered = False
        self._left_leader = False
        self._rejoining = False
        self.deadline = math.inf
        """When `tick` is due, on the monotonic clock."""

    def observe(self, ranks: Iterable[RankState], leader: Optional[int], now: float) -> list[StallAction]:
        """Begin if a rank of this worker is over its limit, and no stall is being diagnosed."""
        if now < self._quiet_until or not any(map(is_over, ranks)):
            return []
        return self._begin(leader, now)

    def receive(self, message: Union[Collect, Hung, Patience], now: float) -> list[StallAction]:
        """Handle the leader's next step of the diagnosis."""
        self._answered = True
        if isinstance(message, Collect):
            self._text_bytes = min(message.bytes, MAX_EVIDENCE_BYTES)
            return self._collect(again=True)
        if isinstance(message, Patience):
            self._wait(message.seconds, now)
            return []
        self.deadline = math.inf
        return self._fail(message.rank, message.message)

    def collected(self, ranks: Mapping[int, RankState], now: Now) -> list[StallAction]:
        """Handle the collected evidence. Without a leader to wait for, this worker judges at once."""
        if self._collecting:
            self._collecting, self._collected = False, ranks
        actions: list[StallAction] = [SendToLeader(self.evidence_line(ranks, now.wall))]
        if self.deadline < math.inf and not self._rejoining and not self._has_leader:
            actions += self._judge(None, now.steady)
        return actions

    def evidence_line(self, ranks: Mapping[int, RankState], wall: float) -> EvidenceLine:
        return EvidenceLine(self._attempt, self._worker, within(ranks, self._text_bytes), wall)

    def tick(self, leader: Optional[int], now: float) -> list[StallAction]:
        if now < self.deadline:
            return []
        return self._begin(leader, now) if self._rejoining else self._judge(leader, now)

    def _begin(self, leader: Optional[int], now: float) -> list[StallAction]:
        self._quiet_until, self._answered, self._rejoining = math.inf, False, False
        self._has_leader = leader is not None
        self.deadline = now + ALONE_SECONDS
        return [SendToLeader(Stalled(self._attempt)), *self._collect(again=False)]

    def _collect(self, *, again: bool) -> list[StallAction]:
        if self._collecting or (self._collected is not None and not again):
            return []
        self._collecting, self._collected = True, None
        return [CollectEvidence()]

    def _judge(self, leader: Optional[int], now: float) -> list[StallAction]:
        """Ask the next leader, or conclude from this worker's own ranks, because no conclusion has arrived."""
        self.deadline = math.inf
        # If this worker leads, it can't leave its leader.
        another = leader is not None and leader != self._worker
        if self._has_leader and not self._answered and not self._left_leader and another:
            self._left_leader = self._rejoining = True
            self.deadline = now + REJOIN_SECONDS
            return [LeaveLeader()]
        found = classify_stall(self._collected or {})
        if found is not None and found.patience:
            self._wait(found.patience, now)
        elif found is not None:
            return self._fail(found.rank, found.message)
        return []

    def _wait(self, seconds: float, now: float) -> None:
        """Wait until the time of a rank's long operation is over before asking again."""
        self._collecting, self._collected = False, None
        self._quiet_until = now + seconds
        self.deadline = math.inf

    def _fail(self, rank: int, message: str) -> list[StallAction]:
        # Only a rank whose evidence was requested here can be reported, because the report contains the evidence.
        asked = self._collecting or self._collected is not None
        return [FailHung(rank, message)] if asked and rank in self._own else []

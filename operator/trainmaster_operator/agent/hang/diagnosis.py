"""The leader and the workers together find the rank of the job that stopped first in a stall. Pure.

A worker whose rank is over its limit sends `stalled`. The leader asks all workers for evidence (`collect`), waits at
most ANSWER_SECONDS for their answers, and sends all of them the conclusion. This is `hung`, which the worker with that
rank reports, or `patience`. If a worker has sent nothing since the question, and isn't known to be ahead of the others,
it is blamed first, and the leader reports it as lost.

The leader conducts a second diagnosis, with the same question and classification, when a rank exceeds only the learnt
limit (`progress/usual`). Its conclusion informs people and has no other consequence (`Notice`).

If a leader doesn't answer, the worker leaves it and asks the next leader. If there is no conclusion within
ALONE_SECONDS, the worker judges by its own ranks alone, because reporting the wrong rank is better than reporting no
hang.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Optional, Union

from trainmaster_operator.agent.hang.hung_rank import as_notice, classify_stall, is_over, is_stopped, steps_of
from trainmaster_operator.agent.planner.actions import SendToLeader
from trainmaster_operator.agent.planner.state import Now
from trainmaster_operator.agent.process.stacks import shortened
from trainmaster_operator.wire.joining import Collect, Hung, Patience, Resumed, Stalled
from trainmaster_operator.wire.limits import MAX_EVIDENCE_BYTES, MAX_STALL_CHARACTERS
from trainmaster_operator.wire.ranks import RankState
from trainmaster_operator.wire.stream import EvidenceLine, StallLine

ANSWER_SECONDS = 4.0
"""One second longer than the slowest evidence takes (`recorder`)."""
NOTICE_AGAIN_SECONDS = 3.0
"""How often a worker repeats that a rank exceeds its learnt limit, because the leader may have been busy, or is new."""
LATE_SECONDS = 10.0
"""A worker that hasn't repeated it for this long isn't late any more."""
MAX_HARMLESS_SECONDS = 300.0
MAX_KEPT_EVIDENCE_BYTES = 4_194_304
"""The limit of all workers' evidence of an attempt that the leader keeps."""


class SilentWorkers(NamedTuple):
    """SilentWorkers contains the workers that are blamed for not answering."""

    attempt: int
    workers: tuple[int, ...]
    message: str


class Diagnosis:
    """Diagnosis asks one question at a time, about one attempt. `notice`: only in order to inform people."""

    def __init__(self, *, notice: bool = False) -> None:
        self._notice = notice
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
        self.question = Collect(attempt, size, notice=self._notice)
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

    def inform(self, silent: Collection[int], wall: float) -> Optional[Union[StallLine, Patience]]:
        """Close, and return what people should know; None if no rank is over its learnt limit.

        `silent` contains the workers without an answer. `wall`: the present time, in seconds since the epoch.
        """
        question = self.question
        self.close()
        ranks = {rank: as_notice(state) for rank, state in self._ranks.items()}
        found = classify_stall(ranks)
        if found is None or question is None:
            return None
        if found.patience:
            return Patience(question.attempt, found.patience)
        late = [state for rank, state in self._ranks.items() if is_over(ranks[rank])]
        named = self._ranks[found.rank]
        shown = named if named.quiet_seconds is not None else max(late, key=lambda state: state.quiet_seconds or 0.0)
        rank: Optional[int] = found.rank
        sentence = found.sentence
        if silent and not is_stopped(named):
            rank, listed = None, ", ".join(map(str, sorted(silent)[:8]))
            sentence = f"no answer from worker {listed}; {sentence}"
        return StallLine(
            question.attempt,
            wall - (shown.quiet_seconds or 0.0),
            rank,
            shown.section,
            shown.usual_seconds,
            min((state.limit_seconds for state in late if state.limit_seconds), default=0.0),
            sentence[:MAX_STALL_CHARACTERS],
        )

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


class Notices:
    """Notices is the leader's part if a rank exceeds only the learnt limit. `line` is what people know of it."""

    def __init__(self) -> None:
        self.diagnosis = Diagnosis(notice=True)
        self.line: Optional[StallLine] = None
        self._late: dict[int, float] = {}
        """When each worker with a late rank last reported that, on the monotonic clock."""
        self._quiet_until = -math.inf
        self._harmless: dict[str, float] = {}
        """The shortest silence in each section that people are informed about, after a shorter one was no hang [s]."""

    def close(self) -> None:
        """Forget the attempt."""
        self.diagnosis.close()
        self.line, self._quiet_until = None, -math.inf
        self._late.clear()

    def stalled(self, worker: int, attempt: int, workers: int, now: float) -> Optional[Collect]:
        """Returns the question to all workers, if it is due."""
        self._late[worker] = now
        if self.line is not None or now < self._quiet_until:
            return None
        return self.diagnosis.begin(attempt, workers, now)

    def resumed(self, worker: Optional[int], now: Now) -> Optional[StallLine]:
        """Returns the line that ends the notice, if no worker is late any more."""
        self._late = {each: at for each, at in self._late.items() if each != worker and at > now.steady - LATE_SECONDS}
        line = self.line
        if self._late or line is None:
            return None
        self.line = None
        self._harmless[line.section] = min(2 * (now.wall - line.since), MAX_HARMLESS_SECONDS)
        return StallLine(line.attempt)

    def conclude(self, silent: Collection[int], now: Now) -> Optional[StallLine]:
        """End the question; returns what people should know now. `silent` contains the workers without an answer."""
        line = self.diagnosis.inform(silent, now.wall)
        if line is None or not self._late:
            return None
        if isinstance(line, Patience):
            self._quiet_until = now.steady + line.seconds
            return None
        left = self._harmless.get(line.section, 0.0) - (now.wall - line.since)
        if left > 0:
            self._quiet_until = now.steady + left
            return None
        self.line = line
        return line


STATE_BYTES = 420
"""The bytes that a rank's state takes in a line, without the rank's text and place."""
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
    """Returns a worker's ranks with their places and texts shortened to `size` bytes together."""
    share = max(size // max(len(ranks), 1) - STATE_BYTES, 0)
    places = {rank: shortened(state.place, share) for rank, state in ranks.items()}
    left = {rank: max(share - len(json.dumps(place)), 0) for rank, place in places.items()}
    return {
        rank: state._replace(place=places[rank], text=shortened(state.text, left[rank]))
        for rank, state in ranks.items()
    }


class Stall:
    """Stall handles an attempt's stalls on a worker. `leader` is the leading worker's index, None if unknown."""

    def __init__(self, attempt: int, worker: int, ranks: range) -> None:
        self._attempt, self._worker, self._own = attempt, worker, ranks
        self._text_bytes = MAX_EVIDENCE_BYTES
        self._collecting = False
        self._collected: Optional[Mapping[int, RankState]] = None
        self._quiet_until = -math.inf
        """The earliest time for a new stall, on the monotonic clock."""
        self._notice_at = -math.inf
        """The earliest time for the next message that a rank exceeds its learnt limit."""
        self._is_late = False
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

    def notice(self, ranks: Iterable[RankState], now: float) -> list[StallAction]:
        """Inform the leader if a rank of this worker exceeds its learnt limit, and when none does so any more.

        An active rank isn't reported, because it needs no diagnosis.
        """
        late = any(is_over(as_notice(state)) and (self._is_late or not state.active) for state in ranks)
        if not late:
            was_late, self._is_late, self._notice_at = self._is_late, False, -math.inf
            return [SendToLeader(Resumed(self._attempt))] if was_late else []
        self._is_late = True
        if now < self._notice_at:
            return []
        self._notice_at = now + NOTICE_AGAIN_SECONDS
        return [SendToLeader(Stalled(self._attempt, notice=True))]

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

"""The lead's part of finding out which rank of the whole job stopped first.

A worker whose rank is over its limit says `stalled`; the lead asks all (`collect`), gathers their evidence for
ANSWER_SECONDS at most, and tells all the verdict: `hung`, and the worker with that rank reports it, or `patience`.
A worker that isn't even heard since, and isn't known to have come further than the others, is the first to be named
instead: its lead reports it as lost, because it can't. Where no verdict comes (no lead, or it is what hangs), the
worker that stalled reports by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Optional

from trainmaster.agent.hang import rank_states
from trainmaster.agent.hang.stacks import shortened
from trainmaster.agent.loop import Loop, Timer

ANSWER_SECONDS = 3.0
MAX_EVIDENCE_BYTES = 4_194_304
"""What the lead keeps of all workers."""
MAX_WORKER_BYTES = 40_000
"""One worker's text; its line must stay below 64 KiB when every line break and quote in it is escaped."""
MAX_RANKS = 128
STANDING_BYTES = 250
"""What a rank takes in a line beside its text."""


class Inquest:
    """`tell` sends a line to all workers, the lead's own included; `awaited` are the attempt's workers; `steps` is how
    far one was by its last progress, None where it was heard since a moment; `lose` takes an attempt, workers that are
    silent, and a sentence."""

    def __init__(
        self,
        loop: Loop,
        tell: Callable[[dict[str, Any]], None],
        awaited: Callable[[], frozenset[int]],
        steps: Callable[[int, float], Optional[int]],
        lose: Callable[[int, list[int], str], None],
    ) -> None:
        self._loop = loop
        self._tell = tell
        self._awaited = awaited
        self._steps = steps
        self._lose = lose
        self._question: dict[str, Any] = {}
        self._asked_at = 0.0
        self._attempt = 0
        self._answers: dict[int, list[rank_states.Standing]] = {}
        self._timer: Timer | None = None

    def stalled(self, attempt: int, workers: int) -> None:
        """A worker's rank is over its limit; `workers`: how many the attempt has."""
        if self._timer is not None and self._attempt == attempt:
            return
        self.close()
        self._attempt = attempt
        self._answers = {}
        self._timer = self._loop.call_later(ANSWER_SECONDS, self._decide)
        size = min(MAX_WORKER_BYTES, MAX_EVIDENCE_BYTES // max(workers, 1))
        self._asked_at = time.monotonic()
        self._question = {"type": "collect", "attempt": attempt, "bytes": size}
        self._tell(self._question)

    @property
    def question(self) -> dict[str, Any] | None:
        """What a worker that joins is asked at once; None where nobody is asked anything."""
        return self._question if self._timer is not None else None

    def take(self, worker: int, line: Mapping[str, Any]) -> None:
        """A worker's evidence."""
        if self._timer is None or line["attempt"] != self._attempt:
            return
        self._answers[worker] = [
            rank_states.standing_from_wire(int(rank), data) for rank, data in line["ranks"].items()
        ]
        if self._awaited() <= self._answers.keys():
            self._decide()

    def close(self) -> None:
        """The attempt is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _decide(self) -> None:
        self.close()
        ranks = [standing for standings in self._answers.values() for standing in standings]
        verdict = rank_states.judge(ranks)
        if verdict is None:
            return
        if verdict.patience:
            self._tell({"type": "patience", "attempt": self._attempt, "seconds": round(verdict.patience, 3)})
            return
        silent = sorted(self._awaited() - self._answers.keys())
        sentence = verdict.sentence
        if silent:
            sentence = f"no answer from worker {', '.join(map(str, silent[:8]))}\n{sentence}"
            reached = next(rank_states.steps_of(standing) for standing in ranks if standing.rank == verdict.rank)
            known = {worker: self._steps(worker, self._asked_at) for worker in silent}
            first = [worker for worker, steps in known.items() if steps is not None and steps <= reached]
            if first and not any(rank_states.is_stopped(standing) for standing in ranks):
                self._lose(self._attempt, first, sentence)
                return
        self._tell({"type": "hung", "attempt": self._attempt, "rank": verdict.rank, "message": sentence})


def evidence_line(attempt: int, worker: int, ranks: Any) -> dict[str, Any]:
    """The evidence line of docs/protocol.md, bounded."""
    return {
        "type": "evidence",
        "attempt": attempt,
        "worker": worker,
        "ranks": clean_evidence(ranks),
        "at": round(time.time(), 3),
    }


def text_share(limit: int, ranks: int) -> int:
    """Bytes of text for each of a worker's ranks, when the line has room for `limit`."""
    return max(limit // max(ranks, 1) - STANDING_BYTES, 0)


def clean_evidence(value: Any, limit: int = MAX_WORKER_BYTES) -> dict[str, dict[str, Any]]:
    """Bound the `ranks` of an evidence line that came over the wire."""
    ranks: dict[str, dict[str, Any]] = {}
    if not isinstance(value, dict):
        return ranks
    items = list(value.items())[:MAX_RANKS]
    share = text_share(limit, len(items))
    for rank, data in items:
        if isinstance(data, dict) and rank.isascii() and rank.isdigit() and len(rank) < 8:
            text = data.get("text")
            standing = rank_states.standing_from_wire(int(rank), data)
            shown = shortened(text, share) if isinstance(text, str) else ""
            ranks[rank] = {**standing.to_wire(), "text": shown}
    return ranks

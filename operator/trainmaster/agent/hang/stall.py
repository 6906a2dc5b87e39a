"""What a worker does about a stall: asks its ranks, tells the lead, and reports Hung when its rank is the one.

The verdict is the lead's, over all workers (`diagnosis`). A lead that doesn't answer is left, and the next one
asked. Without a verdict in ALONE_SECONDS this worker judges by what it sees itself: better a hang that names the wrong
rank than one that nobody reports.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from trainmaster.agent.hang import rank_states
from trainmaster.agent.hang.diagnosis import ANSWER_SECONDS, MAX_WORKER_BYTES, evidence_line
from trainmaster.agent.hang.evidence import Inquiry
from trainmaster.agent.hang.kernel_view import process_state
from trainmaster.agent.hang.observation import Observation
from trainmaster.agent.hang.stacks import main_thread_first
from trainmaster.agent.loop import Loop, Timer
from trainmaster.agent.planner.events import AttemptFailed, Event, RankProvoked
from trainmaster.agent.process.launcher import attempt_dir
from trainmaster.agent.process.run import RunProcesses
from trainmaster.agent.settings import Settings
from trainmaster.wire.limits import MAX_ERROR_CHARACTERS
from trainmaster.wire.values import text

ALONE_SECONDS = ANSWER_SECONDS + 1.0
REJOIN_SECONDS = 2.0
"""Until all have found the next lead: a host that doesn't answer is tried for a second (network/joining.py)."""
STACK_CHARACTERS, VIEW_CHARACTERS = 1_000, 400


class StallWatch:
    """One attempt's stalls on one worker. `tell` brings a line to whoever leads; False where nobody does. `leave` looks
    for another lead; False where it is this worker."""

    def __init__(
        self,
        loop: Loop,
        settings: Settings,
        run: RunProcesses,
        observation: Observation,
        tell: Callable[[dict[str, Any]], bool],
        leave: Callable[[], bool],
        events: deque[Event],
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._run = run
        self._observation = observation
        self._tell = tell
        self._leave = leave
        self._events = events
        self._conclusion: Callable[[], AttemptFailed] | None = None
        self._answered = False
        self._asked_again = False
        self._inquiry: Inquiry | None = None
        self._size = MAX_WORKER_BYTES
        self._timer: Timer | None = None
        self._led = False

    def begin(self) -> None:
        """A rank of this worker is over its limit."""
        if self.over:
            return
        self._answered = False
        self._led = self._tell({"type": "stalled", "attempt": self._run.attempt})
        self._look(fresh=False)
        self._cancel()
        self._timer = self._loop.call_later(ALONE_SECONDS, self._alone)

    @property
    def over(self) -> bool:
        """Whether the ranks have ended, or are about to: nothing can hang any more."""
        return self._run.stopping or self._run.ended

    def told(self, line: Mapping[str, Any]) -> None:
        """A line of the lead: `collect`, `hung` or `patience`."""
        self._answered = True
        kind = line.get("type")
        if kind == "collect":
            size = line.get("bytes")
            if isinstance(size, int) and 0 < size <= MAX_WORKER_BYTES:
                self._size = size
            self._look(fresh=True)
        elif kind == "patience":
            seconds = line.get("seconds")
            if isinstance(seconds, (int, float)) and 0 <= seconds < 1e9:
                self._wait(float(seconds))
        elif kind == "hung" and isinstance(line.get("rank"), int):
            self._cancel()
            self._hung(line["rank"], text(line.get("message"), MAX_ERROR_CHARACTERS))

    def _look(self, *, fresh: bool) -> None:
        if self._inquiry is not None and not (self._inquiry.done and fresh):
            return
        folder = attempt_dir(self._settings, self._run.attempt)
        self._inquiry = Inquiry(
            self._loop, folder, self._observation.standings, self._run.questionable(), self._tell_evidence
        )
        self._inquiry.begin()

    def _tell_evidence(self, inquiry: Inquiry) -> None:
        ranks = inquiry.evidence(self._size)
        self._tell(evidence_line(self._run.attempt, self._settings.worker, ranks))
        if self._timer is not None and not self._led:
            self._alone()

    def _alone(self) -> None:
        self._cancel()
        if self._inquiry is None or self.over:
            return
        if self._led and not self._answered and not self._asked_again and self._leave():
            self._asked_again = True
            self._timer = self._loop.call_later(REJOIN_SECONDS, self.begin)
            return
        verdict = rank_states.judge(self._inquiry.standings)
        if verdict is not None and verdict.patience:
            self._wait(verdict.patience)
        elif verdict is not None:
            self._hung(verdict.rank, verdict.sentence)

    def _wait(self, seconds: float) -> None:
        self._cancel()
        self._inquiry = None
        self._observation.be_patient(seconds)

    def _hung(self, rank: int, sentence: str) -> None:
        inquiry, local_rank = self._inquiry, rank - self._run.first_rank()
        if inquiry is None or not 0 <= local_rank < self._settings.processes:
            return
        silent = not inquiry.stacks(rank) and process_state(self._run.pid_of(local_rank)) not in "TtXZ"

        def conclusion() -> AttemptFailed:
            if silent and inquiry.read(rank):
                self._tell(evidence_line(self._run.attempt, self._settings.worker, inquiry.evidence(self._size)))
            stack = main_thread_first(inquiry.stacks(rank))[:STACK_CHARACTERS]
            printed = "" if stack else self._run.evidence(local_rank)[-STACK_CHARACTERS:]
            error = "\n".join(filter(None, [stack or printed, inquiry.view(rank)[:VIEW_CHARACTERS], sentence]))
            return AttemptFailed(self._run.attempt, "Hung", error[-MAX_ERROR_CHARACTERS:], rank)

        if silent and self._run.provoke(local_rank):
            self._conclusion = conclusion
            self._events.append(RankProvoked(self._run.attempt))
        else:
            self._events.append(conclusion())

    def conclude(self) -> AttemptFailed | None:
        """Why the attempt failed, once a rank that was provoked has had its time."""
        return None if self._conclusion is None else self._conclusion()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

"""RankWatch reads the progress of one attempt's ranks, and carries out the decisions of `diagnosis`.

The executor owns it. `hung_rank` and `diagnosis` decide whether ranks are silent, and which actions follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Optional, Union

from trainmaster_operator.agent.hang.diagnosis import CollectEvidence, FailHung, LeaveLeader, Stall, StallAction, within
from trainmaster_operator.agent.hang.evidence import GONE_OR_STOPPED, CollectedEvidence
from trainmaster_operator.agent.hang.observation import Observation
from trainmaster_operator.agent.hang.vitals import WINDOW_SECONDS, Vitals
from trainmaster_operator.agent.planner import events
from trainmaster_operator.agent.planner.actions import SendToLeader
from trainmaster_operator.agent.planner.state import Now
from trainmaster_operator.agent.process import children
from trainmaster_operator.agent.process.rank_processes import RankProcess
from trainmaster_operator.agent.process.run import RunProcesses
from trainmaster_operator.agent.process.stacks import main_thread_first
from trainmaster_operator.agent.progress.usual import Usual
from trainmaster_operator.agent.settings import AgentSettings
from trainmaster_operator.wire.joining import Collect, FollowerMessage, Hung, Patience
from trainmaster_operator.wire.limits import MAX_ERROR_CHARACTERS
from trainmaster_operator.wire.ranks import RankState
from trainmaster_operator.wire.stream import EvidenceLine
from trainmaster_operator.wire.values import last_lines

STACK_CHARACTERS, VIEW_CHARACTERS = 1_000, 400
Collected = Callable[[CollectedEvidence, Now], None]


class RankWatch:
    """RankWatch outlives its run, to show the ranks' last progress until the next attempt.

    `put` queues events for the planner, `send` sends messages to the leader, and `leave_leader` tries another leader.
    """

    def __init__(
        self,
        settings: AgentSettings,
        run: RunProcesses,
        put: Callable[[events.Event], None],
        send: Callable[[FollowerMessage], None],
        leave_leader: Callable[[], None],
        usual: Optional[Usual] = None,
    ) -> None:
        self._settings, self._run = settings, run
        self._put, self._send, self._leave_leader = put, send, leave_leader
        self._first = run.ranks[0]
        self.usual = usual or Usual()
        """The durations that this worker has learnt in this and earlier attempts."""
        self.observation = Observation(settings, run, self.usual)
        self._vitals, self._sample_at = Vitals(), -math.inf
        self._noticed: Optional[CollectedEvidence] = None
        """The evidence of the last question that only informs people, for comparison."""
        self._continuing: tuple[Mapping[int, str], Mapping[int, int]] = {}, {}
        """The ranks' readiness to continue and their groups, as they were last sent."""
        self._stall = Stall(run.attempt, settings.worker, run.ranks)
        self._pending: dict[str, tuple[CollectedEvidence, Collected]] = {}
        """The evidence that is being collected, and the purpose of each: the diagnosis, an operator's request, or a
        rank that should have been ready to join (`unready`)."""
        self._evidence: Optional[CollectedEvidence] = None
        """The evidence collected last for the diagnosis."""
        self._states: dict[int, RankState] = {}
        """The ranks' states when the evidence was complete."""
        self._provoked: Optional[tuple[FailHung, CollectedEvidence]] = None
        """The hang to report once the provoked rank has had time to print its stacks, and the evidence of this hang,
        which is kept here because the leader may ask for other evidence meanwhile."""

    @property
    def deadline(self) -> float:
        observed = math.inf if self._run.ended else self.observation.deadline
        stalled = self._stall.deadline if self._can_hang else math.inf
        return min(observed, stalled, *(evidence.due for evidence, _ in self._pending.values()))

    def tick(self, leader: Optional[int], now: Now) -> None:
        if not self._run.ended and now.steady >= self.observation.deadline:
            self._observe(leader, now)
        for use, (evidence, collected) in list(self._pending.items()):
            if now.steady >= evidence.due and evidence.poll(now.steady):
                del self._pending[use]
                collected(evidence, now)
        if self._can_hang:
            self._perform(self._stall.tick(leader, now.steady), now)

    def receive(self, message: Union[Collect, Hung, Patience], now: Now) -> None:
        """Handle the leader's next step of a diagnosis, or an operator's request, which replaces an earlier one."""
        if isinstance(message, Collect) and message.request:
            self._collect("request", self._run.questionable(), partial(self._answer_request, message), now)
        elif isinstance(message, Collect) and message.notice:
            self._collect("notice", self._run.questionable(), partial(self._answer_notice, message), now)
        else:
            self._perform(self._stall.receive(message, now.steady), now)

    def finish(self, now: Now) -> Optional[events.Progressed]:
        """Returns the last progress of ranks that are gone, or whose end is about to be reported."""
        line = self.observation.finish(now)
        return None if line is None else events.Progressed(line, self.observation.first_step_at)

    def conclude(self, now: Now) -> Optional[events.AttemptFailed]:
        """Returns the attempt's failure, once a provoked rank has had time to print its stacks."""
        if self._provoked is None:
            return None
        hung, evidence = self._provoked
        found = evidence.ranks.get(hung.rank)
        if found is not None and (found.read_stacks() or found.stacks):
            self._send(self._stall.evidence_line(evidence.complete(self._states, self._noticed), now.wall))
        return self._failure(hung, evidence, now)

    @property
    def _can_hang(self) -> bool:
        return not self._run.stopping and not self._run.ended

    def _observe(self, leader: Optional[int], now: Now) -> None:
        was_up = self.observation.up
        line = self.observation.poll(self._run.up, now)
        if self.observation.up and not was_up:
            self._put(events.RanksUp(self._run.attempt))
        if line is not None:
            self._put(events.Progressed(line, self.observation.first_step_at))
        continuing = self.observation.words, self.observation.groups
        if continuing != self._continuing:
            self._continuing = continuing
            self._put(events.ContinuingChanged(self._run.attempt, *continuing))
        if "unready" not in self._pending:
            self._find_unready(now)
        if self._can_hang:
            states = self._states_at(now).values()
            if any((state.quiet_seconds or 0.0) > WINDOW_SECONDS for state in states):
                self._sample(now)
            self._perform(self._stall.observe(states, leader, now.steady), now)
            self._perform(self._stall.notice(states, now.steady), now)

    def _find_unready(self, now: Now) -> None:
        """Start collecting the stacks of a rank that isn't ready to join within the limit of a first step."""
        limit = self._settings.first_step_timeout
        for process, started_at in self._run.joining():
            if limit and now.steady >= started_at + limit and not self._is_ready(process.rank):
                message = f"rank {process.rank} wasn't ready to join the others {limit:g} s after its start"
                hung = FailHung(process.rank, f"{message} (failurePolicy.hang.firstStepSeconds)")
                self._collect("unready", [process], partial(self._fail_unready, hung), now)
                return

    def _fail_unready(self, hung: FailHung, evidence: CollectedEvidence, now: Now) -> None:
        if not self._is_ready(hung.rank):
            self._put(self._failure(hung, evidence, now))

    def _is_ready(self, rank: int) -> bool:
        return self.observation.words.get(rank - self._first) == "ready"

    def _collect(self, use: str, ranks: Sequence[RankProcess], collected: Collected, now: Now) -> CollectedEvidence:
        # Only a learnt limit depends on whether ranks are active, which takes a while to measure.
        is_measured = use == "notice" or (use == "stall" and self._settings.learns_progress)
        least_seconds = WINDOW_SECONDS if is_measured else 0.0
        self._sample(now)
        evidence = CollectedEvidence(self._run.folder, ranks, now.steady, least_seconds)
        self._pending[use] = evidence, collected
        return evidence

    def _sample(self, now: Now) -> None:
        if now.steady >= self._sample_at:
            self._sample_at = now.steady + WINDOW_SECONDS
            self._vitals.sample({process.rank: process.pid for process in self._run.questionable()}, now.steady)

    def _present_states(self, now: Now) -> dict[int, RankState]:
        self._sample(now)
        self.observation.refresh(now.steady)
        return self._states_at(now)

    def _states_at(self, now: Now) -> dict[int, RankState]:
        states = self.observation.states(now.steady).items()
        return {rank: state._replace(active=self._vitals.is_active(rank, now.steady)) for rank, state in states}

    def _diagnose(self, evidence: CollectedEvidence, now: Now) -> None:
        self._states = evidence.complete(self._present_states(now), self._noticed)
        self._perform(self._stall.collected(self._states, now), now)

    def _answer_request(self, request: Collect, evidence: CollectedEvidence, now: Now) -> None:
        """Send an operator the evidence that it requested; this has no other consequence."""
        ranks = within(evidence.complete(self._present_states(now)), request.bytes)
        self._send(EvidenceLine(self._run.attempt, self._settings.worker, ranks, now.wall, request=request.request))

    def _answer_notice(self, question: Collect, evidence: CollectedEvidence, now: Now) -> None:
        """Send the leader the evidence that it needs to inform people; this has no other consequence."""
        ranks = within(evidence.complete(self._present_states(now), self._noticed), question.bytes)
        self._noticed = evidence
        self._send(EvidenceLine(self._run.attempt, self._settings.worker, ranks, now.wall, notice=True))

    def _perform(self, actions: Sequence[StallAction], now: Now) -> None:
        for action in actions:
            if isinstance(action, CollectEvidence):
                self._evidence = self._collect("stall", self._run.questionable(), self._diagnose, now)
            elif isinstance(action, SendToLeader):
                self._send(action.message)
            elif isinstance(action, LeaveLeader):
                self._leave_leader()
            elif self._evidence is not None and self._provoke(action.rank, self._evidence):
                self._provoked = action, self._evidence
                self._put(events.RankProvoked(self._run.attempt))
            else:
                self._put(self._failure(action, self._evidence, now))

    def _provoke(self, rank: int, evidence: CollectedEvidence) -> bool:
        """End a rank without stacks in a way that makes it print them; returns whether it will."""
        local_rank, found = rank - self._first, evidence.ranks.get(rank)
        if (found is not None and found.stacks) or children.process_state(
            self._run.pid_of(local_rank)
        ) in GONE_OR_STOPPED:
            return False
        return self._run.provoke(local_rank)

    def _failure(self, hung: FailHung, evidence: Optional[CollectedEvidence], now: Now) -> events.AttemptFailed:
        found = None if evidence is None else evidence.ranks.get(hung.rank)
        stack = "" if found is None else main_thread_first(found.stacks)[:STACK_CHARACTERS]
        view = "" if found is None else found.kernel_view[:VIEW_CHARACTERS]
        printed = "" if stack else self._run.evidence(hung.rank - self._first)[-STACK_CHARACTERS:]
        error = last_lines("\n".join(filter(None, [stack or printed, view, hung.message])), MAX_ERROR_CHARACTERS)
        silent = self.observation.sources.silent_seconds(hung.rank, now.steady)
        return events.AttemptFailed(self._run.attempt, "Hung", error, hung.rank, silent)

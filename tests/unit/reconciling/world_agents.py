"""Simulates the agents of the world and the ranks that they run, by a simplified docs/protocol.md.

Agents accept the highest attempt that they see, and for the same attempt Hold wins. A saved report outlives the
container, and an agent reports by exiting if no operator is watching. Assertions at the places concerned check that no
worker trains an attempt twice, and that no two groups train the same attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.reconciling.world_pods import Pod
from trainmaster_operator.api.v1alpha1 import TERMINAL_PHASES
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.report import ENDED

if TYPE_CHECKING:
    from tests.unit.reconciling.world import World

# Ranks that can continue wait this long after a peer's loss.
CONTINUE_SECONDS = 3.0
# A rank makes so many steps on its own before it is ready to join.
PREPARED_STEPS = 3
ACKED_SILENCE = HELD_SILENCE = 30.0


class Agents:
    """Simulates all agents of a world, each with its state in its `Pod`."""

    def __init__(self, world: World) -> None:
        self._world = world
        # Facts to check against: (uid, attempt) of each start, and the groups that joined each attempt.
        self.started: set[tuple[str, int]] = set()
        self.codes: dict[int, str | None] = {}
        self.groups: dict[int, set[tuple[str, ...]]] = {}
        # (uid, attempt) of each rank that reported that it is ready to join
        self.ready: set[tuple[str, int]] = set()

    def _everybody(self) -> list[Pod]:
        return [*self._world.pods.values(), *self._world.zombies]

    def step(self, name: str) -> None:
        """Lets the agent poll its file, its ranks and its connections."""
        pod = self._world.pods.get(name)
        if pod is None or not pod.running or pod.frozen:
            return
        if pod.file is not None:
            self.see(pod, pod.file)
        if pod.running and pod.assignment is not None and pod.ranks is None:
            # The agent may be waiting for its code.
            self._follow(pod, pod.assignment)
        if pod.running:
            self._train(pod)
        if pod.running:
            self._report_by_exit(pod)

    def see(self, pod: Pod, assignment: Assignment) -> None:
        known = pod.assignment
        newer = known is None or assignment.attempt > known.attempt
        held = known is not None and assignment.attempt == known.attempt and assignment.state == "Hold"
        if not newer and not (held and known is not None and known.state == "Run"):
            return
        pod.assignment = assignment
        self._follow(pod, assignment)

    def _follow(self, pod: Pod, assignment: Assignment) -> None:
        """Makes the ranks follow the assignment."""
        attempt = assignment.attempt
        place = assignment.node_rank(pod.worker, pod.uid)
        lives = pod.ranks is not None and assignment.continues is not None and assignment.continues <= pod.ranks
        if lives and assignment.state == "Run" and place is not None and place not in assignment.absent:
            if pod.ranks is not None and pod.ranks < attempt:
                # The same processes form another group.
                pod.say(self._world.now, attempt, "Starting")
                pod.ranks, pod.joined, pod.broken_since, pod.preparing = attempt, None, None, False
            return
        if pod.ranks is not None and (pod.ranks < attempt or assignment.state == "Hold"):
            pod.say(self._world.now, pod.ranks, "Stopped", reason="Stopped", culprit=False)
        if assignment.state == "Hold":
            return
        if place is None:
            return
        if pod.saved is not None and pod.saved.attempt >= attempt:
            if pod.saved.attempt == attempt and pod.ranks != attempt:
                if pod.saved.state not in ENDED:
                    pod.say(self._world.now, attempt, "Failed", reason="AgentLost", exit_code=69)
                else:
                    pod.reports[attempt] = pod.saved
            return
        if assignment.continues is not None and place not in assignment.absent:
            # It should continue, but has no ranks that could.
            pod.say(self._world.now, attempt, "Failed", reason="AgentLost", exit_code=69)
            return
        if assignment.code != pod.code:
            # Its code hasn't arrived yet, or is a later one.
            return
        assert self.codes.setdefault(attempt, assignment.code) == assignment.code, "an attempt has two codes"
        assert (pod.uid, attempt) not in self.started, "an attempt was trained twice by the same worker"
        self.started.add((pod.uid, attempt))
        pod.reported_by_exit = False
        pod.say(self._world.now, attempt, "Starting")
        pod.ranks, pod.joined, pod.steps, pod.preparing = attempt, None, 0, assignment.continues is not None

    def _train(self, pod: Pod) -> None:
        """Lets ranks join, step, finish, fail, or notice that a peer has gone."""
        attempt = pod.ranks
        if attempt is None:
            return
        if pod.fault is not None:
            fault = pod.fault
            pod.say(
                self._world.now, attempt, "Failed", reason=fault.reason, exit_code=fault.exit_code, error=fault.error
            )
            return
        if pod.preparing:
            pod.steps += 1
            if pod.steps == PREPARED_STEPS:
                pod.say(self._world.now, attempt, "Starting", ready=True)
                self.ready.add((pod.uid, attempt))
            return
        if pod.joined is None:
            self._join(attempt, pod.assignment)
            return
        peers = [peer for peer in self._everybody() if peer.uid in pod.joined]
        gone = [
            uid
            for uid in pod.joined
            if not any(peer.uid == uid and (peer.joined == pod.joined or peer.has_finished(attempt)) for peer in peers)
        ]
        if gone and self._world.able and self._world.watched:
            pod.broken_since = self._world.now if pod.broken_since is None else pod.broken_since
            if 0 <= self._world.now - pod.broken_since < CONTINUE_SECONDS:
                return
        if gone:
            pod.say(
                self._world.now, attempt, "Failed", reason="Error", exit_code=1, culprit=False, error="Connection reset"
            )
            return
        pod.steps += 1
        if pod.steps >= self._world.steps and not self._world.endless:
            pod.say(self._world.now, attempt, "Finished", exit_code=0)
        elif pod.saved is not None and pod.saved.state == "Starting":
            pod.say(self._world.now, attempt, "Running", able=self._world.able)

    def _join(self, attempt: int, assignment: Assignment | None) -> None:
        """Forms a group of all ranks of an attempt that are up and have joined nobody yet."""
        if assignment is None:
            return
        workers = {worker for place, worker in enumerate(assignment.workers) if place not in assignment.absent}
        ready = {
            pod.worker: pod
            for pod in self._everybody()
            if pod.ranks == attempt and not pod.joined and not pod.preparing
        }
        if ready.keys() < workers:
            return
        group = tuple(ready[worker].uid for worker in sorted(ready))
        self.groups.setdefault(attempt, set()).add(group)
        others = {uid for other in self.groups[attempt] - {group} for uid in other}
        # Attempt 1 names no uids, so that jobs start without the operator. If all of its pods were replaced while
        # the operator is away, the new ones begin it again. Later attempts name their pods.
        left = {pod.uid for pod in self._everybody()}
        assert not others or (attempt == 1 and not others & left), f"attempt {attempt} was trained by two groups"
        # A group needs all of its members for a step.
        older = {
            pod.joined: {peer.uid for peer in self._everybody() if peer.joined == pod.joined}
            for pod in self._everybody()
            if pod.joined and pod.ranks != attempt
        }
        assert not any(there >= {*group} for group, there in older.items()), "two attempts train at a time"
        assert self._world.status.phase not in TERMINAL_PHASES or self._world.status.attempt == attempt, (
            "a finished job trains"
        )
        having = [pod.steps for pod in ready.values() if (pod.uid, attempt - 1) not in self.ready]
        assert having or assignment.continues is None, "nobody in a continued attempt has a state"
        steps = max(having, default=0)
        for pod in ready.values():
            pod.joined, pod.steps = group, steps

    def _report_by_exit(self, pod: Pod) -> None:
        """Reports by exiting if no operator is watching.

        Ranks that aren't the cause wait 3 s for a newer attempt, and longer on Hold. A pod with an acknowledged report
        waits longer too, because the operator that acknowledged it may have died before it wrote the status.
        """
        if (
            self._world.watched
            or pod.saved is None
            or pod.saved.state not in ("Failed", "Finished")
            or pod.reported_by_exit
        ):
            return
        if pod.saved.attempt not in pod.reports:
            return
        silence = self._world.now + pod.skew - pod.saved.at
        if pod.acked >= pod.saved.attempt and silence < ACKED_SILENCE:
            return
        assigned = pod.assignment
        held = assigned is not None and (assigned.attempt, assigned.state) == (pod.saved.attempt, "Hold")
        if not pod.saved.culprit and silence < (HELD_SILENCE if held else 3.0):
            return
        pod.reported_by_exit = True
        code = pod.saved.exit_code or 0
        pod.end_container(self._world.now, code, "Completed" if code == 0 else "Error", pod.saved)

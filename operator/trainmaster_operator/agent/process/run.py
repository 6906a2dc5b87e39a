"""This module runs an attempt's launcher and ranks on this worker, with their output and files.

It starts, watches and signals the processes for the executor, reads their files, and queues events. `planner/ranks.py`
decides what a process's end means, and when signals are sent.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Optional, Union

from trainmaster_operator.agent.errors import LaunchError
from trainmaster_operator.agent.loop import Loop
from trainmaster_operator.agent.planner import events
from trainmaster_operator.agent.planner.actions import ExamineLauncher, ExamineRank, Regroup, Terminate
from trainmaster_operator.agent.planner.classification import Ending
from trainmaster_operator.agent.process import children, state_folder
from trainmaster_operator.agent.process.kernel import oom_kill_count
from trainmaster_operator.agent.process.output import AttemptOutput, Printers
from trainmaster_operator.agent.process.preflight import numbered
from trainmaster_operator.agent.process.rank_processes import MET, RAISED, STORE, RankProcess, RankProcesses, RankStarts
from trainmaster_operator.agent.process.stacks import MAX_STACKS_BYTES, tail_of
from trainmaster_operator.wire.limits import MAX_ERROR_CHARACTERS
from trainmaster_operator.wire.values import last_lines

if TYPE_CHECKING:
    from trainmaster_operator.agent.warm.warm_process import WarmProcess

SWEEP_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class RunProcesses:
    """RunProcesses owns the processes of one attempt. All its methods run in the loop's thread."""

    def __init__(self, loop: Loop, starts: RankStarts, printers: Printers, put: Callable[[events.Event], None]) -> None:
        self.started_at = 0.0
        self.regrouped_at = 0.0
        """When the ranks were woken for a continued attempt (seconds since the epoch). If they report an earlier start,
        it was another attempt's."""
        settings, attempt = starts.settings, starts.assignment.attempt
        self._loop, self._settings, self._starts, self._put, self._warm = loop, settings, starts, put, starts.warm
        self._ranks = RankProcesses(loop, settings.processes, put, self.process_ended)
        self.folder = starts.folder
        """The folder of the attempt for which the processes were started. In continued attempts they still use it."""
        self.output = AttemptOutput(loop, settings, self.folder, printers)
        self._ranks.on_news = self._handle_news
        self.output.printed.on_environment = lambda line: put(events.EnvironmentPrinted(attempt, line))
        self._launcher_pid = 0
        """The launcher's pid; 0 if there is none, because the ranks are forked from the warm process."""
        self._launcher_ended = False
        self._ordered: set[int] = set()
        """The local ranks in the last order to the warm process."""
        self._to_restart: list[int] = []
        self._terminated = False
        self._sweeps = 0
        self._emptied = False
        """Whether no process of the attempt is left. If so, processes below the agent belong to the next attempt."""
        self._oom_kills_before = 0
        self.ended = False
        """Whether this worker's end is known."""
        self.stopping = False
        """Whether the ranks were sent SIGTERM, or are about to be."""

    @property
    def attempt(self) -> int:
        return self._starts.assignment.attempt

    @property
    def up(self) -> bool:
        """Returns whether all ranks of this worker have been started."""
        return len(self._ranks.pids) == (self._settings.processes if self._wraps_ranks else 1)

    @property
    def _wraps_ranks(self) -> bool:
        return self._starts.line.wraps_ranks

    @property
    def present(self) -> tuple[int, ...]:
        return self._starts.present

    @property
    def ranks(self) -> range:
        return self._starts.ranks

    def start(self) -> events.Launched:
        """Start the ranks or their launcher. Raises LaunchError, or OSError if the state folder can't be written."""
        starts, warm = self._starts, self._warm
        # This is first, so that no files are left behind if it fails.
        starts.prepare()
        os.makedirs(self.folder, exist_ok=True)
        self._oom_kills_before = oom_kill_count(self._settings.cgroup_root)
        self._ranks.listen(os.path.join(self.folder, "ranks"), self._announced)
        if self._wraps_ranks:
            self.output.open_rank_pipes(self._settings.processes, self.ranks[0])
        self.output.print_separator(self.attempt)
        if starts.continuable:
            state_folder.make_fifos(starts.group_file, starts.ranks)
            starts.write_group()
        self.started_at = time.monotonic()
        if warm is not None and not warm.reason:
            self._fork(warm)
        else:
            self._start_cold("" if warm is None else warm.reason)
        return events.Launched(self._launcher_pid, self._wraps_ranks, self.ranks[0], starts.continuable)

    def _fork(self, warm: WarmProcess, one: Optional[int] = None) -> None:
        """Order the warm process to fork all ranks, or only a new process for `one`. Raises OSError for its files."""
        ranks = range(self._settings.processes) if one is None else (one,)
        self._ordered = set(ranks)
        order = self._starts.order(ranks, self.output.log_path(STORE))
        warm.fork(order, self.folder, functools.partial(self._forked, one))

    def _forked(self, one: Optional[int], reason: str) -> None:
        """Handle the answer to the order to fork ranks. `reason` is why there are none; empty on success."""
        self._announced(0)
        if self._ordered <= self._ranks.pids.keys():
            # All ranks have been forked, even if the warm process has ended since.
            if one is None:
                self.output.say(f"attempt {self.attempt} starts warm")
            self._put(events.RanksForked())
        else:
            self._retreat(one, reason)
        self._restart_next()

    def _retreat(self, one: Optional[int], reason: str) -> None:
        """Start cold, after killing all processes that the warm process may have forked."""
        self._ranks.store_pid = 0
        if self._emptied or (one is not None and self._terminated):
            return
        roots = [] if one is None else self._ranks.living
        known = {pid for root in roots for pid in (root, *children.descendants(root))}
        rest = [pid for pid in self._below() if pid not in known]
        if rest:
            children.send(rest, signal.SIGKILL)
            self._loop.call_later(SWEEP_SECONDS[0], lambda: self._retreat(one, reason))
        elif one is not None:
            self._restart_cold(one, reason)
        elif self.stopping or self.ended:
            self._put(events.NothingForked())
        else:
            try:
                self._start_cold(reason)
            except (LaunchError, OSError) as error:
                self._put(events.LaunchFailed(problem_of(error)))

    def _start_cold(self, reason: str) -> None:
        """Start the ranks or their launcher without a warm process, and log the reason, if there is one."""
        if reason:
            self.output.say(f"attempt {self.attempt} starts cold: {reason}")
        try:
            if self._starts.needs_launcher:
                self._start_launcher()
                return
            self._ranks.store_pid = self._starts.spawn_store(self.output.log_path(STORE))
            for local_rank in range(self._settings.processes):
                self._ranks.add(local_rank, self._starts.spawn_rank(local_rank))
        except (LaunchError, OSError):
            children.send({*self._ranks.pids.values(), self._ranks.store_pid} - {0}, signal.SIGKILL)
            self._close()
            raise

    def _start_launcher(self) -> None:
        with children.output_streams() as (ends, streams):
            if self._wraps_ranks:
                self.output.pump("launcher", ends, f"[worker {self._settings.worker}]: ")
            else:
                self.output.pump("rank-0", ends, f"[rank {self.ranks[0]}]: ", self.ranks[0])
            self._launcher_pid = self._starts.spawn_launcher(streams)
        self._ranks.below_launcher = True
        if not self._wraps_ranks:
            self._ranks.pids[0] = self._launcher_pid
            self._ranks.started_at[0] = time.monotonic()

    def process_ended(self, pid: int, ending: Ending | None) -> None:
        """Handle the end of a reaped child, which may be an unrelated orphan, or of a rank reaped by its launcher."""
        # Read the announcements first, because a forked rank announces itself before it ends.
        self._announced(0)
        taken = self._warm is not None and pid == self._warm.pid and not self._warm.was_killed
        if taken and ending is not None and ending.signal == signal.SIGKILL and self._oom_kills() > 0:
            # The kernel killed the warm process for memory, because of its OOM score. This kill isn't a rank's.
            self._oom_kills_before += 1
        if pid == self._launcher_pid:
            self._launcher_ended = True
        if pid == self._ranks.store_pid:
            if ending is not None and ending.exit_code != 0:
                said = last_lines(tail_of(self.output.log_path(STORE), MAX_STACKS_BYTES), MAX_ERROR_CHARACTERS)
                self._put(events.StoreEnded(self.attempt, ending, said, self._oom_kills()))
            return
        found = self._ranks.end(pid)
        unseen: frozenset[int] = frozenset()
        if self._wraps_ranks and found and ending is not None and ending.signal == signal.SIGTERM:
            unseen = frozenset(each for each in self._ranks.living if children.process_state(each) in "XZ")
        self._put(events.ProcessEnded(pid, ending, unseen))

    def terminate(self, action: Terminate) -> None:
        """Send SIGTERM to ranks, and SIGKILL to a launcher that would only wait for them."""
        self._terminated = True
        if self._warm is not None and self._warm.busy:
            # The warm process may hang, and must not fork this attempt's ranks later.
            self._warm.kill()
        if action.planned_seconds:
            state_folder.announce_stop(os.path.join(self.folder, "saving"), action.planned_seconds)
        if action.launcher:
            children.send([action.launcher], signal.SIGKILL)
        children.send([children.signal_target(pid) for pid in action.pids], signal.SIGTERM)

    def regroup(self, action: Regroup) -> None:
        """Continue in another attempt. Raises OSError if the group can't be written."""
        # A continued attempt's lowest rank serves the store itself.
        store, self._ranks.store_pid = self._ranks.store_pid, 0
        children.send([*action.killed, *([store] if store else [])], signal.SIGKILL)
        self._starts.assignment, self.regrouped_at = action.assignment, time.time()
        self._starts.write_group()
        for local_rank, rank in enumerate(self.ranks):
            if local_rank not in action.restarted:
                state_folder.wake(f"{self._starts.group_file}.{rank}")
        absent = action.assignment.absent
        who = f"without {numbered('rank', absent, 16)}" if absent else "with all ranks"
        self.output.say(f"attempt {self.attempt} continues {who}")
        # Earlier out-of-memory kills belong to earlier attempts.
        self._oom_kills_before = oom_kill_count(self._settings.cgroup_root)
        children.send(children.session_members([*action.killed, *map(self.pid_of, action.restarted)]), signal.SIGKILL)
        for local_rank, rank in enumerate(self.ranks):
            # A continuing rank is no longer saving its final state.
            state_folder.unlink(os.path.join(self.folder, f"saving.{rank}"))
            if local_rank in action.restarted:
                self._ranks.forget(local_rank)
                self._starts.remove_traces(local_rank)
                self.output.restart_rank(local_rank)
        self._to_restart.extend(action.restarted)
        self._restart_next()

    def _restart_next(self) -> None:
        """Restart the ranks whose restart is pending, one at a time if the warm process forks them."""
        warm = self._warm
        while self._to_restart and warm is not None and not warm.busy and not self._terminated:
            local_rank = self._to_restart.pop(0)
            if warm.reason:
                self._restart_cold(local_rank, warm.reason)
            else:
                self._fork(warm, local_rank)

    def _restart_cold(self, local_rank: int, reason: str) -> None:
        self.output.say(f"rank {self.ranks[0] + local_rank} starts cold: {reason}")
        try:
            self._ranks.add(local_rank, self._starts.spawn_rank(local_rank))
        except (LaunchError, OSError) as error:
            self._put(events.RankNotStarted(local_rank, problem_of(error)))

    def saving_ranks(self) -> events.SavingRanksFound:
        """Returns the ranks that are writing their state, and the seconds that each requests."""
        path = os.path.join(self.folder, "saving")
        asked = [state_folder.saving_seconds(f"{path}.{rank}") for rank in self.ranks]
        found = {local_rank: seconds for local_rank, seconds in enumerate(asked) if seconds is not None}
        # The planner knows all ranks of a user's own launcher as a single rank, local rank 0.
        return events.SavingRanksFound(found if self._wraps_ranks or not found else {0: max(found.values())})

    def sweep(self) -> None:
        """Kill all processes below the agent until none is left, except an idle warm process."""
        if self._warm is not None and self._warm.busy:
            self._warm.kill()
        rest = self._below()
        if rest:
            children.send(rest, signal.SIGKILL)
        elif self._launcher_ended or not self._launcher_pid:
            self._emptied = True
            self._close()
            self._put(events.RunEmptied())
            return
        self._loop.call_later(SWEEP_SECONDS[min(self._sweeps, len(SWEEP_SECONDS) - 1)], self.sweep)
        self._sweeps += 1

    def examine_rank(self, action: ExamineRank) -> events.RankExamined:
        raised = action.was_ended and self.output.raised(action.local_rank, by_torchrun=self._wraps_ranks)
        if action.was_ended and not raised:
            return events.RankExamined(*action, raised, "", 0)
        return events.RankExamined(*action, raised, self.evidence(action.local_rank), self._oom_kills())

    def examine_launcher(self, action: ExamineLauncher) -> events.LauncherExamined:
        return events.LauncherExamined(action.ending, self.output.last_lines("launcher"), self._oom_kills())

    def questionable(self) -> list[RankProcess]:
        """Returns the group's living ranks, with the files that may contain their stacks."""
        return [process for local_rank, process in self._living() if local_rank in self.present]

    def joining(self) -> list[tuple[RankProcess, float]]:
        """Returns the living ranks outside the group, and when each was started (monotonic clock)."""
        started_at = self._ranks.started_at
        return [(each, started_at[rank]) for rank, each in self._living() if rank not in self.present]

    def _living(self) -> Iterator[tuple[int, RankProcess]]:
        for local_rank, pid in sorted(self._rank_pids().items()):
            if local_rank not in self._ranks.ended:
                rank = self.ranks[0] + local_rank
                stacks = os.path.join(self.folder, f"stacks.{rank}")
                # Ranks of a user's own launcher print into its stderr.
                printed = self.output.log_path(f"rank-{local_rank if self._wraps_ranks else 0}.err")
                yield local_rank, RankProcess(rank, pid, (stacks, printed), self._starts.environ)

    def pid_of(self, local_rank: int) -> int:
        """Returns the pid of a rank; 0 if it isn't known."""
        return self._rank_pids().get(local_rank, 0)

    def provoke(self, local_rank: int) -> bool:
        """End a rank in a way that makes Python print its stacks; False if it wouldn't print.

        The rank would be ended anyway, and there is no other way to get its stacks. A core file is prevented, because
        it could be as large as the rank's memory.
        """
        pid = children.signal_target(self.pid_of(local_rank), signal.SIGABRT)
        if local_rank in self._ranks.ended or not children.catches(pid, signal.SIGABRT):
            return False
        children.spare_core(pid)
        children.send([pid], signal.SIGABRT)
        return True

    def evidence(self, local_rank: int) -> str:
        """Returns a rank's last lines, which explain its end or its present work."""
        return self.output.evidence(local_rank, by_torchrun=self._wraps_ranks)

    def _rank_pids(self) -> dict[int, int]:
        """Returns pids by local rank, or only the launcher's pid if no rank is known."""
        if self._wraps_ranks or self._launcher_ended:
            return self._ranks.pids
        below = children.rank_processes(self._launcher_pid).items()
        return {rank: pid for rank, pid in below if rank < self._settings.processes} or self._ranks.pids

    def _below(self) -> list[int]:
        spared = set() if self._warm is None or self._warm.busy else self._warm.pids
        return [pid for pid in children.descendants(os.getpid()) if pid not in spared]

    def _oom_kills(self) -> int:
        return oom_kill_count(self._settings.cgroup_root) - self._oom_kills_before

    def _announced(self, _events: int) -> None:
        warm, came = self._warm, self._ranks.read_announcements()
        if came and self._ordered <= self._ranks.pids.keys() and warm is not None and warm.busy:
            # Ranks may end before the warm process's answer arrives. The warm process must not count as hung then.
            warm.answer()

    def _handle_news(self, word: str, pid: int) -> None:
        """Handle what a rank's Python, or one of its children, has announced."""
        if word != RAISED:
            self._put(events.GroupFormed() if word == MET else events.GroupWatched(pid))
            return
        local_rank = next((rank for rank, known in self._ranks.pids.items() if known == pid), None)
        if local_rank is not None and local_rank not in self._ranks.ended:
            path = os.path.join(self.folder, f"{RAISED}.{pid}")
            error = self.output.raised_error(local_rank, tail_of(path, MAX_STACKS_BYTES))
            state_folder.unlink(path)
            if error:
                self._put(events.RankRaised(local_rank, pid, error))

    def _close(self) -> None:
        self._ranks.close()
        self.output.close()


def problem_of(error: Union[LaunchError, OSError]) -> str:
    if isinstance(error, OSError):
        # If writing to an open file fails, as on a full disk, the error contains no file name.
        return f"cannot write {error.filename or 'a file'}: {error.strerror}"
    return last_lines(str(error), MAX_ERROR_CHARACTERS)

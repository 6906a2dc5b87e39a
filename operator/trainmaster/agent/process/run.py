"""One attempt on this worker: its launcher, its ranks, how they end and how they are ended.

A failure is told the moment it is seen (`on_outcome`), long before the last process is gone (`on_gone`). After that
ranks of the same worker may still show a better cause: a bystander's broken connection is often seen before the exit of
the rank that caused it (in 15 of 24 kills), so ranks aren't sent SIGTERM for a moment after a mere broken connection.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from trainmaster.agent.errors import LaunchError
from trainmaster.agent.hang.evidence import Rank
from trainmaster.agent.hang.stacks import MAX_STACKS_BYTES, STACKS_MARK, shorten_stacks, tail_of
from trainmaster.agent.loop import READ, Loop, Timer
from trainmaster.agent.process import children, launcher
from trainmaster.agent.process.children import Ending
from trainmaster.agent.process.classification import (
    FINISHED,
    Outcome,
    broken_connection,
    conclusion,
    judge_failure,
    more_telling,
    oom_kill_count,
    read_error_file,
    stopped,
)
from trainmaster.agent.process.output import KeptLog, Printer, Pump
from trainmaster.agent.settings import Settings
from trainmaster.wire.assignment import Assignment

FAILURE_GRACE = 0.4
"""Seconds that ranks get to leave once another has failed: the one at fault often closes its sockets before it has
exited, and its code is what matters."""
PROVOKED_SECONDS = 0.5
SWEEP_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
PLANNED_GRACE = 2.0
"""A stop with at least so many seconds lets the launcher live and end with its ranks."""

# torchrun's summary: "failed (exitcode: -9) local_rank: 0 (pid: 1234)".
_TORCHRUN_FAILURE = re.compile(r"exitcode: (-?\d+)\) local_rank: (\d+)")


class Run:
    """The processes of one attempt. Everything is called in the loop's thread."""

    def __init__(
        self,
        loop: Loop,
        settings: Settings,
        assignment: Assignment,
        node_rank: int,
        printers: tuple[Printer, Printer],
        on_outcome: Callable[[Outcome], None],
        on_gone: Callable[[], None],
    ) -> None:
        self.attempt = assignment.attempt
        self.node_rank = node_rank
        self.outcome: Outcome | None = None
        self.started_at = 0.0
        self.ranks: dict[int, int] = {}
        """Pids by local rank, as far as known."""
        self._loop = loop
        self._settings = settings
        self._assignment = assignment
        self._stdout, self._stderr = printers
        self._on_outcome = on_outcome
        self._on_gone = on_gone
        self._folder = launcher.attempt_dir(settings, assignment.attempt)
        self._launcher_pid = 0
        self._launcher_ending: Ending | None = None
        self._wraps_ranks = False
        self._endings: dict[int, Ending] = {}
        self._pumps: dict[str, Pump] = {}
        self._logs: list[KeptLog] = []
        self._pidfds: dict[int, int] = {}
        self._announcements = -1
        self._terminated = False
        self._planned = False
        """Whether it was a plan that ended the ranks: what they raise then is how they leave."""
        self._terminate_timer: Timer | None = None
        self._kill_timer: Timer | None = None
        self._kill_at = float("inf")
        self._sweeps = 0
        self._sweeping = False
        self._gone = False
        self._oom_kills_before = 0
        self._environ: Mapping[str, str] = {}
        self._last_words: Callable[[], Outcome] | None = None
        """The verdict on a rank that was provoked, to be asked for when it has printed its stacks."""
        self._provoked = False

    @property
    def stopping(self) -> bool:
        """Whether the ranks were sent SIGTERM, or are about to be."""
        return self._terminated or self._terminate_timer is not None

    @property
    def up(self) -> bool:
        """Whether all ranks of this worker have been started."""
        return len(self.ranks) == (self._settings.processes if self._wraps_ranks else 1)

    def first_rank(self) -> int:
        """The global rank of local rank 0."""
        return self._assignment.first_rank(self.node_rank, self._settings.processes)

    def start(self, command: Sequence[str], base_environ: Mapping[str, str]) -> None:
        """Start the launcher. Raises LaunchError, or OSError where the state folder can't be written."""
        plan = launcher.plan_launch(self._settings, self._assignment, self.node_rank, command)
        environ = launcher.rank_environment(self._settings, self._assignment, self.node_rank, base_environ)
        program = children.find_program(plan.arguments[0], environ)
        children.find_program(command[0], environ)
        os.makedirs(self._folder, exist_ok=True)
        self._oom_kills_before = oom_kill_count(self._settings.cgroup_root)
        self._wraps_ranks = plan.wraps_ranks
        self._environ = environ
        if plan.wraps_ranks:
            self._open_rank_pipes()
            name, prefix = "launcher", f"[worker {self._settings.worker}]: "
        else:
            name, prefix = "rank-0", f"[rank {self.first_rank()}]: "
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        self._pump(f"{name}.out", out_read, prefix, self._stdout)
        self._pump(f"{name}.err", err_read, prefix, self._stderr)
        try:
            self._launcher_pid = children.spawn(program, plan.arguments, environ, {1: out_write, 2: err_write})
        except LaunchError:
            self._close()
            raise
        finally:
            os.close(out_write)
            os.close(err_write)
        self.started_at = time.monotonic()
        if not plan.wraps_ranks:
            self.ranks[0] = self._launcher_pid

    def child_ended(self, pid: int, ending: Ending) -> None:
        """A child of the agent was reaped; it may be an orphan that is none of ours."""
        if pid == self._launcher_pid:
            self._launcher_ending = ending
            if self._wraps_ranks:
                self._launcher_ended(ending)
            else:
                self._rank_ended(0, ending)
        for local_rank, rank_pid in self.ranks.items():
            if rank_pid == pid and local_rank not in self._endings:
                self._rank_ended(local_rank, ending)
        self._sweep_when_ended()

    def stop(self, grace: float, delay: float = 0.0) -> None:
        """End the ranks: SIGTERM after `delay`, SIGKILL after `grace` seconds more. The earliest deadline holds."""
        if delay > 0:
            if not self.stopping:
                self._terminate_timer = self._loop.call_later(delay, lambda: self.stop(grace))
            return
        if self._terminate_timer is not None:
            self._terminate_timer.cancel()
        if not self._terminated:
            self._terminated, self._planned = True, grace >= PLANNED_GRACE
            if self._wraps_ranks and not self._planned and self._launcher_ending is None:
                # torchrun would wait up to 30 s for its ranks; without it they become our own children.
                children.send([self._launcher_pid], signal.SIGKILL)
            living = [pid for local_rank, pid in self.ranks.items() if local_rank not in self._endings]
            # Where no rank has announced itself yet, the launcher is all there is.
            children.send([children.signal_target(pid) for pid in living or [self._launcher_pid]], signal.SIGTERM)
        kill_at = time.monotonic() + grace
        if kill_at < self._kill_at:
            self._kill_at = kill_at
            if self._kill_timer is not None:
                self._kill_timer.cancel()
            self._kill_timer = self._loop.call_later(grace, self._sweep)

    def fail(self, outcome: Outcome) -> None:
        """The agent itself says that this attempt has failed here (hung, a mismatch)."""
        self._settle(outcome)
        self.stop(FAILURE_GRACE)

    def questionable(self) -> list[Rank]:
        """The ranks that live, and where they may print their stacks."""
        found = []
        for local_rank, pid in sorted(self._rank_pids().items()):
            if local_rank not in self._endings:
                rank = self.first_rank() + local_rank
                stacks = os.path.join(self._folder, f"stacks.{rank}")
                # Ranks of a launcher of the user's own print where that prints.
                printed = self._log_path(f"rank-{local_rank if self._wraps_ranks else 0}.err")
                found.append(Rank(rank, pid, (stacks, printed), self._environ))
        return found

    def pid_of(self, local_rank: int) -> int:
        """A rank's process; 0 where it isn't known."""
        return self._rank_pids().get(local_rank, 0)

    def _rank_pids(self) -> dict[int, int]:
        """Pids by local rank; the launcher's, where it is all that there is."""
        if self._wraps_ranks or self._launcher_ending is not None:
            return self.ranks
        below = children.rank_processes(self._launcher_pid).items()
        return {rank: pid for rank, pid in below if rank < self._settings.processes} or self.ranks

    def provoke(self, local_rank: int, verdict: Callable[[], Outcome]) -> bool:
        """End a rank in the way that makes Python print its stacks, and fail with the verdict when it has.

        For a rank that is about to be ended anyway and had no other way of telling; how the ranks then end isn't
        judged. A core file is kept from being written: it could be as large as the rank. False where it wouldn't print.
        """
        pid = children.signal_target(self.pid_of(local_rank), signal.SIGABRT)
        if local_rank in self._endings or not children.catches(pid, signal.SIGABRT):
            return False
        self._provoked = True
        self._last_words = verdict
        self._loop.call_later(PROVOKED_SECONDS, self._conclude)
        children.spare_core(pid)
        children.send([pid], signal.SIGABRT)
        return True

    def evidence(self, local_rank: int) -> str:
        """The last lines of a rank: its exception where torch's error file has it, else what it printed last."""
        for path in self._error_files(local_rank):
            text = read_error_file(path)
            if text:
                return text
        return self._last_lines(f"rank-{local_rank}.err", f"rank-{local_rank}.out")

    def _error_files(self, local_rank: int) -> list[str]:
        if not self._wraps_ranks:
            return [os.path.join(self._folder, "error.json")]
        # torchrun puts a folder with a name of its own in between, one in each of its lives.
        folder = os.path.join(self._folder, "torchrun")
        lives = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        return [os.path.join(folder, life, "attempt_0", str(local_rank), "error.json") for life in lives]

    def _last_lines(self, *names: str) -> str:
        for name in names:
            pump = self._pumps.get(name)
            if pump is not None:
                pump.drain()
                text = conclusion(pump.last_lines(MAX_STACKS_BYTES))
                if STACKS_MARK in text:
                    # Stacks are longer than what went before them, which is why the rank was ended.
                    text = shorten_stacks(tail_of(self._log_path(name), MAX_STACKS_BYTES)) or text
                if text:
                    return text
        return ""

    def _open_rank_pipes(self) -> None:
        # Opened for writing too, so that it never shows an end of file between two ranks.
        self._announcements = _fifo(os.path.join(self._folder, "ranks"), os.O_RDWR)
        self._loop.watch(self._announcements, READ, self._announced)
        for local_rank in range(self._settings.processes):
            prefix = f"[rank {self.first_rank() + local_rank}]: "
            for suffix, printer in (("out", self._stdout), ("err", self._stderr)):
                name = f"rank-{local_rank}.{suffix}"
                self._pump(name, _fifo(os.path.join(self._folder, name)), prefix, printer)

    def _pump(self, name: str, fd: int, prefix: str, printer: Printer) -> None:
        log = KeptLog(self._log_path(name))
        self._logs.append(log)
        self._pumps[name] = Pump(self._loop, fd, prefix, printer, log)

    def _log_path(self, name: str) -> str:
        return os.path.join(self._folder, f"{name}.log")

    def _announced(self, _events: int) -> None:
        try:
            data = os.read(self._announcements, 65_536)
        except BlockingIOError:
            return
        # Lines are shorter than PIPE_BUF, so they come whole (pipe(7)).
        for line in data.decode("ascii", "replace").splitlines():
            local_rank, _, pid = line.partition(" ")
            if local_rank.isdigit() and pid.isdigit() and int(local_rank) < self._settings.processes:
                self._rank_started(int(local_rank), int(pid))

    def _rank_started(self, local_rank: int, pid: int) -> None:
        self.ranks[local_rank] = pid
        if self._terminated:
            children.send([pid], signal.SIGTERM)
        pidfd_open = getattr(os, "pidfd_open", None)
        try:
            fd = -1 if pidfd_open is None else pidfd_open(pid)
        except OSError:
            fd = -1
        if fd < 0:
            # It has ended already, or this kernel or Python has no pidfd: torchrun's own report comes 0.1 s later.
            return
        self._pidfds[local_rank] = fd
        self._loop.watch(fd, READ, lambda _events: self._rank_exited(local_rank))

    def _rank_exited(self, local_rank: int) -> None:
        self._close_pidfd(local_rank)
        ending = children.zombie_ending(self.ranks[local_rank])
        if ending is not None and local_rank not in self._endings:
            self._rank_ended(local_rank, ending)
            self._sweep_when_ended()

    def _rank_ended(self, local_rank: int, ending: Ending, *, named: bool = False) -> None:
        """`named`: torchrun says that it was this rank that failed first."""
        self._endings[local_rank] = ending
        if self._provoked or ending.exit_code == 0:
            return
        if self._was_ended(local_rank, ending) and not (named and not self._terminated):
            # No cause of anything, unless it had failed of its own before: the rank at fault can be gone later than one
            # that lost the connection to it, here or on another worker.
            known = self._planned if self.outcome is None else self.outcome.culprit
            if known or not self._raised(local_rank):
                return
            ending = Ending(1) if ending.signal is not None else ending
        oom_kills = oom_kill_count(self._settings.cgroup_root) - self._oom_kills_before
        outcome = judge_failure(ending, self.first_rank() + local_rank, self.evidence(local_rank), oom_kills)
        self._settle(outcome)
        others = any(rank not in self._endings for rank in self.ranks)
        self.stop(FAILURE_GRACE, FAILURE_GRACE if others and not outcome.culprit else 0.0)

    def _was_ended(self, local_rank: int, ending: Ending) -> bool:
        """Whether we have ended the rank, or torchrun: it sends SIGTERM to the others as soon as one has failed."""
        if self._terminated:
            return True
        if not self._wraps_ranks or ending.signal != signal.SIGTERM:
            return False
        # On a loaded machine torchrun may have reaped the one that failed before we saw it: then its report names it.
        others = {pid for other, pid in self.ranks.items() if other != local_rank and other not in self._endings}
        return self.outcome is not None or any(children.has_ended(pid) for pid in others)

    def _raised(self, local_rank: int) -> bool:
        """Whether torch's error file has an exception of this rank, which isn't that its peer was gone."""
        said = [text for text in map(read_error_file, self._error_files(local_rank)) if text]
        return bool(said) and not broken_connection(said[0])

    def _launcher_ended(self, ending: Ending) -> None:
        if self._terminated or self._provoked or ending.exit_code == 0 or self.outcome is not None:
            return
        text = self._last_lines("launcher.err", "launcher.out")
        match = _TORCHRUN_FAILURE.search(text)
        if match is not None:
            # A rank's end that we were too late to see for ourselves.
            code, local_rank = int(match[1]), int(match[2])
            self._rank_ended(local_rank, Ending(128 - code, -code) if code < 0 else Ending(code), named=True)
        elif not self.ranks and ending.signal is None and not broken_connection(text):
            self._settle(Outcome("Failed", None, ending.exit_code, None, "LaunchError", text))
        else:
            oom_kills = oom_kill_count(self._settings.cgroup_root) - self._oom_kills_before
            self._settle(judge_failure(ending, None, text, oom_kills))

    def _settle(self, outcome: Outcome) -> None:
        if self.outcome is None or more_telling(self.outcome, outcome):
            self.outcome = outcome
            self._on_outcome(outcome)

    def _conclude(self) -> None:
        if self._last_words is not None:
            verdict, self._last_words = self._last_words, None
            self.fail(verdict())

    def _sweep_when_ended(self) -> None:
        """When the launcher and all ranks have ended, whatever else is left is killed."""
        if self._launcher_ending is None:
            return
        living = any(rank not in self._endings for rank in self.ranks)
        if not living or not self._terminated:
            self._sweep()

    def _sweep(self) -> None:
        """SIGKILL everything below the agent, until there is nothing."""
        if self._gone:
            return
        if self._sweeping:
            return
        rest = children.descendants(os.getpid())
        if rest:
            children.send(rest, signal.SIGKILL)
        elif self._launcher_ending is not None:
            self._finish()
            return
        self._sweeping = True
        self._loop.call_later(SWEEP_SECONDS[min(self._sweeps, len(SWEEP_SECONDS) - 1)], self._sweep_again)
        self._sweeps += 1

    def _sweep_again(self) -> None:
        self._sweeping = False
        self._sweep()

    def _finish(self) -> None:
        self._gone = True
        for timer in (self._terminate_timer, self._kill_timer):
            if timer is not None:
                timer.cancel()
        self._close()
        self._conclude()
        if self.outcome is None:
            failed = [ending for ending in self._endings.values() if ending.exit_code != 0]
            self._settle(stopped(failed[0] if failed else self._launcher_ending) if self._terminated else FINISHED)
        self._on_gone()

    def _close(self) -> None:
        for local_rank in list(self._pidfds):
            self._close_pidfd(local_rank)
        if self._announcements >= 0:
            self._loop.unwatch(self._announcements)
            os.close(self._announcements)
            self._announcements = -1
        for pump in self._pumps.values():
            pump.close()
        for log in self._logs:
            log.close()

    def _close_pidfd(self, local_rank: int) -> None:
        fd = self._pidfds.pop(local_rank, -1)
        if fd >= 0:
            self._loop.unwatch(fd)
            os.close(fd)


def _fifo(path: str, mode: int = os.O_RDONLY) -> int:
    """Make a named pipe and open it to read, without waiting for a writer (fifo(7))."""
    try:
        os.mkfifo(path, 0o600)
    except FileExistsError:
        os.unlink(path)
        os.mkfifo(path, 0o600)
    return os.open(path, mode | os.O_NONBLOCK)

"""This module starts the processes of a worker's ranks, and watches them until they end.

Ranks that a launcher or the warm process has started announce themselves in a FIFO. `run` decides when to start ranks,
and signals and examines them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from trainmaster_operator.agent.errors import NO_TORCH, LaunchError
from trainmaster_operator.agent.loop import READ, Loop
from trainmaster_operator.agent.planner.classification import Ending
from trainmaster_operator.agent.planner.events import Event, RankStarted
from trainmaster_operator.agent.process import children, launcher, state_folder
from trainmaster_operator.agent.process.output import named_pipe

if TYPE_CHECKING:
    from trainmaster_operator.agent.warm.warm_process import WarmProcess

STORE = "store"
"""The name of the process that serves torch's store, in its announcement (`warm/stage/forking`) and for its log."""


RAISED, WATCHED, MET = NEWS = ("raised", "watched", "met")
"""The words by which a rank's Python reports an exception, and torch's process group (`library/rank_hook`)."""


class RankProcess(NamedTuple):
    """RankProcess is a rank's process and the files that may contain its stacks."""

    rank: int
    pid: int
    files: tuple[str, ...]
    environ: Mapping[str, str]


class RankProcesses:
    """RankProcesses knows ranks by their local numbers; it calls `exited` with a pid and its ending."""

    def __init__(
        self, loop: Loop, processes: int, put: Callable[[Event], None], exited: Callable[[int, Optional[Ending]], None]
    ) -> None:
        self.pids: dict[int, int] = {}
        self.started_at: dict[int, float] = {}
        """When each rank was started last, on the monotonic clock."""
        self.ended: set[int] = set()
        """The ranks whose end has been seen."""
        self.store_pid = 0
        """The process that serves torch's store; 0: this worker has none."""
        self.on_news: Callable[[str, int], None] = lambda word, pid: None
        """This is called with the words of `library/rank_hook`, and the pid of the process that announces one."""
        self.below_launcher = False
        """Whether a launcher has started the ranks, so that it reaps them instead of the agent."""
        self._loop, self._processes, self._put, self._exited = loop, processes, put, exited
        self._pidfds: dict[int, int] = {}
        self._announcements = -1

    def listen(self, path: str, announced: Callable[[int], None]) -> None:
        """Make the FIFO for the ranks' announcements; `announced` is called when it is readable."""
        # The FIFO is opened for writing too, so that reading never finds an end of file between two ranks.
        self._announcements = named_pipe(path)
        self._loop.watch(self._announcements, READ, announced)

    def read_announcements(self) -> bool:
        """Read the announcements of processes; returns whether there may have been some."""
        if self._announcements < 0:
            return False
        try:
            data = os.read(self._announcements, 65_536)
        except BlockingIOError:
            return False
        # Lines are shorter than PIPE_BUF, so they aren't split (pipe(7)).
        for line in data.decode("ascii", "replace").splitlines():
            local_rank, _, pid = line.partition(" ")
            if local_rank == STORE and pid.isdigit():
                self.store_pid = int(pid)
            elif local_rank in NEWS and pid.isdigit():
                self.on_news(local_rank, int(pid[:10]))
            elif local_rank.isdigit() and pid.isdigit() and int(local_rank) < self._processes:
                self.add(int(local_rank), int(pid))
        return True

    def add(self, local_rank: int, pid: int) -> None:
        self.pids[local_rank], self.started_at[local_rank] = pid, time.monotonic()
        self._put(RankStarted(local_rank, pid))
        if not self.below_launcher:
            # This process is the agent's own child, so the agent reaps it and sees its end.
            return
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._exited(pid, None)
            return
        except (AttributeError, OSError):
            # This Python, kernel or sandbox doesn't support pidfd. torchrun reports the rank's end 0.1 s later.
            return
        self._pidfds[local_rank] = fd
        self._loop.watch(fd, READ, lambda _events: self._rank_exited(local_rank))

    def forget(self, local_rank: int) -> None:
        """Forget a rank's process, because another one replaces it."""
        self.pids.pop(local_rank, None)
        self.ended.discard(local_rank)

    def end(self, pid: int) -> bool:
        """Record the end of a process; returns whether it is a rank's."""
        found = {rank for rank, rank_pid in self.pids.items() if rank_pid == pid}
        self.ended |= found
        return bool(found)

    @property
    def living(self) -> list[int]:
        """Returns the pids of the ranks that haven't been seen to end."""
        return [pid for rank, pid in self.pids.items() if rank not in self.ended]

    def close(self) -> None:
        for local_rank in list(self._pidfds):
            self._close_pidfd(local_rank)
        if self._announcements >= 0:
            self._loop.unwatch(self._announcements)
            os.close(self._announcements)
            self._announcements = -1

    def _rank_exited(self, local_rank: int) -> None:
        pid = self.pids[local_rank]
        ending = children.zombie_ending(pid) or children.reaped_ending(self._pidfds[local_rank])
        self._close_pidfd(local_rank)
        if local_rank not in self.ended:
            self._exited(pid, ending)

    def _close_pidfd(self, local_rank: int) -> None:
        fd = self._pidfds.pop(local_rank, -1)
        if fd >= 0:
            self._loop.unwatch(fd)
            os.close(fd)


class RankStarts:
    """RankStarts starts a run's ranks or their launcher. Their files are in the folder of the run's first attempt."""

    def __init__(self, launch: launcher.Launch, command: Sequence[str], warm: Optional[WarmProcess] = None) -> None:
        self.assignment = launch.assignment
        """The newest attempt's assignment."""
        self.settings, self.folder, self.warm = launch.settings, launch.folder, warm
        self.group_file = os.path.join(self.folder, "group")
        self.line = launcher.CommandLine((), False)
        self.environ: Mapping[str, str] = {}
        self._launch, self._command = launch, command

    def prepare(self) -> None:
        """Make the launcher's command line and environment. Raises LaunchError if a program is missing."""
        self.line, self.environ = self._launch.command_line(self._command), self._launch.environment()
        children.find_program(self._command[0], self.environ)
        if self.needs_launcher:
            launcher.find_launcher(self.line, self.environ)

    @property
    def needs_launcher(self) -> bool:
        """Returns whether a launcher starts the ranks, which depends on the job's spec alone.

        Each torchrun waits in the store for keys of all other torchruns (torch 2.13, local_elastic_agent,
        `_assign_worker_ranks`), so a worker with torchrun never meets a worker without it. Therefore a worker's own
        circumstances (no memory, a Python that ignores `sitecustomize`, a killed process) must not decide this.
        """
        return self.warm is None or self.warm.needs_launcher

    @property
    def continuable(self) -> bool:
        """Returns whether the agent starts the ranks itself, so that they can continue in another attempt."""
        single = not self.line.wraps_ranks and self.settings.processes == 1
        return not self.needs_launcher or (single and not launcher.starts_torchrun(self._command))

    @property
    def ranks(self) -> range:
        """Returns this worker's global ranks."""
        first = self.assignment.first_rank(self._launch.node_rank, self.settings.processes)
        return range(first, first + self.settings.processes)

    @property
    def present(self) -> tuple[int, ...]:
        """Returns the local ranks that are in the attempt's group."""
        return self.assignment.present(self._launch.node_rank, self.settings.processes)

    @property
    def _serves_store(self) -> bool:
        # As with torchrun, the first worker serves the store. In a continued attempt the group's lowest rank serves it.
        return self._launch.node_rank == 0 and self.assignment.continues is None

    def write_group(self) -> None:
        """Write a continued attempt's group, for its ranks. Raises OSError."""
        if self.assignment.continues is not None:
            state_folder.write_group(self.group_file, self.assignment, self.settings.processes)

    def _group_variables(self, local_rank: int) -> dict[str, str]:
        joins = {} if local_rank in self.present else {"TRAINMASTER_JOINS": "1"}
        return {"TRAINMASTER_GROUP_FILE": self.group_file, **joins}

    def order(self, local_ranks: Iterable[int], store_log: str) -> dict[str, Any]:
        """Returns the order for the warm process to fork ranks and, if this worker serves the store, its process."""
        store = {"name": STORE, "environ": self._own_variables(0), "stdout": os.devnull, "stderr": store_log}
        # The store starts first, because the ranks wait for it.
        processes = [store] if self._serves_store else []
        for local_rank in local_ranks:
            stem, environ = os.path.join(self.folder, f"rank-{local_rank}"), self._own_variables(local_rank)
            rank = {"name": str(local_rank), "environ": environ, "stdout": f"{stem}.out", "stderr": f"{stem}.err"}
            processes.append(rank)
        return {"announcements": os.path.join(self.folder, "ranks"), "processes": processes}

    def spawn_launcher(self, streams: Mapping[int, int]) -> int:
        """Start the launcher. Raises LaunchError."""
        environ = {**self.environ, **(self._group_variables(0) if self.continuable else {})}
        return children.spawn(launcher.find_launcher(self.line, environ), self.line.arguments, environ, streams)

    def spawn_rank(self, local_rank: int) -> int:
        """Start a rank without the warm process. Raises LaunchError or OSError."""
        if self.warm is not None and self.warm.lacks_torch:
            raise LaunchError(NO_TORCH)
        stem = os.path.join(self.folder, f"rank-{local_rank}")
        streams = {1: os.open(f"{stem}.out", os.O_WRONLY), 2: os.open(f"{stem}.err", os.O_WRONLY)}
        return self._spawn(self._command, local_rank, streams)

    def spawn_store(self, log: str) -> int:
        """Start the process that serves the store; returns 0 if none is needed. Raises LaunchError or OSError."""
        if not self._serves_store or self.warm is None or self.warm.lacks_torch:
            return 0
        stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        return self._spawn(self.warm.store_command(), 0, {1: stream, 2: stream})

    def remove_traces(self, local_rank: int) -> None:
        """Remove the files of a rank's process before another process replaces it."""
        rank = self.ranks[local_rank]
        names = [f"progress.{rank}", f"stacks.{rank}", f"saving.{rank}", *(["progress"] if local_rank == 0 else [])]
        names.append(os.path.join(self._launch.error_folder(local_rank), "error.json"))
        for path in (os.path.join(self.folder, name) for name in names):
            state_folder.unlink(path)
            state_folder.unlink(f"{path}.step")

    def _spawn(self, command: Sequence[str], local_rank: int, streams: Mapping[int, int]) -> int:
        try:
            common, _ = launcher.warm_environment(self.settings, self._launch.base)
            environ = {**common, **self._own_variables(local_rank)}
            program = children.find_program(command[0], environ)
            return children.spawn(program, tuple(command), environ, streams, in_session=True)
        finally:
            for stream in set(streams.values()):
                os.close(stream)

    def _own_variables(self, local_rank: int) -> dict[str, str]:
        """Returns a rank's own environment variables, and makes the folder that they name."""
        os.makedirs(self._launch.error_folder(local_rank), exist_ok=True)
        assignment = self.assignment._replace(attempt=self._launch.assignment.attempt)
        return {
            **self._launch._replace(assignment=assignment).rank_variables(local_rank),
            **self._group_variables(local_rank),
            "TRAINMASTER_ATTEMPT": str(self.assignment.attempt),
        }

"""The processes of a worker's ranks: they announce themselves in a FIFO, and are watched until they end.

`run` starts, signals and examines them; here is which processes there are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Optional

from trainmaster_operator.agent.loop import READ, Loop
from trainmaster_operator.agent.planner.state import Ending
from trainmaster_operator.agent.process import children
from trainmaster_operator.agent.process.attempt_output import named_pipe
from trainmaster_operator.agent.process.rank_starts import STORE


class RankProcess(NamedTuple):
    """RankProcess is a rank's process and the files that it may print stacks into."""

    rank: int
    pid: int
    files: tuple[str, ...]
    environ: Mapping[str, str]


class RankProcesses:
    """See the module. Ranks are known by their local numbers; `exited` is called with a pid and how it ended."""

    def __init__(
        self,
        loop: Loop,
        processes: int,
        started: Callable[[int, int], None],
        exited: Callable[[int, Optional[Ending]], None],
    ) -> None:
        self.pids: dict[int, int] = {}
        """The ranks' processes, as far as known."""
        self.started_at: dict[int, float] = {}
        """When each was started last, on the monotonic clock."""
        self.ended: set[int] = set()
        """The ranks whose end has been seen."""
        self.store_pid = 0
        """Of the process that serves torch's store; 0: this worker has none."""
        self.below_launcher = False
        """Whether a launcher has started the ranks, so that it reaps them and not the agent."""
        self._loop = loop
        self._processes = processes
        self._started = started
        self._exited = exited
        self._pidfds: dict[int, int] = {}
        self._announcements = -1

    def listen(self, path: str, announced: Callable[[int], None]) -> None:
        """Make the FIFO in which ranks announce themselves; `announced` is called when it can be read."""
        # Opened for writing too, so that it never shows an end of file between two ranks.
        self._announcements = named_pipe(path)
        self._loop.watch(self._announcements, READ, announced)

    def read_announcements(self) -> bool:
        """Read which processes have announced themselves; returns whether there may be some."""
        if self._announcements < 0:
            return False
        try:
            data = os.read(self._announcements, 65_536)
        except BlockingIOError:
            return False
        # Lines are shorter than PIPE_BUF, so they come whole (pipe(7)).
        for line in data.decode("ascii", "replace").splitlines():
            local_rank, _, pid = line.partition(" ")
            if local_rank == STORE and pid.isdigit():
                self.store_pid = int(pid)
            elif local_rank.isdigit() and pid.isdigit() and int(local_rank) < self._processes:
                self.add(int(local_rank), int(pid))
        return True

    def add(self, local_rank: int, pid: int) -> None:
        """A rank's process has been started."""
        self.pids[local_rank], self.started_at[local_rank] = pid, time.monotonic()
        self._started(local_rank, pid)
        if not self.below_launcher:
            # The agent's own child, whose end it sees when it reaps it.
            return
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._exited(pid, None)
            return
        except (AttributeError, OSError):
            # This Python, kernel or sandbox has no pidfd: torchrun's own report comes 0.1 s after the end.
            return
        self._pidfds[local_rank] = fd
        self._loop.watch(fd, READ, lambda _events: self._rank_exited(local_rank))

    def forget(self, local_rank: int) -> None:
        """Forget a rank's process: another one is started in its place."""
        self.pids.pop(local_rank, None)
        self.ended.discard(local_rank)

    def find(self, pid: int) -> Optional[int]:
        """Returns the rank whose process this is."""
        return next((rank for rank, rank_pid in self.pids.items() if rank_pid == pid), None)

    @property
    def living(self) -> list[int]:
        """Returns the pids of the ranks whose end hasn't been seen."""
        return [pid for rank, pid in self.pids.items() if rank not in self.ended]

    def close(self) -> None:
        """Stop watching."""
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

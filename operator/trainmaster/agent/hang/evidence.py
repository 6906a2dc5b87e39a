"""The evidence of a worker's ranks in a stall is how each stands, with the stacks of all its threads.

Ranks are asked all at once and given STACKS_SECONDS; who has answered isn't waited for any longer. Where a rank can't
print its stacks there is what `py-spy` says, if the image has it and the kernel allows that, and always what the
kernel shows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from trainmaster.agent.errors import LaunchError
from trainmaster.agent.hang.kernel_view import describe_process
from trainmaster.agent.hang.rank_states import waits_in_collective
from trainmaster.agent.hang.recorder import Recorded, Recorder
from trainmaster.agent.hang.stacks import (
    MAX_STACKS_BYTES,
    ask_for_stacks,
    has_stacks,
    main_thread_first,
    tail_of,
)
from trainmaster.agent.process import children
from trainmaster.agent.process.run import RankProcess
from trainmaster.wire.evidence import RankState

STACKS_SECONDS = 1.5
POLL_SECONDS = 0.1
GONE_OR_STOPPED = ("T", "t", "X", "Z")


class Evidence:
    """Evidence is what is collected of the ranks; `poll` it every POLL_SECONDS until it is complete."""

    def __init__(self, folder: str, ranks: Sequence[RankProcess], now: float) -> None:
        self._folder = folder
        self._ranks = {rank.rank: rank for rank in ranks}
        self._until = now + STACKS_SECONDS
        self._sizes: dict[str, int] = {}
        self._recorders: dict[int, Recorder] = {}
        self._stacks: dict[int, str] = {}
        self._states: dict[int, str] = {}
        self._views: dict[int, str] = {}
        self._awaited: set[int] = set()
        self._recorded: dict[int, Recorded] = {}
        for rank in ranks:
            self._ask(rank)

    def poll(self, now: float) -> bool:
        """Read what has come; whether that is all there is to come."""
        grown = False
        for rank in self._ranks:
            before = self.stacks(rank)
            grown = self.read_stacks(rank) != before or grown
        for rank, recorder in self._recorders.items():
            recorded = recorder.answer()
            if recorded is not None:
                self._recorded[rank] = recorded
        answered = self._awaited <= self._stacks.keys() and self._recorders.keys() <= self._recorded.keys()
        return now >= self._until or (answered and not grown)

    def complete(self, states: Mapping[int, RankState]) -> dict[int, RankState]:
        """Returns the ranks' states by their progress with what was collected added to each."""
        return {
            rank: state._replace(
                state=self._states.get(rank, ""),
                collective=self._recorded[rank].collective if rank in self._recorded else None,
                waits=waits_in_collective(self.stacks(rank)),
                text=self._text(rank),
            )
            for rank, state in states.items()
        }

    def stacks(self, rank: int) -> str:
        """Returns what a rank has printed since it was asked."""
        return self._stacks.get(rank, "")

    def kernel_view(self, rank: int) -> str:
        """Returns what the kernel showed of a rank when it was asked."""
        return self._views.get(rank, "")

    def read_stacks(self, rank: int) -> str:
        """Read once more what a rank has printed since it was asked."""
        if rank in self._ranks:
            files = self._ranks[rank].files
            printed = "".join(tail_of(path, MAX_STACKS_BYTES, self._sizes[path]) for path in files)
            if has_stacks(printed):
                self._stacks[rank] = printed
        return self.stacks(rank)

    def _text(self, rank: int) -> str:
        """Returns everything that is known of a rank, for a person."""
        recorded = self._recorded.get(rank)
        waits_in = f"flight recorder: {recorded.message}" if recorded else ""
        process, *threads = self.kernel_view(rank).split("\n")
        return "\n".join(filter(None, [process, waits_in, main_thread_first(self.stacks(rank)), *threads]))

    def _ask(self, rank: RankProcess) -> None:
        self._states[rank.rank] = children.process_state(rank.pid)
        self._views[rank.rank] = describe_process(rank.pid)
        for path in rank.files:
            self._sizes[path] = _size(path)
        if self._states[rank.rank] in GONE_OR_STOPPED:
            return
        if ask_for_stacks(rank.pid) or self._spy(rank):
            self._awaited.add(rank.rank)
        recorder = Recorder(rank.environ, rank.rank)
        if recorder.ask():
            self._recorders[rank.rank] = recorder

    def _spy(self, rank: RankProcess) -> bool:
        """Have py-spy print a rank's stacks (it reads the process's memory; ptrace(2) may be forbidden)."""
        try:
            program = children.find_program("py-spy", rank.environ)
        except LaunchError:
            return False
        path = os.path.join(self._folder, f"py-spy.{rank.rank}")
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError:
            return False
        try:
            arguments = (program, "dump", "--nonblocking", "--pid", str(children.signal_target(rank.pid)))
            children.spawn(program, arguments, rank.environ, {1: fd, 2: fd})
        except LaunchError:
            return False
        finally:
            os.close(fd)
        self._ranks[rank.rank] = rank._replace(files=(*rank.files, path))
        self._sizes[path] = 0
        return True


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0

"""The evidence in a stall consists of the state of each of the worker's ranks, with the stacks of all its threads.

The agent asks all ranks at once. It waits until all have answered, but at most STACKS_SECONDS, or the time of a first
dump if they have a flight `recorder`. If a rank can't print its stacks, `py-spy` prints them, provided that the image
contains it and the kernel allows it. The kernel's view is always added.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence

from trainmaster_operator.agent.errors import LaunchError
from trainmaster_operator.agent.hang.rank_states import waits_for
from trainmaster_operator.agent.process import children
from trainmaster_operator.agent.process.kernel import describe_process, has_device
from trainmaster_operator.agent.process.rank_processes import RankProcess
from trainmaster_operator.agent.process.stacks import (
    MAX_STACKS_BYTES,
    ask_for_stacks,
    has_stacks,
    main_thread_first,
    newest_frame,
    tail_of,
)
from trainmaster_operator.agent.progress.recorder import ANSWER_SECONDS, FlightRecorder, Recorded
from trainmaster_operator.wire.ranks import RankState

STACKS_SECONDS = 1.5
POLL_SECONDS = 0.05
MAX_SOURCE_BYTES = 4_194_304
GONE_OR_STOPPED = ("T", "t", "X", "Z")


class CollectedEvidence:
    """CollectedEvidence collects the evidence of the ranks; `poll` it when it is `due`, until it is complete."""

    def __init__(self, folder: str, ranks: Sequence[RankProcess], now: float) -> None:
        self._folder = folder
        self._ranks = {rank.rank: rank for rank in ranks}
        self._begun = now
        self.due = now + POLL_SECONDS
        self._sizes: dict[str, int] = {}
        self._recorders: dict[int, FlightRecorder] = {}
        self._stacks: dict[int, str] = {}
        self._states: dict[int, str] = {}
        self._views: dict[int, str] = {}
        self._with_device: set[int] = set()
        self._lines: dict[tuple[int, str, int], str] = {}
        """The source lines that main threads are executing, by rank, file and line number."""
        self._awaited: set[int] = set()
        self._recorded: dict[int, Recorded] = {}
        for rank in ranks:
            self._ask(rank)

    def poll(self, now: float) -> bool:
        """Read the new answers; returns whether the evidence is complete."""
        self.due = now + POLL_SECONDS
        grown = False
        for rank in self._ranks:
            before = self.stacks(rank)
            grown = self.read_stacks(rank) != before or grown
        for rank, recorder in self._recorders.items():
            recorded = recorder.answer()
            if recorded is not None:
                self._recorded[rank] = recorded
        if self._recorders.keys() > self._recorded.keys() and now < self._begun + ANSWER_SECONDS:
            return False
        answered = self._awaited <= self._stacks.keys() and not grown
        return answered or now >= self._begun + STACKS_SECONDS

    def complete(self, states: Mapping[int, RankState]) -> dict[int, RankState]:
        """Returns the ranks' states with the collected evidence added to each."""
        return {rank: self._completed(rank, state) for rank, state in states.items()}

    def stacks(self, rank: int) -> str:
        """Returns a rank's output since it was asked."""
        return self._stacks.get(rank, "")

    def kernel_view(self, rank: int) -> str:
        """Returns the kernel's view of a rank at the time of the question."""
        return self._views.get(rank, "")

    def read_stacks(self, rank: int) -> str:
        """Read a rank's output since it was asked once more."""
        if rank in self._ranks:
            files = self._ranks[rank].files
            printed = "".join(tail_of(path, MAX_STACKS_BYTES, self._sizes[path]) for path in files)
            if has_stacks(printed):
                self._stacks[rank] = printed
                self._read_line(rank)
        return self.stacks(rank)

    def _completed(self, rank: int, state: RankState) -> RankState:
        recorded, frame = self._recorded.get(rank), newest_frame(self.stacks(rank))
        pending = recorded is not None and recorded.oldest_open is not None
        line = self._lines.get((rank, *frame), "") if frame is not None else ""
        alone = rank in self._ranks and self._ranks[rank].environ.get("WORLD_SIZE") == "1"
        waits = waits_for(self.stacks(rank), line, has_device=rank in self._with_device, alone=alone)
        return state._replace(
            state=self._states.get(rank, ""),
            collective=None if recorded is None else recorded.collective,
            # A collective without peers waits for the device's earlier work.
            waits="device" if alone and pending else waits,
            pending=pending and not alone,
            text=self._text(rank),
        )

    def _read_line(self, rank: int) -> None:
        """Read the source line of a rank that uses a device. A thread does it, because the file's volume may hang."""
        frame = newest_frame(self.stacks(rank))
        if rank not in self._with_device or frame is None or (rank, *frame) in self._lines:
            return
        key, path = (rank, *frame), os.path.join(f"/proc/{self._ranks[rank].pid}/cwd", frame[0])
        self._lines[key] = ""
        import threading

        def read() -> None:
            try:
                with open(path, "rb") as file:
                    source = file.read(MAX_SOURCE_BYTES) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
            except OSError:
                return
            self._lines[key] = b"".join(source.splitlines()[frame[1] - 1 : frame[1]]).decode("utf-8", "replace")

        threading.Thread(target=read, name="source", daemon=True).start()

    def _text(self, rank: int) -> str:
        """Returns all evidence of a rank as text for people."""
        recorded = self._recorded.get(rank)
        waits_in = f"flight recorder: {recorded.message}" if recorded else ""
        process, *threads = self.kernel_view(rank).split("\n")
        return "\n".join(filter(None, [process, waits_in, main_thread_first(self.stacks(rank)), *threads]))

    def _ask(self, rank: RankProcess) -> None:
        self._states[rank.rank] = children.process_state(rank.pid)
        self._views[rank.rank] = describe_process(rank.pid)
        if has_device(children.signal_target(rank.pid)):
            self._with_device.add(rank.rank)
        for path in rank.files:
            self._sizes[path] = _size(path)
        if self._states[rank.rank] in GONE_OR_STOPPED:
            return
        if ask_for_stacks(rank.pid) or self._spy(rank):
            self._awaited.add(rank.rank)
        recorder = FlightRecorder(rank.environ, rank.rank)
        if recorder.ask():
            self._recorders[rank.rank] = recorder

    def _spy(self, rank: RankProcess) -> bool:
        """Start py-spy to print a rank's stacks. It reads the process's memory, which may be forbidden (ptrace(2))."""
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

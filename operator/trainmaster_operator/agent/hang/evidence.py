"""The evidence in a stall consists of the state of each of the worker's ranks, with the stacks of all its threads.

The agent asks all ranks at once. It waits for all answers, but at most STACKS_SECONDS for stacks and ANSWER_SECONDS for
the dumps of flight recorders (`recorder`). If a rank can't print its stacks, `py-spy` prints them, provided that the
image contains `py-spy` and the kernel allows it to read the process. The kernel's view is always added.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from typing import Optional

from trainmaster_operator.agent.errors import LaunchError
from trainmaster_operator.agent.hang.hung_rank import waits_for
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
        self._begun = now
        self.due = now + POLL_SECONDS
        self.ranks = {rank.rank: RankEvidence(folder, rank) for rank in ranks}

    def poll(self, now: float) -> bool:
        """Read the new answers; returns whether the evidence is complete."""
        self.due = now + POLL_SECONDS
        ranks = self.ranks.values()
        grown = [rank.read_stacks() for rank in ranks]
        recorded = [rank.read_recorder() for rank in ranks]
        if not all(recorded) and now < self._begun + ANSWER_SECONDS:
            return False
        answered = not any(grown) and all(rank.stacks or not rank.asked for rank in ranks)
        return answered or now >= self._begun + STACKS_SECONDS

    def complete(self, states: Mapping[int, RankState]) -> dict[int, RankState]:
        found = self.ranks
        return {rank: found[rank].completed(state) if rank in found else state for rank, state in states.items()}


class RankEvidence:
    """RankEvidence asks one rank for its stacks and its flight recorder, and keeps the answers."""

    def __init__(self, folder: str, process: RankProcess) -> None:
        self._process = process
        self._state = children.process_state(process.pid)
        self.kernel_view = describe_process(process.pid)
        """The kernel's view of the rank when it was asked."""
        self._has_device = has_device(children.signal_target(process.pid))
        self._sizes = {path: _size(path) for path in process.files}
        """The size of each file when the rank was asked."""
        self.stacks = ""
        """The rank's output since it was asked."""
        self._lines: dict[tuple[str, int], str] = {}
        """The source lines that the main thread was executing, by file and line number."""
        self._recorder: Optional[FlightRecorder] = None
        self._recorded: Optional[Recorded] = None
        self.asked = False
        if self._state in GONE_OR_STOPPED:
            return
        self.asked = ask_for_stacks(process.pid) or self._spy(folder)
        recorder = FlightRecorder(process.environ, process.rank)
        if recorder.ask():
            self._recorder = recorder

    def read_stacks(self) -> bool:
        """Read the output since the question; returns whether it contains more stacks than before."""
        printed = "".join(tail_of(path, MAX_STACKS_BYTES, size) for path, size in self._sizes.items())
        if printed == self.stacks or not has_stacks(printed):
            return False
        self.stacks = printed
        self._read_line()
        return True

    def read_recorder(self) -> bool:
        """Read the flight recorder's answer; returns False while the answer is missing."""
        if self._recorder is not None:
            self._recorded = self._recorder.answer() or self._recorded
        return self._recorder is None or self._recorded is not None

    def completed(self, state: RankState) -> RankState:
        recorded, frame = self._recorded, newest_frame(self.stacks)
        pending = recorded is not None and recorded.oldest_open is not None
        line = self._lines.get(frame, "") if frame is not None else ""
        alone = self._process.environ.get("WORLD_SIZE") == "1"
        waits = waits_for(self.stacks, line, has_device=self._has_device, alone=alone)
        waits_in = f"flight recorder: {recorded.message}" if recorded else ""
        process, *threads = self.kernel_view.split("\n")
        return state._replace(
            state=self._state,
            collective=None if recorded is None else recorded.collective,
            # If the rank is alone, its collective has no peers and waits for the device's earlier work.
            waits="device" if alone and pending else waits,
            pending=pending and not alone,
            text="\n".join(filter(None, [process, waits_in, main_thread_first(self.stacks), *threads])),
        )

    def _read_line(self) -> None:
        """Read the source line of a rank that uses a device, in a thread, because the file's volume may hang."""
        frame = newest_frame(self.stacks)
        if not self._has_device or frame is None or frame in self._lines:
            return
        path = os.path.join(f"/proc/{self._process.pid}/cwd", frame[0])
        self._lines[frame] = ""
        import threading

        def read() -> None:
            try:
                with open(path, "rb") as file:
                    source = file.read(MAX_SOURCE_BYTES) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
            except OSError:
                return
            self._lines[frame] = b"".join(source.splitlines()[frame[1] - 1 : frame[1]]).decode("utf-8", "replace")

        threading.Thread(target=read, name="source", daemon=True).start()

    def _spy(self, folder: str) -> bool:
        """Start py-spy to print a rank's stacks. It reads the process's memory, which may be forbidden (ptrace(2))."""
        process = self._process
        path = os.path.join(folder, f"py-spy.{process.rank}")
        try:
            program = children.find_program("py-spy", process.environ)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        except (LaunchError, OSError):
            return False
        try:
            arguments = (program, "dump", "--nonblocking", "--pid", str(children.signal_target(process.pid)))
            children.spawn(program, arguments, process.environ, {1: fd, 2: fd})
        except LaunchError:
            return False
        finally:
            os.close(fd)
        self._sizes[path] = 0
        return True


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0

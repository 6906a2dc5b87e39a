"""The evidence in a stall consists of the state of each of the worker's ranks, with the stacks of all its threads.

The agent asks all ranks at once. It waits for all answers, but at most STACKS_SECONDS for stacks and ANSWER_SECONDS for
the dumps of flight recorders (`recorder`). If a rank can't print its stacks, `py-spy` prints them, provided that the
image contains `py-spy` and the kernel allows it to read the process. The kernel's view is always added.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import Optional

from trainmaster_operator.agent.errors import LaunchError
from trainmaster_operator.agent.hang.hung_rank import waits_for
from trainmaster_operator.agent.process import children
from trainmaster_operator.agent.process.kernel import describe_process, has_device
from trainmaster_operator.agent.process.rank_processes import RankProcess
from trainmaster_operator.agent.process.stacks import (
    MAX_STACKS_BYTES,
    Frame,
    ask_for_stacks,
    collective_of,
    has_stacks,
    main_frames,
    main_thread_first,
    tail_of,
    user_frame,
)
from trainmaster_operator.agent.progress.recorder import ANSWER_SECONDS, FlightRecorder, Recorded
from trainmaster_operator.wire.ranks import RankState

STACKS_SECONDS = 1.5
POLL_SECONDS = 0.05
MAX_SOURCE_BYTES, MAX_SOURCE_CHARACTERS = 4_194_304, 100
GONE_OR_STOPPED = ("T", "t", "X", "Z")


class CollectedEvidence:
    """CollectedEvidence collects the evidence of the ranks; `poll` it when it is `due`, until it is complete."""

    def __init__(self, folder: str, ranks: Sequence[RankProcess], now: float, least_seconds: float = 0.0) -> None:
        """`least_seconds`: how long to wait even if all ranks have answered, because their use is measured."""
        self._begun, self._least = now, now + least_seconds
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
        return (answered and now >= self._least) or now >= self._begun + STACKS_SECONDS

    def complete(
        self, states: Mapping[int, RankState], before: Optional[CollectedEvidence] = None
    ) -> dict[int, RankState]:
        """Returns the ranks' states with their evidence. `before`: the evidence of an earlier question."""
        earlier = {} if before is None else {rank: found.recorded for rank, found in before.ranks.items()}
        return {
            rank: self.ranks[rank].completed(state, before=earlier.get(rank)) if rank in self.ranks else state
            for rank, state in states.items()
        }


class RankEvidence:
    """RankEvidence asks one rank for its stacks and its flight recorder, and keeps the answers."""

    def __init__(self, folder: str, process: RankProcess) -> None:
        self._process = process
        self._state = children.process_state(process.pid)
        self.kernel_view = describe_process(process.pid)
        """The kernel's view of the rank when it was asked."""
        target = children.signal_target(process.pid)
        self._has_device = has_device(target)
        self._folder = _folder_of(target)
        self._sizes = {path: _size(path) for path in process.files}
        """The size of each file when the rank was asked."""
        self.stacks = ""
        """The rank's output since it was asked."""
        self._frames: list[Frame] = []
        """The main thread's frames, the newest first."""
        self._lines: dict[tuple[str, int], str] = {}
        """The source lines that the main thread was executing, by file and line number."""
        self._recorder: Optional[FlightRecorder] = None
        self.recorded: Optional[Recorded] = None
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
        self.stacks, self._frames = printed, main_frames(printed)
        self._read_lines()
        return True

    def read_recorder(self) -> bool:
        """Read the flight recorder's answer; returns False while the answer is missing."""
        if self._recorder is not None:
            self.recorded = self._recorder.answer() or self.recorded
        return self._recorder is None or self.recorded is not None

    def completed(self, state: RankState, *, before: Optional[Recorded] = None) -> RankState:
        """Returns a rank's state with its evidence. `before`: what its flight recorder showed earlier."""
        recorded, newest = self.recorded, next(iter(self._frames), None)
        pending = recorded is not None and recorded.oldest_open is not None
        line = self._lines.get(newest[:2], "") if newest is not None else ""
        alone = self._process.environ.get("WORLD_SIZE") == "1"
        waits = waits_for(self.stacks, line, has_device=self._has_device, alone=alone)
        waits_in = f"flight recorder: {recorded.message}" if recorded else ""
        process, *threads = self.kernel_view.split("\n")
        is_stuck = self._has_device and pending and before is not None and _progress(before) == _progress(recorded)
        return state._replace(
            state=self._state,
            collective=None if recorded is None else recorded.collective,
            # If the rank is alone, its collective has no peers and waits for the device's earlier work.
            waits="device" if alone and pending else waits,
            pending=pending and not alone,
            active=state.active and not is_stuck,
            place=self._place(),
            operation=(recorded.operation if recorded else "") or collective_of(self._frames),
            text="\n".join(filter(None, [process, waits_in, main_thread_first(self.stacks), *threads])),
        )

    def _place(self) -> str:
        """Returns the place in the user's code where the main thread is, with its source line."""
        frame = user_frame(self._frames)
        if frame is None:
            return ""
        folder = self._folder + "/"
        file = frame.file[len(folder) :] if frame.file.startswith(folder) else os.path.basename(frame.file)
        source = self._lines.get(frame[:2], "").strip()[:MAX_SOURCE_CHARACTERS]
        return f"{file}:{frame.line} in {frame.function}" + (f": `{source}`" if source else "")

    def _read_lines(self) -> None:
        """Read the source lines of the newest frame and of the user's, in a thread, because the volume may hang."""
        wanted = {frame[:2] for frame in (next(iter(self._frames), None), user_frame(self._frames)) if frame}
        missing = wanted - self._lines.keys()
        if not missing:
            return
        self._lines.update(dict.fromkeys(missing, ""))
        import threading

        threading.Thread(target=self._read_sources, args=(missing,), name="source", daemon=True).start()

    def _read_sources(self, places: Iterable[tuple[str, int]]) -> None:
        for file, number in places:
            try:
                with open(os.path.join(f"/proc/{self._process.pid}/cwd", file), "rb") as opened:
                    is_file = stat.S_ISREG(os.fstat(opened.fileno()).st_mode)
                    source = opened.read(MAX_SOURCE_BYTES) if is_file else b""
            except OSError:
                continue
            self._lines[file, number] = b"".join(source.splitlines()[number - 1 : number]).decode("utf-8", "replace")

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


def _progress(recorded: Optional[Recorded]) -> object:
    return recorded and (recorded.newest, recorded.oldest_open)


def _folder_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0

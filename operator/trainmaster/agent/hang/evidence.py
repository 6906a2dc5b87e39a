"""One worker's evidence of a stall: how each of its ranks stands, with the stacks of all its threads.

Ranks are asked all at once and given STACKS_SECONDS; who has answered isn't waited for any longer. Of a rank that can't
print its stacks there is what `py-spy` says, where the image has it and the kernel lets it look, and always what the
kernel says.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from trainmaster.agent.errors import LaunchError
from trainmaster.agent.hang import rank_states
from trainmaster.agent.hang.diagnosis import MAX_RANKS, text_share
from trainmaster.agent.hang.kernel_view import describe_process, process_state
from trainmaster.agent.hang.recorder import Recorded, Recorder
from trainmaster.agent.hang.stacks import (
    MAX_STACKS_BYTES,
    ask_for_stacks,
    has_stacks,
    main_thread_first,
    shortened,
    tail_of,
)
from trainmaster.agent.loop import Loop
from trainmaster.agent.process import children

STACKS_SECONDS = 1.5
POLL_SECONDS = 0.1


class Rank(NamedTuple):
    """A rank's process and the files that it may print stacks into."""

    rank: int
    pid: int
    files: tuple[str, ...]
    environ: Mapping[str, str]


class Inquiry:
    """Asks the ranks of one worker; calls `on_done` once, with each rank's standing and text."""

    def __init__(
        self,
        loop: Loop,
        folder: str,
        standings: Callable[[], list[rank_states.Standing]],
        ranks: list[Rank],
        on_done: Callable[[Inquiry], None],
    ) -> None:
        self._loop = loop
        self._folder = folder
        self._standings = standings
        self._ranks = ranks
        self._on_done = on_done
        self._until = time.monotonic() + STACKS_SECONDS
        self._sizes: dict[str, int] = {}
        self._recorders: dict[int, Recorder] = {}
        self._texts: dict[int, str] = {}
        self._states: dict[int, str] = {}
        self._views: dict[int, str] = {}
        self._awaited: set[int] = set()
        self._recorded: dict[int, Recorded] = {}
        self.done = False
        self.standings: list[rank_states.Standing] = []

    def begin(self) -> None:
        """Ask; what comes is collected in the background."""
        for rank in self._ranks:
            self._states[rank.rank] = process_state(rank.pid)
            self._views[rank.rank] = describe_process(rank.pid)
            for path in rank.files:
                self._sizes[path] = _size(path)
            if self._states[rank.rank] in ("T", "t", "X", "Z"):
                continue
            if ask_for_stacks(rank.pid) or self._spy(rank):
                self._awaited.add(rank.rank)
            recorder = Recorder(rank.environ, rank.rank)
            if recorder.ask():
                self._recorders[rank.rank] = recorder
        self._loop.call_later(POLL_SECONDS, self._look)

    def stacks(self, rank: int) -> str:
        """What a rank has printed since it was asked."""
        return self._texts.get(rank, "")

    def view(self, rank: int) -> str:
        """What the kernel said of a rank when it was asked."""
        return self._views.get(rank, "")

    def read(self, rank: int) -> str:
        """Look once more at what a rank has printed since it was asked."""
        for each in self._ranks:
            if each.rank == rank:
                text = "".join(tail_of(path, MAX_STACKS_BYTES, self._sizes[path]) for path in each.files)
                if has_stacks(text):
                    self._texts[rank] = text
        return self.stacks(rank)

    def text(self, rank: int) -> str:
        """Everything that is known of a rank, for a person."""
        recorded = self._recorded.get(rank)
        said = f"flight recorder: {recorded.sentence}" if recorded else ""
        seen, *threads = self.view(rank).split("\n")
        return "\n".join(filter(None, [seen, said, main_thread_first(self.stacks(rank)), *threads]))

    def evidence(self, limit: int) -> dict[str, Any]:
        """The `ranks` of an evidence line; their texts take at most `limit` bytes in it."""
        share = text_share(limit, len(self.standings))
        return {
            str(standing.rank): {**standing.to_wire(), "text": shortened(self.text(standing.rank), share)}
            for standing in self.standings[:MAX_RANKS]
        }

    def _look(self) -> None:
        grown = False
        for rank in self._ranks:
            before = self.stacks(rank.rank)
            grown = self.read(rank.rank) != before or grown
        for number, recorder in self._recorders.items():
            recorded = recorder.answer()
            if recorded is not None:
                self._recorded[number] = recorded
        answered = self._awaited <= self._texts.keys() and self._recorders.keys() <= self._recorded.keys()
        if time.monotonic() < self._until and (grown or not answered):
            self._loop.call_later(POLL_SECONDS, self._look)
            return
        self.standings = [self._complete(standing) for standing in self._standings()]
        self.done = True
        self._on_done(self)

    def _complete(self, standing: rank_states.Standing) -> rank_states.Standing:
        recorded = self._recorded.get(standing.rank)
        return standing._replace(
            state=self._states.get(standing.rank, ""),
            collective=recorded.collective if recorded else None,
            waits=rank_states.waits_in_collective(self.stacks(standing.rank)),
        )

    def _spy(self, rank: Rank) -> bool:
        """Have py-spy print a rank's stacks (it reads the process's memory; ptrace(2) may be forbidden)."""
        try:
            program = children.find_program("py-spy", rank.environ)
        except LaunchError:
            return False
        path = os.path.join(self._folder, f"py-spy.{rank.rank}")
        target = children.signal_target(rank.pid)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError:
            return False
        try:
            arguments = (program, "dump", "--nonblocking", "--pid", str(target))
            children.spawn(program, arguments, rank.environ, {1: fd, 2: fd})
        except LaunchError:
            return False
        finally:
            os.close(fd)
        self._ranks = [
            each._replace(files=(*each.files, path)) if each.rank == rank.rank else each for each in self._ranks
        ]
        self._sizes[path] = 0
        return True


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0

"""The agent learns from a rank, after its first step, which modules to import before the next fork.

The rank's modules then include lazy imports such as `torch._dynamo`, which DDP imports in its first step.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Optional

from trainmaster_operator.agent.loop import Loop
from trainmaster_operator.agent.process import children
from trainmaster_operator.agent.process.run import RunProcesses
from trainmaster_operator.agent.warm.stage import LEARN_SIGNAL
from trainmaster_operator.wire.joining import module_names
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.values import ProtocolError

SILENT_SECONDS = 30.0
"""If a rank doesn't report its steps, it is asked this long after its start."""
POLL_SECONDS = 0.1
MAX_POLLS = 300
MAX_BYTES = 4_194_304
MAX_NAMES, MAX_CHARACTERS = 20_000, 2_000_000
"""The limits of an answer, which also contains the modules that its other modules import. transformers and torch's
compiler together import 3,000 modules."""


class Learning:
    """Learning asks one rank of an attempt, once, and calls `learned` with the names."""

    def __init__(self, loop: Loop, run: RunProcesses, path: str, learned: Callable[[Sequence[str]], None]) -> None:
        self._loop, self._run, self._path, self._learned = loop, run, path, learned
        self._asked: Optional[int] = None
        self._polls = 0
        loop.call_later(SILENT_SECONDS, lambda: self._ask(0))

    def observe(self, ranks: Mapping[int, RankProgress]) -> None:
        for rank, progress in ranks.items():
            if progress.step is not None and progress.step > 0:
                self._ask(rank - self._run.ranks[0])

    def _ask(self, local_rank: int) -> None:
        if self._asked is not None or self._run.ended:
            return
        pid = self._run.pid_of(local_rank)
        # A rank that was started cold has no handler, so the signal would end it.
        if pid and children.catches(pid, LEARN_SIGNAL):
            self._asked = local_rank
            children.send([pid], LEARN_SIGNAL)
            self._poll()

    def _poll(self) -> None:
        path = f"{self._path}.{self._asked}"
        if os.path.exists(path):
            names = read_names(path)
            if names:
                self._learned(names)
        elif self._polls < MAX_POLLS and not self._run.ended:
            # A rank only answers between two instructions of its Python code, and an instruction may take long.
            self._polls += 1
            self._loop.call_later(POLL_SECONDS, self._poll)


def read_names(path: str) -> tuple[str, ...]:
    """Returns the names in a rank's answer; empty if it is malformed."""
    try:
        with open(path, "rb") as file:
            return module_names(json.loads(file.read(MAX_BYTES)), MAX_NAMES, MAX_CHARACTERS)
    except (OSError, ValueError, RecursionError, ProtocolError):
        return ()

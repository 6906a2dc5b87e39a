"""The state of the last finished step outlives its rank in the pod's memory, where the operator has given one.

`NothingInMemory` is what a run without such a directory has; `surviving` has the rest, which `recovery` does for any
script.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pydantic import Field

from trainloop.checkpoints.storage import Checkpoint
from trainloop.recovery.place import DIRECTORY_VARIABLE
from trainloop.settings import Settings

if TYPE_CHECKING:
    from trainloop.trainer import Trainer


class MemorySettings(Settings):
    """These settings say what is kept in memory for the next attempt."""

    enabled: bool = Field(True, description="Keep the state in TRAINMASTER_MEMORY_DIR, where that is set.")


class NothingInMemory:
    """Nothing is kept in memory: the next attempt goes on from a checkpoint."""

    #: Whether the run goes on from a step whose evaluation and checkpoint may be missing.
    resumed = False

    def resume(self, newest: Checkpoint | None) -> bool:
        """Go on from the state in memory, if it isn't older than the `newest` checkpoint; returns whether it did."""
        return False

    def begin(self) -> None:
        """The first step comes now."""

    def changing(self) -> None:
        """What a step changes changes from now on: nothing of it is whole before `finished`."""

    def finished(self) -> None:
        """The step is made: all of `trainer` is as it is after `trainer.state.step`."""

    def forget(self) -> None:
        """Delete what is in memory: the run goes back to an older state."""

    def end(self) -> None:
        """The run is at its end, and leaves nothing in memory."""

    def go_on(self, attempt: int) -> None:
        """The ranks go on as another attempt in their processes, from the state that `trainer` has."""

    def __enter__(self) -> NothingInMemory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """The rank ends: by an error it leaves its state."""


def in_memory(trainer: Trainer) -> NothingInMemory:
    """Returns what keeps the state of `trainer` in memory."""
    if not trainer.config.checkpoint.memory.enabled or not os.environ.get(DIRECTORY_VARIABLE):
        return NothingInMemory()
    # Imported when used.
    from trainloop.checkpoints.surviving import build

    return build(trainer)

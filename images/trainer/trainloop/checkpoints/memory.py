"""The last finished step's state outlives its rank in the pod's memory, if the operator provides a directory.

Without such a directory a run uses `NothingInMemory`. Otherwise `surviving` keeps the state with `recovery`, which
works for any script.
"""

from __future__ import annotations

import torch
from pydantic import Field

from trainloop.checkpoints.storage import Checkpoint
from trainloop.settings import Settings


class MemorySettings(Settings):
    """These settings decide whether a state is kept in memory for the next attempt."""

    enabled: bool = Field(True, description="Keep the state in TRAINMASTER_MEMORY_DIR, where that is set.")


class NothingInMemory:
    """This class keeps nothing, so the next attempt continues from a checkpoint.

    Its subclasses in `surviving` keep a state.
    """

    #: Whether the run was resumed from memory, so that the evaluation and the checkpoint after its last step may be
    #: missing.
    resumed = False
    #: Why an unfinished step can't be reverted; None if it can.
    obstacle: str | None = "no state is kept in memory"
    #: Whether a step has begun to change the state and hasn't ended.
    half_made = True

    def resume(self, newest: Checkpoint | None) -> bool:
        """Restore the state in memory unless it is older than the `newest` checkpoint; returns whether it did."""
        return False

    def begin(self) -> None:
        """Record that the first step begins now."""

    def changing(self) -> None:
        """Record that the state is about to change; it is incomplete until `finished` is called."""

    def finished(self) -> None:
        """Record that the step is made, so the run's state is complete again."""

    def hold(self) -> None:
        """Keep the device from beginning further steps, because collectives are about to be aborted."""

    def go_back(self) -> None:
        """Wait for the device, and revert the run's changes since the last step that the device made."""

    def loaded(self) -> None:
        """Record that the run has loaded another rank's complete state."""

    def random_after(self, step: int) -> torch.Tensor | None:
        """Returns this rank's random state after `step`, even if the step wasn't made; None if it isn't kept."""
        return None

    def forget(self) -> None:
        """Delete the state in memory, because the run returns to an older state."""

    def end(self) -> None:
        """Delete everything from memory, because the run is complete."""

    def continue_as(self, attempt: int) -> None:
        """Continue as a new attempt in the same processes, from the run's current state."""

    def __enter__(self) -> NothingInMemory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Stop keeping the state, because the rank ends. After an error the state stays in memory."""

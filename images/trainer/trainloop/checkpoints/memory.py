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
    """These settings say what is kept in memory for the next attempt."""

    enabled: bool = Field(True, description="Keep the state in TRAINMASTER_MEMORY_DIR, where that is set.")


class NothingInMemory:
    """Nothing is kept in memory: the next attempt continues from a checkpoint. `surviving` keeps a state."""

    #: Whether the run continues from a step after which the evaluation and the checkpoint may be missing.
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
        """Record that the state begins to change; until `finished` it is incomplete."""

    def finished(self) -> None:
        """Record that the step is made, so the run's state is complete again."""

    def hold(self) -> None:
        """Keep the device from beginning further steps, because collectives are about to be aborted."""

    def go_back(self) -> None:
        """Wait for the device, and revert the run's changes since the last step that was made."""

    def loaded(self) -> None:
        """Record that the run has loaded another rank's complete state."""

    def random_after(self, step: int) -> torch.Tensor | None:
        """Returns this rank's random state after `step`, even if the step wasn't made; None if it isn't kept."""
        return None

    def forget(self) -> None:
        """Delete the state in memory, because the run goes back to an older one."""

    def end(self) -> None:
        """Delete everything from memory, because the run is at its end."""

    def continue_as(self, attempt: int) -> None:
        """Continue as another attempt in the same processes, from the run's current state."""

    def __enter__(self) -> NothingInMemory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """End the rank; after an error its state stays in memory."""

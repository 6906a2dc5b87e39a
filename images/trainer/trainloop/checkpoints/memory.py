"""The state of the last finished step outlives its rank in the pod's memory, where the operator has given one.

`NothingInMemory` is what a run without such a directory has. `surviving` keeps a state, by `recovery`, which does so
for any script.
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

    #: Whether the run continues from a step whose evaluation and checkpoint may be missing.
    resumed = False
    #: Why a step that isn't made can't be taken back; None where it can.
    obstacle: str | None = "no state is kept in memory"
    #: Whether a step has begun to change the state, and hasn't ended.
    half_made = True

    def resume(self, newest: Checkpoint | None) -> bool:
        """Restore the state in memory, if it isn't older than the `newest` checkpoint; returns whether it did."""
        return False

    def begin(self) -> None:
        """Note that the first step comes now."""

    def changing(self) -> None:
        """Note that the state changes from now on: nothing that a step changes is whole before `finished`."""

    def finished(self) -> None:
        """Note that the step is made: the whole run is as it is after that step."""

    def hold(self) -> None:
        """Let the device make no step that it hasn't begun, because collectives are about to be ended."""

    def go_back(self) -> None:
        """Wait for the device, and put back what the run has changed since the last step that was made."""

    def loaded(self) -> None:
        """Note that the run's state is another rank's now, and whole."""

    def random_after(self, step: int) -> torch.Tensor | None:
        """Returns this rank's random state after `step`, which it may not have made; None where it isn't kept."""
        return None

    def forget(self) -> None:
        """Delete what is in memory: the run goes back to an older state."""

    def end(self) -> None:
        """Leave nothing in memory, because the run is at its end."""

    def continue_as(self, attempt: int) -> None:
        """Continue as another attempt in the same processes, from the state that the run has."""

    def __enter__(self) -> NothingInMemory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """End the rank; after an error it leaves its state."""

"""These errors end a run with a message for the user; each class sets the exit code.

TrainingError            1    training can't continue
    ├── ConfigError          2    the configuration can't be used; restarting doesn't help
    ├── PreflightMismatch   67    ranks run different code or settings; the agent uses this exit code too
    ├── Diverged            70    loss or parameters became unusable, and returning to a checkpoint didn't help
    └── OutOfMemory         71    the device's memory is too small for this configuration
"""

from __future__ import annotations

from collections.abc import Sequence


class TrainingError(RuntimeError):
    """A training error ends the run; its message is for the user."""

    exit_code = 1


class ConfigError(TrainingError, ValueError):
    """The configuration can't be used."""

    exit_code = 2


class PreflightMismatch(TrainingError):
    """Ranks run different code, configuration or libraries."""

    exit_code = 67


class Diverged(TrainingError):
    """Loss, gradients or parameters became unusable, and the run couldn't recover."""

    exit_code = 70


class OutOfMemory(TrainingError):
    """The accelerator's memory was too small."""

    exit_code = 71


def listed(things: Sequence[object], most: int = 8) -> str:
    """Returns a phrase that lists at most `most` of the things, and counts the rest."""
    more = f" and {len(things) - most} more" if len(things) > most else ""
    return ", ".join(map(str, things[:most])) + more

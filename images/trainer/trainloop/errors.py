"""These errors end a run with a sentence, each with its exit code.

TrainingError            1    training can't continue
    ├── ConfigError          2    the configuration can't be used; restarting doesn't help
    ├── PreflightMismatch   67    ranks run different code or settings; the agent has the same code
    ├── Diverged            70    the loss or the parameters went wrong, and going back didn't help
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
    """Loss, gradients or parameters went wrong beyond repair."""

    exit_code = 70


class OutOfMemory(TrainingError):
    """The accelerator's memory was too small."""

    exit_code = 71


def listed(things: Sequence[object], most: int = 8) -> str:
    """Returns things as a phrase; a long list is cut after the first ones."""
    more = f" and {len(things) - most} more" if len(things) > most else ""
    return ", ".join(map(str, things[:most])) + more

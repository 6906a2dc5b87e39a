"""These errors end the agent or a launch; an error's text is one sentence for the user."""

from __future__ import annotations


class UsageError(Exception):
    """The command line or the environment is wrong: exit code 64."""


class LaunchError(Exception):
    """The ranks can't be started here: exit code 65."""


NO_TORCH = (
    "this image has no torch, which the launcher torchrun needs; use an image with torch, or set spec.launcher to exec"
)
"""The text of a LaunchError if torchrun is missing, or Python doesn't find torch."""

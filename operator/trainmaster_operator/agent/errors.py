"""These errors end the agent or a request; malformed messages raise `wire.values.ProtocolError`."""

from __future__ import annotations


class AgentError(Exception):
    """AgentError is the base of the agent's own errors; the text is one sentence for the user."""


class UsageError(AgentError):
    """The command line or the environment is wrong: exit code 64."""


class LaunchError(AgentError):
    """The ranks can't be started here: exit code 65."""


NO_TORCH = (
    "this image has no torch, which the launcher torchrun needs; use an image with torch, or set spec.launcher to exec"
)
"""The text of a LaunchError if torchrun is missing, or Python doesn't find torch."""

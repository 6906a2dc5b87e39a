"""The agent's own exit codes, and the errors that end it or a request.

Exit codes are part of docs/protocol.md: the kubelet shows them, and the operator's rules match on them.
"""

from __future__ import annotations

EXIT_FINISHED = 0
EXIT_USAGE = 64
EXIT_TERMINATED = 143

# The agent's own reasons for a failure; any other failure ends with the child's code.
EXIT_BY_REASON = {
    "LaunchError": 65,
    "MasterUnreachable": 66,
    "PreflightMismatch": 67,
    "Hung": 68,
    "AgentLost": 69,
}


class AgentError(Exception):
    """Base of what the agent raises itself; the text is one sentence for a person."""


class UsageError(AgentError):
    """The command line or the environment is wrong: exit code 64."""


class LaunchError(AgentError):
    """The ranks can't be started here: exit code 65."""


class InvalidAssignment(AgentError):
    """A text that isn't an assignment; says which field is wrong."""

"""A worker's end has a reason, and the agent an exit code: the kubelet shows them, and the job's rules match them."""

from __future__ import annotations

FAILURE_REASONS = frozenset(
    {
        *("Error", "Signal", "OOMKilled", "Hung", "PreflightMismatch", "MasterUnreachable"),
        *("LaunchError", "Usage", "AgentLost", "Diverged"),
    }
)
"""What an agent may give as the reason of a failure."""

EXIT_FINISHED = 0
EXIT_USAGE = 64
EXIT_DIVERGED = 70
"""A script's own, which ends with an exception of that name."""
EXIT_KILLED = 137
"""128 + SIGKILL."""
EXIT_TERMINATED = 143
"""128 + SIGTERM, which the agent has obeyed."""
EXIT_BY_REASON = {
    "LaunchError": 65,
    "MasterUnreachable": 66,
    "PreflightMismatch": 67,
    "Hung": 68,
    "AgentLost": 69,
}
"""The agent's own reasons for a failure; any other failure ends with the child's code."""
REASON_BY_EXIT_CODE = {
    EXIT_USAGE: "Usage",
    EXIT_TERMINATED: "Stopped",
    **{code: reason for reason, code in EXIT_BY_REASON.items()},
}
"""For the case that a termination message was lost."""
EXIT_CODES = {
    **{reason: code for code, reason in REASON_BY_EXIT_CODE.items()},
    "Diverged": EXIT_DIVERGED,
    "OOMKilled": EXIT_KILLED,
}
"""Every code that goes with one reason."""

"""Makes docs/reasons.md: each reason's meaning, exit code and default consequence."""

from __future__ import annotations

from typing import get_args

from trainmaster_operator.api.reasons import REASONS
from trainmaster_operator.api.v1alpha1 import AnswerableReason
from trainmaster_operator.wire.report import EXIT_DIVERGED, EXIT_KILLED, REASON_BY_EXIT_CODE

_INTRODUCTION = """\
# Reasons

Look up a reason of a job's conditions, `status.failures` or events here. (`make generate` makes this page from
`operator/trainmaster_operator/api/reasons.py`.) `failurePolicy.rules` can override the default where the fourth column
says yes: not for disruptions, which never count, and not for reasons that prevent the start or end the whole job. A
worker's exit code is its program's own (128 + signal for a signal) unless the agent has one for the reason.

"""
EXIT_CODES = {reason: code for code, reason in REASON_BY_EXIT_CODE.items()}
EXIT_CODES |= {"Diverged": EXIT_DIVERGED, "OOMKilled": EXIT_KILLED}
_ANSWERS = {"Restart": "restart, counted", "Ignore": "restart, not counted", "Fail": "the job fails"}


def reasons_table() -> str:
    """Returns the table of all reasons."""
    rows = [
        f"| `{reason.name}` | {EXIT_CODES.get(reason.name, '')} | {_ANSWERS[reason.answer]} | "
        f"{'yes' if reason.name in get_args(AnswerableReason) else ''} | {reason.meaning} |"
        for reason in REASONS.values()
    ]
    return "\n".join(
        ["| reason | exit code | default | rules can override | meaning |", "|---|---|---|---|---|", *rows, ""]
    )


def reasons_page() -> str:
    """Returns the whole page."""
    return _INTRODUCTION + reasons_table()

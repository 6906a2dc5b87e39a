"""This module makes docs/reasons.md: what each reason means, its exit code, and what follows by default."""

from __future__ import annotations

from typing import get_args

from trainmaster_operator.api.reasons import REASONS
from trainmaster_operator.api.v1alpha1 import AnswerableReason

_INTRODUCTION = """\
# Reasons

`make generate` makes this page from `operator/trainmaster_operator/api/reasons.py`. A reason stands in the job's
conditions, in `status.failures` and in its events. `failurePolicy.rules` can answer otherwise than the table says where
it says so: not a disruption, which never counts, and not what keeps the job from starting or ends all of it. A worker's
exit code is its program's own (128 + signal for a signal) unless the agent has one of its own for the reason.

"""
_ANSWERS = {"Restart": "restart, counted", "Ignore": "restart, not counted", "Fail": "the job fails"}


def reasons_table() -> str:
    """Returns the table of all reasons."""
    rows = [
        f"| `{reason.name}` | {reason.exit_code or ''} | {_ANSWERS[reason.answer]} | "
        f"{'yes' if reason.name in get_args(AnswerableReason) else ''} | {reason.meaning} |"
        for reason in REASONS.values()
    ]
    return "\n".join(
        ["| reason | exit code | by default | rules can answer | what it means |", "|---|---|---|---|---|", *rows, ""]
    )


def reasons_page() -> str:
    """Returns the whole page."""
    return _INTRODUCTION + reasons_table()

"""Returns the problems of a job's spec as sentences that a user reads."""

from __future__ import annotations

from typing import Any

from trainmaster_operator.api.parsing import InvalidJob, parse_spec


def sentences(spec: Any, name: str = "job") -> list[str]:
    try:
        parse_spec(spec, name)
    except InvalidJob as error:
        return [str(problem) for problem in error.problems]
    return []

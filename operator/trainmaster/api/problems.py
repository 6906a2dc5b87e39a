"""Each problem of a job is one sentence, with the field, the value and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Problem:
    """Problem is one thing that is wrong. `message` says why the value can't be and what to do."""

    # Kubernetes writes it so: spec.workerGroups[1].name
    field: str
    value: Any
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class InvalidJob(ValueError):
    """The job can't run; `problems` is everything that is wrong with it, in the order of the spec's fields."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = tuple(problems)

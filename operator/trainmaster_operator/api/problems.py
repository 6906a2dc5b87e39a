"""Each problem of a job is one sentence, with the field, the value and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainmaster_operator.api.printable import one_line

if TYPE_CHECKING:
    from trainmaster_operator.api.v1alpha1 import JobSpec


@dataclass(frozen=True)
class Problem:
    """Problem is one thing that is wrong. `message` says why the value can't be and what to do."""

    # Kubernetes writes it so: spec.workerGroups[1].name
    field: str
    value: Any
    message: str

    def __str__(self) -> str:
        return one_line(f"{self.field}: {self.message}")


class InvalidJob(ValueError):
    """The job can't run; `problems` is everything that is wrong with it, in the order of the spec's fields.

    `spec` is there where each field by itself is right, so that a job goes on that was accepted before a check was new.
    """

    def __init__(self, problems: Sequence[Problem], spec: JobSpec | None = None) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = tuple(problems)
        self.spec = spec

    def shortened(self, characters: int) -> str:
        """Returns as many whole sentences as fit, and how many more there are."""
        shown = ""
        for position, problem in enumerate(self.problems):
            left = len(self.problems) - position - 1
            longer = f"{shown}; {problem}" if shown else str(problem)
            more = f"; and {left} more" if left else ""
            if shown and len(longer) + len(more) > characters:
                return f"{shown}; and {left + 1} more"
            shown = longer
        return shown[:characters]

"""A finding is what one rule found; the diagnosis is the gravest finding, with the others in a line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Step:
    """Step is something to do next: what, and where there is one the command that does or shows it."""

    text: str
    command: str = ""


@dataclass(frozen=True)
class Finding:
    """Finding is one cause. `clause` reads behind the job's name and phase: "big is Pending: <clause>"."""

    cause: str
    """One word for programs, such as InsufficientResources."""
    clause: str
    evidence: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    is_certain: bool = True
    """False where what was read allows another explanation."""


@dataclass(frozen=True)
class Diagnosis:
    """Diagnosis is the answer to "why": one cause with its evidence and what to do next.

    `others` are further findings, `unread` says what couldn't be read and so isn't part of the answer.
    """

    namespace: str
    name: str
    phase: str
    cause: str
    sentence: str
    evidence: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    is_certain: bool = True
    others: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the same for a program."""
        return {
            "namespace": self.namespace,
            "name": self.name,
            "phase": self.phase,
            "cause": self.cause,
            "sentence": self.sentence,
            "certainty": "certain" if self.is_certain else "likely",
            "evidence": list(self.evidence),
            "next": [{"text": step.text} | ({"command": step.command} if step.command else {}) for step in self.steps],
            "others": list(self.others),
            "unread": list(self.unread),
        }

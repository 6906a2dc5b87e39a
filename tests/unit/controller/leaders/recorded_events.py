"""Implements `StreamEvents` by recording every event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from trainmaster_operator.controller.leaders.streams import Fault
from trainmaster_operator.wire.stream import EvidenceLine, OutputLine


@dataclass
class RecordedEvents:
    """Records the events that streams report to components other than the store."""

    on_unauthorized: Callable[[str], None] = lambda _: None
    progress: list[bool] = field(default_factory=list)
    evidence: list[EvidenceLine] = field(default_factory=list)
    answers: list[EvidenceLine] = field(default_factory=list)
    outputs: list[OutputLine] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.progressed = lambda key, first: self.progress.append(first)
        self.stalled = lambda uid, line: self.evidence.append(line)
        self.answered = lambda uid, line: self.answers.append(line)
        self.printed = lambda key, uid, line: self.outputs.append(line)
        self.unauthorized = self.on_unauthorized
        self.failed = self.faults.append

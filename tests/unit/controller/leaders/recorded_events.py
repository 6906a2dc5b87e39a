"""Implements `StreamEvents` by recording every event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from trainmaster_operator.controller.cache.records import JobKey
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

    def progressed(self, key: JobKey, first: bool) -> None:
        self.progress.append(first)

    def stalled(self, uid: str, line: EvidenceLine) -> None:
        self.evidence.append(line)

    def answered(self, uid: str, line: EvidenceLine) -> None:
        self.answers.append(line)

    def printed(self, key: JobKey, uid: str, line: OutputLine) -> None:
        self.outputs.append(line)

    def unauthorized(self, namespace: str) -> None:
        self.on_unauthorized(namespace)

    def failed(self, fault: Fault) -> None:
        self.faults.append(fault)

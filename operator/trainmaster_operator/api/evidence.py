"""The evidence of an attempt is what is kept of how it ended, after its pods are gone.

It is one JSON text by attempt in the ConfigMap `<job>-evidence`, key `attempt-<n>.json`. Anybody may have edited it, so
`AttemptEvidence.parse` accepts whatever stands there. What ranks and agents reported in it has come over the wire.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainmaster_operator.api.printable import UNSAFE
from trainmaster_operator.wire.limits import MAX_INDEX
from trainmaster_operator.wire.values import decimal, loads, mapping, whole

_PARTS = ("failure", "workers", "ranks", "logs")
_KEY = re.compile(r"attempt-(\d{1,9})\.json")


def evidence_name(job: str) -> str:
    """Returns the ConfigMap's name."""
    return f"{job}-evidence"


def evidence_key(attempt: int) -> str:
    """Returns an attempt's key in the ConfigMap."""
    return f"attempt-{attempt}.json"


def attempt_of(key: str) -> int | None:
    """Returns the attempt of a key, or None."""
    match = _KEY.fullmatch(key)
    return int(match[1]) if match else None


def clean(text: object, limit: int) -> str:
    """Returns the beginning of a text that came from a pod: valid UTF-8, without control characters, bounded."""
    raw = text[:limit] if isinstance(text, str) else ""
    return UNSAFE.sub("", raw.encode("utf-8", "replace").decode())


@dataclass(frozen=True)
class AttemptEvidence:
    """AttemptEvidence is what is kept of one attempt; its sections are objects as they are on the wire.

    `failure` is the status's own record; `workers` what each agent (or container) reported at the end, by index;
    `ranks` how each rank stood in a stall, with the stacks of all its threads; `logs` ends of workers' logs.
    """

    attempt: int
    failure: Mapping[str, Any] = field(default_factory=dict)
    workers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    ranks: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    logs: Mapping[int, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Returns the value in the ConfigMap."""
        return json.dumps(
            {
                "attempt": self.attempt,
                "failure": dict(self.failure),
                "workers": {str(worker): dict(report) for worker, report in sorted(self.workers.items())},
                "ranks": {str(rank): dict(stood) for rank, stood in sorted(self.ranks.items())},
                "logs": {str(worker): text for worker, text in sorted(self.logs.items())},
            },
            separators=(",", ":"),
        )

    @classmethod
    def parse(cls, text: str) -> AttemptEvidence | None:
        """Reads a value back; None where it isn't one (anybody may have edited it)."""
        try:
            data = mapping(loads(text))
        except ValueError:
            return None
        attempt = whole(data.get("attempt"))
        if attempt is None or not all(isinstance(data.get(name) or {}, dict) for name in _PARTS):
            return None
        return cls(
            attempt=attempt,
            failure=mapping(data.get("failure")),
            workers={worker: mapping(report) for worker, report in _by_index(data.get("workers"))},
            ranks={rank: mapping(stood) for rank, stood in _by_index(data.get("ranks"))},
            logs={worker: log for worker, log in _by_index(data.get("logs")) if isinstance(log, str)},
        )


def _by_index(value: object) -> Iterator[tuple[int, Any]]:
    for key, item in mapping(value).items():
        index = decimal(key, MAX_INDEX)
        if index is not None:
            yield index, item

"""The evidence of an attempt: what is kept of how it ended, after its pods are gone.

It is one JSON text by attempt in the ConfigMap `<job>-evidence`, key `attempt-<n>.json`. What ranks and agents said in
it is user input: `parse_ranks` bounds it where it comes in, and `AttemptEvidence.parse` takes whatever stands there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainmaster.api.json_values import decimal, is_number, is_whole, loads, mapping, shown, whole
from trainmaster.api.printable import UNSAFE
from trainmaster.api.protocol import MAX_INDEX, SECTIONS, ProtocolError

MAX_RANKS = 1_024
MAX_TEXT = 40_000
_MEMBERS = ("failure", "workers", "ranks", "logs")
_KEY = re.compile(r"attempt-(\d{1,9})\.json")


def evidence_name(job: str) -> str:
    """The ConfigMap's name."""
    return f"{job}-evidence"


def evidence_key(attempt: int) -> str:
    """An attempt's key in it."""
    return f"attempt-{attempt}.json"


def attempt_of(key: str) -> int | None:
    """The attempt of a key, or None."""
    match = _KEY.fullmatch(key)
    return int(match[1]) if match else None


def clean(text: object, limit: int) -> str:
    """The beginning of a text that came from a pod: valid UTF-8, without control characters, bounded."""
    raw = text[:limit] if isinstance(text, str) else ""
    return UNSAFE.sub("", raw.encode("utf-8", "replace").decode())


def parse_ranks(value: object) -> dict[int, dict[str, Any]]:
    """The `ranks` of an evidence line, bounded. Raises ProtocolError where it isn't an object of ranks."""
    if not isinstance(value, Mapping):
        raise ProtocolError(f"evidence.ranks: {shown(value)} is not an object")
    if len(value) > MAX_RANKS:
        raise ProtocolError(f"evidence.ranks: {len(value)} are more than {MAX_RANKS}")
    found: dict[int, dict[str, Any]] = {}
    left = MAX_TEXT
    for rank, data in value.items():
        number = decimal(rank, MAX_INDEX)
        if number is None:
            raise ProtocolError(f"evidence.ranks: {shown(rank)} is not a rank")
        if not isinstance(data, Mapping):
            raise ProtocolError(f"evidence.ranks.{rank}: {shown(data)} is not an object")
        text = clean(data.get("text"), left)
        left -= len(text)
        kept = {name: data[name] for name in ("step", "collective") if is_whole(data.get(name))}
        silent = data.get("silentSeconds")
        if isinstance(silent, int | float) and is_number(silent) and 0 <= silent < 1e9:
            kept["silentSeconds"] = silent
        if isinstance(data.get("section"), str) and data["section"] in SECTIONS:
            kept["section"] = data["section"]
        if isinstance(data.get("state"), str):
            kept["state"] = clean(data["state"], 1)
        if data.get("waits") is True:
            kept["waits"] = True
        found[number] = {**kept, "text": text}
    return found


@dataclass(frozen=True)
class AttemptEvidence:
    """What is kept of one attempt; the members are objects as they stand on the wire.

    `failure` is the status's own record; `workers` what each worker's agent (or container) said at the end, by index;
    `ranks` how each rank stood in a stall, with the stacks of all its threads; `logs` ends of workers' logs.
    """

    attempt: int
    failure: Mapping[str, Any] = field(default_factory=dict)
    workers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    ranks: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    logs: Mapping[int, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """The value in the ConfigMap."""
        return json.dumps(
            {
                "attempt": self.attempt,
                "failure": dict(self.failure),
                "workers": {str(worker): dict(told) for worker, told in sorted(self.workers.items())},
                "ranks": {str(rank): dict(stood) for rank, stood in sorted(self.ranks.items())},
                "logs": {str(worker): text for worker, text in sorted(self.logs.items())},
            },
            separators=(",", ":"),
        )

    @classmethod
    def parse(cls, text: str) -> AttemptEvidence | None:
        """Read a value back; None where it isn't one (anybody may have edited it)."""
        try:
            data = mapping(loads(text))
        except ValueError:
            return None
        attempt = whole(data.get("attempt"))
        if attempt is None or not all(isinstance(data.get(name) or {}, dict) for name in _MEMBERS):
            return None
        return cls(
            attempt=attempt,
            failure=mapping(data.get("failure")),
            workers={worker: mapping(told) for worker, told in _by_index(data.get("workers"))},
            ranks={rank: mapping(stood) for rank, stood in _by_index(data.get("ranks"))},
            logs={worker: log for worker, log in _by_index(data.get("logs")) if isinstance(log, str)},
        )


def _by_index(value: object) -> Iterator[tuple[int, Any]]:
    for key, item in mapping(value).items():
        index = decimal(key, MAX_INDEX)
        if index is not None:
            yield index, item

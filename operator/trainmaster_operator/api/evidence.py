"""The ConfigMaps `<job>-evidence` and `<job>-stacks` keep evidence of each attempt's end, and requested stack traces.

Evidence is one JSON text for each attempt (key `attempt-<n>.json`), which outlives the pods. Stacks are kept only for
the newest request. `stacks.json` lists the workers that answered and the state of each rank, and `rank-<n>.txt`
contains a rank's stacks. Anyone may have edited a ConfigMap, so parsing accepts any content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainmaster_operator.api.printable import UNSAFE
from trainmaster_operator.wire.limits import MAX_INDEX
from trainmaster_operator.wire.values import camel, decimal, loads, mapping, whole

_PARTS = ("failure", "workers", "ranks", "logs")
_KEY = re.compile(r"attempt-(\d{1,9})\.json")


def evidence_name(job: str) -> str:
    """Returns the name of the ConfigMap."""
    return f"{job}-evidence"


def evidence_key(attempt: int) -> str:
    """Returns an attempt's key in the ConfigMap."""
    return f"attempt-{attempt}.json"


def attempt_of(key: str) -> int | None:
    """Returns the attempt's number from a key, or None."""
    match = _KEY.fullmatch(key)
    return int(match[1]) if match else None


def clean(text: object, limit: int) -> str:
    """Returns at most `limit` characters of a text from a pod, as valid UTF-8 and without control characters."""
    raw = text[:limit] if isinstance(text, str) else ""
    return UNSAFE.sub("", raw.encode("utf-8", "replace").decode())


@dataclass(frozen=True)
class AttemptEvidence:
    """AttemptEvidence is the stored evidence of one attempt. Its sections are objects in their JSON form.

    `failure` is copied from the status. `workers` contains the final report of each agent (or container), by index.
    `ranks` contains the state of each rank in a stall, with the stacks of all its threads. `logs` contains the ends of
    the workers' logs.
    """

    attempt: int
    failure: Mapping[str, Any] = field(default_factory=dict)
    workers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    ranks: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    logs: Mapping[int, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Returns the JSON text for the ConfigMap."""
        parts = {name: dict(sorted(getattr(self, name).items())) for name in ("workers", "ranks", "logs")}
        return json.dumps({"attempt": self.attempt, "failure": self.failure, **parts}, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> AttemptEvidence | None:
        """Parses a value of the ConfigMap. Returns None if the value isn't evidence."""
        try:
            data = mapping(loads(text))
        except ValueError:
            return None
        attempt = whole(data.get("attempt"))
        if attempt is None or not all(isinstance(data.get(name) or {}, dict) for name in _PARTS):
            return None
        logs = {worker: log for worker, log in _by_index(data.get("logs")) if isinstance(log, str)}
        workers, ranks = ({i: mapping(one) for i, one in _by_index(data.get(part))} for part in ("workers", "ranks"))
        return cls(attempt, mapping(data.get("failure")), workers, ranks, logs)


def _by_index(value: object) -> Iterator[tuple[int, Any]]:
    for key, item in mapping(value).items():
        index = decimal(key, MAX_INDEX)
        if index is not None:
            yield index, item


STACKS_KEY = "stacks.json"


def stacks_name(job: str) -> str:
    """Returns the name of the ConfigMap."""
    return f"{job}-stacks"


def rank_key(rank: int) -> str:
    """Returns the key of a rank's stacks in the ConfigMap."""
    return f"rank-{rank}.txt"


@dataclass(frozen=True)
class Stacks:
    """Stacks is the answer to one request.

    `ranks` contains the state of each rank in its JSON form, with the stacks as `text`. `unanswered` lists the workers
    that didn't answer in time. `left_out` is the number of ranks that didn't fit into the ConfigMap. `problem` is the
    reason if no request could be sent. If `withheld` is set, there are no stacks, because the job's output isn't kept
    (runPolicy.keepLogs).
    """

    request: str
    attempt: int
    collected_at: str = ""
    ranks: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    unanswered: tuple[int, ...] = ()
    left_out: int = 0
    problem: str = ""
    withheld: bool = False

    def to_data(self) -> dict[str, str]:
        """Returns the data of the ConfigMap."""
        ranks = sorted(self.ranks.items())
        head = {camel(name): value for name, value in vars(self).items()}
        head["ranks"] = {rank: {name: state[name] for name in state if name != "text"} for rank, state in ranks}
        texts = {rank_key(rank): text for rank, state in ranks if (text := state.get("text"))}
        return {STACKS_KEY: json.dumps(head, separators=(",", ":")), **texts}

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Stacks | None:
        """Parses the data of the ConfigMap. Returns None if it contains no stacks."""
        try:
            head = mapping(loads(str(data.get(STACKS_KEY, ""))))
        except ValueError:
            return None
        if not isinstance(head.get("request"), str):
            return None
        ranks = _by_index(head.get("ranks"))
        unanswered = head["unanswered"] if isinstance(head.get("unanswered"), list) else ()
        return cls(
            request=head["request"],
            attempt=whole(head.get("attempt")) or 0,
            collected_at=str(head.get("collectedAt") or ""),
            ranks={rank: {**mapping(state), "text": str(data.get(rank_key(rank), ""))} for rank, state in ranks},
            unanswered=tuple(one for one in unanswered if whole(one) is not None),
            left_out=whole(head.get("leftOut")) or 0,
            problem=str(head.get("problem") or ""),
            withheld=head.get("withheld") is True,
        )

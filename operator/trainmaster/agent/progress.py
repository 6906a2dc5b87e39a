"""Progress files: what ranks write of how far they are (docs/protocol.md, "Progress"). They are user input."""

from __future__ import annotations

import json
import math
import os
import time
from typing import Any

MAX_FILE_BYTES = 4_096
MAX_RESULTS = 16
MAX_MESSAGE_CHARACTERS = 200
MAX_RANKS = 256
SECTIONS = ("setup", "data", "train", "evaluate", "checkpoint", "finish")
_WHOLE = ("step", "totalSteps", "startStep")
_NUMBERS = ("epoch", "loss", "samplesPerSecond", "stepSeconds", "etaSeconds", "sectionSeconds")
_WAITED = ("dataSeconds", "checkpointSeconds", "evaluateSeconds")


def parse_progress(text: bytes) -> dict[str, Any] | None:
    """The known fields of one progress file that are well-formed; None where it isn't a JSON object."""
    if len(text) > MAX_FILE_BYTES:
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return clean_progress(data)


def clean_progress(data: Any) -> dict[str, Any] | None:
    """Keep the known fields that are well-formed."""
    if not isinstance(data, dict):
        return None
    kept: dict[str, Any] = {}
    for name in _WHOLE:
        value = data.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53:
            kept[name] = value
    for name in (*_NUMBERS, *_WAITED):
        if _finite(data.get(name)):
            kept[name] = data[name]
    if data.get("section") in SECTIONS:
        kept["section"] = data["section"]
    if isinstance(data.get("message"), str):
        kept["message"] = data["message"][:MAX_MESSAGE_CHARACTERS]
    if isinstance(data.get("result"), dict):
        numbers = {str(name)[:64]: value for name, value in data["result"].items() if _finite(value)}
        kept["result"] = dict(list(numbers.items())[:MAX_RESULTS])
    return kept


def clean_ranks(value: Any) -> dict[str, dict[str, Any]]:
    """Bound the `ranks` of a progress line that came over the wire."""
    if not isinstance(value, dict):
        return {}
    ranks: dict[str, dict[str, Any]] = {}
    for rank, data in list(value.items())[:MAX_RANKS]:
        cleaned = clean_progress(data)
        if cleaned is not None and rank.isascii() and rank.isdigit() and len(rank) < 8:
            ranks[rank] = cleaned
    return ranks


def _finite(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return -1e300 < value < 1e300 and math.isfinite(value)


class Heartbeats:
    """The progress files of one worker's ranks in one attempt."""

    def __init__(self, path: str, ranks: range) -> None:
        # The plain file is the first rank's, where that doesn't write one of its own.
        self._files = [(str(ranks[0]), path), *((str(rank), f"{path}.{rank}") for rank in ranks)]
        self._seen: dict[str, tuple[int, int, int]] = {}
        self.ranks: dict[str, dict[str, Any]] = {}
        """The newest well-formed progress of each rank."""
        self.progressed_at: dict[str, float] = {}
        """When each rank's `step` or `section` last changed, on the monotonic clock."""

    def poll(self) -> bool:
        """Read what has changed; whether anything has."""
        changed = False
        for rank, path in self._files:
            try:
                status = os.stat(path)
                seen = (status.st_ino, status.st_mtime_ns, status.st_size)
                if self._seen.get(path) == seen:
                    continue
                with open(path, "rb") as file:
                    text = file.read(MAX_FILE_BYTES + 1)
            except OSError:
                continue
            self._seen[path] = seen
            progress = parse_progress(text)
            if progress is None:
                continue
            before = self.ranks.get(rank, {})
            if (before.get("step"), before.get("section")) != (progress.get("step"), progress.get("section")):
                self.progressed_at[rank] = time.monotonic()
            self.ranks[rank] = progress
            changed = True
        return changed

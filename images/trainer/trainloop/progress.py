"""How far this rank is, told to the agent through the file named in TRAINMASTER_PROGRESS_FILE (docs/protocol.md).

Without that variable nothing is written. A script that doesn't use the loop needs only the one line in `heartbeat`.
"""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Literal

Section = Literal["setup", "data", "train", "evaluate", "checkpoint", "finish"]

#: Seconds between two writes for steps: a step may be shorter than a rename on a slow disk.
MINIMUM_INTERVAL = 0.2
MAXIMUM_RESULTS = 16
MAXIMUM_MESSAGE = 200


class Progress:
    """Writes this rank's progress; each write replaces the file, so a reader never sees half a line."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._fields: dict[str, object] = {"section": "setup"}
        # What training has waited in this attempt, by the protocol's names, and since when the section goes on.
        self._waited = dict.fromkeys(("dataSeconds", "checkpointSeconds", "evaluateSeconds"), 0.0)
        self._entered = time.monotonic()
        self._written = -math.inf

    @classmethod
    def from_environment(cls, rank: int, local_size: int) -> Progress:
        """The file that the agent named; with several ranks in a worker each has its own, `<file>.<rank>`."""
        name = os.environ.get("TRAINMASTER_PROGRESS_FILE")
        if not name:
            return cls(None)
        return cls(Path(name if local_size == 1 else f"{name}.{rank}"))

    def enter(self, section: Section, seconds: float | None = None, message: str | None = None) -> None:
        """Say which section begins, and how many `seconds` it may take where the step's limit is too short."""
        now = time.monotonic()
        waited = f"{self._fields['section']}Seconds"
        if waited in self._waited and "startStep" in self._fields:
            self._waited[waited] += now - self._entered
        self._entered = now
        self._fields["section"] = section
        self._set("sectionSeconds", seconds)
        self._set("message", message[:MAXIMUM_MESSAGE] if message else None)
        self._write()

    def begin(self, step: int) -> None:
        """Training begins after `step`: 0, or the checkpoint's. From here on waits are counted."""
        self._fields |= {"section": "setup", "startStep": step}
        self.enter("train")

    def wait_for_data(self, seconds: float) -> None:
        """A step has waited for its data."""
        self._waited["dataSeconds"] += seconds

    def step(self, step: int, **numbers: float | None) -> None:
        """Say that `step` is done; `numbers` are the protocol's other fields, by name."""
        self._fields["step"] = step
        for name, value in numbers.items():
            self._set(name, value)
        if time.monotonic() - self._written >= MINIMUM_INTERVAL:
            self._write()

    def result(self, numbers: dict[str, float]) -> None:
        """Leave the run's result, at most 16 finite numbers by name."""
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        self._fields["result"] = dict(list(finite.items())[:MAXIMUM_RESULTS])
        self._write()

    def _set(self, name: str, value: float | str | None) -> None:
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            self._fields.pop(name, None)
        else:
            self._fields[name] = value

    def _write(self) -> None:
        if self.path is None:
            return
        counted = self._waited if "startStep" in self._fields else {}
        waited = {name: round(seconds, 3) for name, seconds in counted.items()}
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        temporary.write_text(json.dumps({**self._fields, **waited}) + "\n")
        temporary.replace(self.path)
        self._written = time.monotonic()


def heartbeat(step: int, total: int | None = None, loss: float | None = None) -> None:
    """Progress for a script of one's own: call it every step, it is cheap and does nothing outside Trainmaster."""
    name = os.environ.get("TRAINMASTER_PROGRESS_FILE")
    if name:
        Progress(Path(name)).step(step, totalSteps=total, loss=loss)

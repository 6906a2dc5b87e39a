"""A rank reports its progress to the agent through the file named in TRAINMASTER_PROGRESS_FILE (docs/protocol.md).

A second file beside that one contains only the step, and is written in every step, so that the agent can compare ranks
in a hang. If the variable isn't set, nothing is written. A script that doesn't use the loop can just call `heartbeat`.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

Section = Literal["setup", "data", "train", "evaluate", "checkpoint", "finish"]

#: The minimum time between two writes because of steps, in seconds. On a slow disk, a rename may take longer than a
#: step.
MINIMUM_INTERVAL = 0.5
MAXIMUM_RESULTS, MAXIMUM_MESSAGE, MAXIMUM_METRICS = 16, 200, 32
#: Names that a metric may have, and the names of the numbers that have fields of their own. Other spellings of these
#: names mean the same fields.
METRIC = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,63}")
FIELDS = (
    *("totalSteps", "epoch", "loss", "gradNorm", "learningRate", "samplesPerSecond", "stepSeconds", "computeSeconds"),
    "etaSeconds",
)
SPELLINGS = {re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name): name for name in FIELDS}


class Progress:
    """This class writes a rank's progress. Each write replaces the file, so a reader never reads half a line."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        # : The reported values by the protocol's names. None and numbers that aren't finite are omitted.
        self._fields: dict[str, Any] = {"section": "setup"}
        self._entered = time.monotonic()
        self._written = -math.inf
        self._counter = -1  # the descriptor of the step's file

    @classmethod
    def from_environment(cls, rank: int, local_size: int) -> Progress:
        """Returns the progress for the file that the agent named.

        If a worker has several ranks, each has its own file, `<file>.<rank>`.
        """
        name = os.environ.get("TRAINMASTER_PROGRESS_FILE")
        return cls(Path(name if local_size == 1 else f"{name}.{rank}") if name else None)

    def enter(self, section: Section, seconds: float | None = None, message: str | None = None) -> None:
        """Reports that a section begins, and its time limit in `seconds` if the limit for steps is too short for it."""
        now, waited = time.monotonic(), f"{self._fields['section']}Seconds"
        if waited in self._fields:
            self._fields[waited] += now - self._entered
        self._entered = now
        message = message[:MAXIMUM_MESSAGE] if message else None
        self._fields |= {"section": section, "sectionSeconds": seconds, "message": message}
        self._write()

    @property
    def section(self) -> str:
        """Returns the present section."""
        return str(self._fields["section"])

    def extend(self, seconds: float) -> None:
        """Reports a longer time limit for the present section, in seconds from its beginning."""
        self._fields["sectionSeconds"] = seconds
        if time.monotonic() - self._written >= MINIMUM_INTERVAL:
            self._write()

    def join(self) -> None:
        """Records that the ranks have formed their process group."""
        self._fields["joinedAt"] = time.time()

    def able(self, group: int, *, idle: bool = False) -> None:
        """Reports that this rank is in the group of the attempt `group`, and can continue if other ranks are lost.

        An `idle` rank doesn't train until its replica is complete.
        """
        self._fields |= {"continuing": "idle" if idle else "able", "group": group}
        self._fields.pop("cannotContinue", None)
        self._write()

    def ready(self) -> None:
        """Reports that this rank has started alone, and waits to join the ranks that train."""
        self._fields |= {"continuing": "ready"}
        self._write()

    def cannot_continue(self, sentence: str) -> None:
        """Reports why this rank can't continue if other ranks are lost."""
        self._fields.pop("continuing", None)
        self._fields["cannotContinue"] = sentence[:MAXIMUM_MESSAGE]
        self._write()

    def joined_again(self, step: int) -> None:
        """Reports that this rank continues after `step` in a new group, or has joined a group; call `able` next."""
        self.join()
        self._fields.pop("firstStepAt", None)
        self.begin(step)

    def begin(self, step: int) -> None:
        """Reports that training starts after `step`: 0 or the checkpoint's step. Waiting times count from now on."""
        self._count(step)
        self._fields |= {"section": "setup", "startStep": step, "restoredAt": time.time()}
        self._fields |= {"dataSeconds": 0.0, "checkpointSeconds": 0.0, "evaluateSeconds": 0.0}
        self.enter("train")

    def wait_for_data(self, seconds: float) -> None:
        """Adds the time that a step has waited for its data."""
        if "dataSeconds" in self._fields:
            self._fields["dataSeconds"] += seconds

    def step(self, step: int, **numbers: float | None) -> None:
        """Reports that `step` is done; `numbers` are fields of the protocol (FIELDS) or other metrics, by name."""
        self._count(step)
        self._fields["step"] = step
        self._add(numbers)
        is_first = "restoredAt" in self._fields and "firstStepAt" not in self._fields
        if is_first:
            self._fields["firstStepAt"] = time.time()
        if is_first or time.monotonic() - self._written >= MINIMUM_INTERVAL:
            self._write()

    def report(self, **numbers: float | None) -> None:
        """Reports metrics between two steps, such as an evaluation's. They are kept until they are reported again."""
        self._add(numbers)
        self._write()

    def _add(self, numbers: Mapping[str, float | None]) -> None:
        metrics = self._fields.setdefault("metrics", {})
        for name, given in numbers.items():
            field = SPELLINGS.get(name, name)
            # A script may give an array's element or a tensor, which JSON can't represent.
            number = given if given is None or isinstance(given, int) else float(given)
            if field in FIELDS:
                self._fields[field] = number
            elif has_a_value(number) and METRIC.fullmatch(name) and (name in metrics or len(metrics) < MAXIMUM_METRICS):
                metrics[name] = number

    def result(self, numbers: dict[str, float]) -> None:
        """Reports the run's result, at most 16 finite numbers by name."""
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        self._fields["result"] = dict(list(finite.items())[:MAXIMUM_RESULTS])
        self._write()

    def _count(self, step: int) -> None:
        """Writes the step. The file isn't mapped, because on a full copy-on-write disk, SIGBUS would kill the rank."""
        if self.path is None:
            return
        with suppress(OSError):
            if self._counter < 0:
                self._counter = os.open(f"{self.path}.step", os.O_WRONLY | os.O_CREAT, 0o644)
            os.pwrite(self._counter, int(step).to_bytes(8, "little", signed=True), 0)

    def _write(self) -> None:
        if self.path is None:
            return
        fields = {name: value for name, value in self._fields.items() if has_a_value(value) and value != {}}
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with suppress(OSError):  # a full disk is no reason to stop training
            temporary.write_text(json.dumps(fields) + "\n")
            temporary.replace(self.path)
        self._written = time.monotonic()


def has_a_value(value: object) -> bool:
    """Returns whether the value can be reported: it isn't None, and if it is a number, it is finite."""
    return value is not None and (not isinstance(value, float) or math.isfinite(value))


def heartbeat(step: int, total: int | None = None, loss: float | None = None, **numbers: float | None) -> None:
    """Reports progress from a user's own script in every step; it is cheap and does nothing outside Trainmaster.

    `numbers` are any other metrics by name, such as `accuracy=0.91`. The dashboard and the history draw each of them.
    Some names have a meaning of their own: grad_norm, learning_rate, samples_per_second, compute_seconds (FIELDS).
    """
    fresh = Progress.from_environment(int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    own = _heartbeats.setdefault(fresh.path, fresh)
    # This attempt began just before the first reported step.
    kept = {"startStep": own._fields.get("startStep", max(step - 1, 0)), "metrics": own._fields.get("metrics", {})}
    own._fields = {"section": "train", **kept}
    own._written = -math.inf
    own.step(step, totalSteps=total, loss=loss, **numbers)


_heartbeats: dict[Path | None, Progress] = {}

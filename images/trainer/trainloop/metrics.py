"""The run's metrics are written as console lines and JSON lines, and optionally to TensorBoard and Prometheus.

A step's numbers stay on the device until a line is due, so that the device doesn't wait for the host.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
from pydantic import Field

from trainloop.data import RankStep
from trainloop.distributed.device import Numbers
from trainloop.distributed.world import World
from trainloop.errors import ConfigError
from trainloop.parallel.communication import StepTimes
from trainloop.progress import Progress, has_a_value
from trainloop.settings import Settings
from trainloop.state import TrainState


class MetricsSettings(Settings):
    """These settings say how often and where numbers are written."""

    every_steps: int = Field(10, gt=0, description="Steps between two lines.")
    path: str | None = Field(None, description="Directory; null: `report` beside the checkpoints, or trainloop-report.")
    plot: bool = Field(True, description="Write report.md, report.html and curves at the end (needs matplotlib).")
    against: str | None = Field(None, description="Where a one-rank run's metrics.jsonl is, to compare with.")
    peak_tflops: float | None = Field(None, gt=0, description="A device's peak TFLOP/s, for MFU (H200 bf16: 989).")
    tensorboard: bool = Field(False, description="Write TensorBoard events too (needs tensorboard).")
    prometheus_file: str | None = Field(None, description="A .prom file for node_exporter's textfile collector.")


@dataclass(frozen=True)
class StepNumbers:
    """These are a step's numbers on this rank; `loss` and `norm` are on the device. `seconds` is the duration."""

    loss: torch.Tensor
    norm: torch.Tensor
    rate: float
    seconds: float
    terms: float  # number of samples or tokens that the global loss averages over
    part: RankStep  # the rank's part of the step
    waited: float  # for data, in seconds
    times: StepTimes


class Window:
    """The window collects the steps since the last line."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.stalled = 0.0  # seconds that checkpoints delayed training
        self.steps: list[StepNumbers] = []

    def end(self, state: TrainState) -> None:
        """Ends the window after the step in `state`, and starts to copy the window's numbers to the host for `line`."""
        self.seconds, self.state, newest = time.perf_counter() - self.began, replace(state), self.steps[-1]
        own = newest.norm if newest.times.norm is None else newest.times.norm
        self._numbers = Numbers(torch.stack([step.loss for step in self.steps]).sum(), newest.norm, own)

    @property
    def share(self) -> float:
        """Returns this rank's fraction of all samples."""
        return sum(step.part.samples for step in self.steps) / sum(step.part.all_samples for step in self.steps)

    def line(self, world: World, length: int | None) -> tuple[dict[str, Any], float]:
        """Returns the window's numbers over all ranks, and this rank's own gradient norm in its last step; collective.

        Shares are fractions of wall time, sizes are in bytes, and times are in seconds.
        """
        seconds, count, newest, state = self.seconds, len(self.steps), self.steps[-1], self.state
        loss, norm, own_norm = self._numbers.read()
        own = [
            loss,
            sum(step.waited for step in self.steps),
            sum(step.times.exposed for step in self.steps),
            sum(step.times.computed for step in self.steps),
        ]
        losses, waits, exposures, computed = zip(*world.gather_numbers(own), strict=True)
        return {
            "epoch": state.position / length if length else float(state.place["epoch"]),
            "loss": sum(losses) / world.size / count,
            "lr": newest.rate,
            "gradNorm": norm,
            "samplesPerSecond": sum(step.part.all_samples for step in self.steps) / seconds,
            "termsPerSecond": sum(step.terms for step in self.steps) / seconds,
            "stepSeconds": seconds / count,
            "dataWait": sum(waits) / seconds / world.size,
            "communication": sum(exposures) / seconds / world.size,
            "checkpointStall": self.stalled / seconds,
            "bytesSent": sum(step.times.sent for step in self.steps) / count,
            "etaSeconds": (state.total - state.step) * seconds / count,
            "rankComputeSeconds": [rank / count for rank in computed],
        }, own_norm


def report_path(settings: MetricsSettings, checkpoints: Path | None) -> Path:
    """Returns the directory for this run's metrics and report."""
    if settings.path:
        return Path(settings.path).expanduser()
    return checkpoints / "report" if checkpoints else Path("trainloop-report")


class MetricsLog:
    """The log writes on the main rank; on the other ranks it does nothing."""

    def __init__(
        self, settings: MetricsSettings, path: Path, main: bool, state: TrainState, progress: Progress
    ) -> None:
        self.path, self.main, self._settings, self._state, self._progress = path, False, settings, state, progress
        self.file = path / "metrics.jsonl"
        # A benchmark prints its own table on the console.
        self.quiet = False
        self.attempt = int(os.environ.get("TRAINMASTER_ATTEMPT", "1"))
        self._outputs: list[Output] = []
        self._failed = False
        self.become(main)

    def become(self, main: bool) -> None:
        """Starts or stops writing on this rank. Raises ConfigError if the directory can't be created."""
        if main and not self.main:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"metrics.path {self.path} can't be made: {error.strerror}") from error
            self._outputs = outputs(self._settings, self.path)
        self.main = main

    def write(self, kind: str, numbers: dict[str, Any]) -> None:
        """Writes a JSON line with the kind (step, evaluation, checkpoint, event, result), the attempt, and the numbers.

        Numbers that aren't finite become null, because JSON can't represent them. A full or read-only disk doesn't stop
        training.
        """
        if not self.main:
            return
        line = {"kind": kind, "attempt": self.attempt, "time": round(time.time(), 3), **numbers}
        try:
            with self.file.open("a") as stream:
                stream.write(json.dumps({name: v if has_a_value(v) else None for name, v in line.items()}) + "\n")
            for output in self._outputs:
                output.write(kind, numbers)
        except OSError as error:
            if not self._failed:
                self.info(f"warning: metrics can't all be written to {self.path}: {error}; training continues")
            self._failed = True

    def started(self, step: int, total: int, about: dict[str, Any]) -> None:
        """Writes a description of the run and its ranks, once in each attempt."""
        self.write("event", {"event": "started", "step": step, "totalSteps": total, **about})
        self.info(f"training {about_line(about)}, step {step} of {total}")

    def step(self, step: int, total: int, line: dict[str, Any]) -> None:
        """Writes a step's numbers to all outputs."""
        numbers = {"step": step, "totalSteps": total, **line}
        self.write("step", numbers)
        self.info(step_line(numbers))

    def warn(self, text: str) -> None:
        """Reports a warning: on the console, in metrics.jsonl and in the progress report."""
        self.info(f"warning: {text}")
        self.write("event", {"event": "warning", "step": self._state.step, "text": text})
        self._progress.enter("train", message=text)

    def info(self, text: str) -> None:
        """Prints one line on the console."""
        if self.main and not self.quiet:
            print(text, flush=True)


def about_line(about: dict[str, Any]) -> str:
    """Returns the run's description as one line, from its `started` event."""
    samples = "a stream" if about["samples"] is None else f"{about['samples']:,} samples"
    return (
        f"{about['task']}: {samples}, {about['parameters']:,} parameters, "
        f"{ranks_line(about['ranks'])} on {about['device']} over {about['backend']}, {about['precision']}, "
        f"global batch {about['batch']}, torch {about['torch']}"
    )


def ranks_line(number: int) -> str:
    """Returns `1 rank` or, for example, `2 ranks`."""
    return f"{number} rank" + "s" * (number != 1)


def step_line(line: dict[str, Any]) -> str:
    """Returns the console's line for a step."""
    return (
        f"step {line['step']}/{line['totalSteps']}  epoch {line['epoch']:.2f}  loss {line['loss']:.4f}  "
        f"lr {line['lr']:.3g}  norm {line['gradNorm']:.3g}  {line['samplesPerSecond']:,.0f} samples/s  "
        f"data {line['dataWait']:.0%}  communication {line['communication']:.0%}  eta {duration(line['etaSeconds'])}"
    )


def duration(seconds: float) -> str:
    """Returns seconds as hours, minutes and seconds: 0:00:42, 2:10:05."""
    return str(timedelta(seconds=int(seconds)))


class Output(Protocol):
    """An output receives the kind and numbers of each line in `metrics.jsonl`."""

    def write(self, kind: str, numbers: dict[str, Any]) -> None:
        """Writes the numbers that this output shows. Raises OSError if writing fails."""
        ...


def outputs(settings: MetricsSettings, path: Path) -> list[Output]:
    """Returns the outputs that `settings` name; `path` is the directory for the run's numbers."""
    found: list[Output] = [TensorBoard(path / "tensorboard")] if settings.tensorboard else []
    return [*found, Prometheus(Path(settings.prometheus_file))] if settings.prometheus_file else found


class TensorBoard:
    """This output writes step and evaluation numbers as events. Raises ConfigError if tensorboard is missing."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError("metrics.tensorboard needs the package tensorboard: pip install tensorboard") from error
        self._board: Any = SummaryWriter(str(folder))

    def write(self, kind: str, numbers: dict[str, Any]) -> None:
        if kind in ("step", "evaluation"):
            for name, value in _plain(numbers).items():
                self._board.add_scalar(f"{kind}/{name}", value, numbers["step"])
            # Without this, the writer's thread may still hold the numbers when the process ends without a clean-up.
            self._board.flush()


class Prometheus:
    """This output atomically replaces a file with the newest step's numbers in Prometheus' text format."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def write(self, kind: str, numbers: dict[str, Any]) -> None:
        if kind != "step":
            return
        lines = []
        for name, value in {**_plain(numbers), "step": float(numbers["step"])}.items():
            metric = "trainloop_" + "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
            lines += [f"# TYPE {metric} gauge", f"{metric} {value!r}"]
        temporary = self._file.with_name(f".{self._file.name}.tmp")
        temporary.write_text("\n".join(lines) + "\n")
        temporary.replace(self._file)


def _plain(numbers: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in numbers.items() if isinstance(value, int | float) and name != "step"}

"""A run's numbers also go to TensorBoard and to Prometheus, where the configuration asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainloop.errors import ConfigError

if TYPE_CHECKING:
    from trainloop.metrics import MetricsSettings


class Output(Protocol):
    """An output is given what `metrics.jsonl` is given: the line's kind, and its numbers."""

    def write(self, kind: str, numbers: dict[str, Any]) -> None:
        """Write what of it this output shows. Raises OSError when the disk refuses."""
        ...


def outputs(settings: MetricsSettings, path: Path) -> list[Output]:
    """Returns the outputs that `settings` name; `path` is the directory of the run's numbers."""
    found: list[Output] = [TensorBoard(path / "tensorboard")] if settings.tensorboard else []
    return [*found, Prometheus(Path(settings.prometheus_file))] if settings.prometheus_file else found


class TensorBoard:
    """Writes the numbers of steps and evaluations as events. Raises ConfigError where the package is missing."""

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
            # Its thread may still hold the line when the process leaves without the interpreter's clean-up.
            self._board.flush()


class Prometheus:
    """Replaces a file by the newest step's numbers in Prometheus' text format, in one go."""

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

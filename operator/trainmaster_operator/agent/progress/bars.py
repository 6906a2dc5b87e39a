"""Progress bars of tqdm are read as steps. Pure.

A training has one bar for all its steps, or a new one for each epoch. Bars of epochs are added up, so that steps never
go back: `Epoch 3:` says itself which one it is, and where no bar does, one that begins anew is the next epoch's. Then
the number of all steps is only known where the epochs are (`Epoch 3/10:`).
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

NUMBER = r"[-+]?(?:[0-9]+[.]?[0-9]*|[.][0-9]+)(?:[eE][-+]?[0-9]+)?"
BAR = re.compile(
    r"(?:^|[:\s])\s*[0-9]{1,3}%\|[^|]*\|\s*(?P<n>[0-9]+)/(?P<total>[0-9]+) "
    rf"\[[0-9:]+<[0-9:?]+,\s*(?P<rate>{NUMBER}|\?)\s?(?P<unit>it/s|s/it)(?P<rest>.*)\]\s*$",
    re.ASCII,
)
"""tqdm's own format with its own unit: what counts bytes, files or examples isn't training. A bar below another one
ends with an escape sequence, which goes back to the other's line, and doesn't match (tqdm 4.70: std.py, `format_meter`
and `display`)."""
EPOCH = re.compile(r"[Ee]poch\s+(?P<epoch>[0-9]+)(?:/(?P<epochs>[0-9]+))?", re.ASCII)
LOSS = re.compile(rf"\b(?:train[_/])?loss(?:_step)?[=:]\s*(?P<loss>{NUMBER})", re.ASCII)


class Bar(NamedTuple):
    """A bar as one line shows it."""

    n: int
    total: int
    step_seconds: Optional[float]
    loss: Optional[float]
    epoch: Optional[int]
    epochs: Optional[int]
    """Of all, where the bar says so."""


def read_bar(line: str) -> Optional[Bar]:
    """Returns the bar that a line shows; None where it shows none."""
    found = BAR.search(line)
    if found is None:
        return None
    rate = None if found["rate"] == "?" else float(found["rate"])
    seconds = rate if found["unit"] == "s/it" else (1 / rate if rate else None)
    before = line[: found.start()]
    epoch = EPOCH.search(before)
    loss = LOSS.search(found["rest"]) or LOSS.search(before)
    return Bar(
        int(found["n"]),
        int(found["total"]),
        seconds,
        float(loss["loss"]) if loss is not None else None,
        int(epoch["epoch"]) if epoch is not None else None,
        int(epoch["epochs"]) if epoch is not None and epoch["epochs"] else None,
    )


class Bars:
    """Bars turns the bars of one rank into steps. Of several kinds of bar the longest is the training's.

    `first_epoch`: the number that the first epoch's bar shows, where that is known.
    """

    def __init__(self, first_epoch: Optional[int] = None) -> None:
        self._first_epoch = first_epoch
        self._total = 0
        self._last: Optional[Bar] = None
        self._before = 0
        """Bars before this one."""

    def add(self, bar: Bar) -> dict[str, float]:
        """Returns the fields of progress that a bar of the training means; none where it isn't the training's."""
        if bar.total < max(self._total, 1) or bar.n > bar.total:
            return {}
        if bar.total > self._total:
            self._total, self._before, self._last = bar.total, 0, None
        last = self._last
        if last is not None and (bar.epoch or 0) < (last.epoch or 0):
            # Of a rank that is behind and prints into the same stream.
            return {}
        self._last = bar
        if bar.epoch is not None and self._first_epoch is not None:
            self._before = max(bar.epoch - self._first_epoch, 0)
        elif last is not None and (bar.n * 2 < last.n or bar.epoch != last.epoch):
            self._before += 1
        fields: dict[str, float] = {"step": self._before * bar.total + bar.n}
        if bar.epochs:
            fields["totalSteps"] = max(bar.epochs, self._before + 1) * bar.total
        elif bar.epoch is None and not self._before:
            fields["totalSteps"] = bar.total
        if bar.epoch is not None or self._before:
            fields["epoch"] = self._before + bar.n / bar.total
        return {**fields, **measured(bar)}


def measured(bar: Bar) -> dict[str, float]:
    """Returns a bar's speed and loss, as far as it shows them."""
    values = {"stepSeconds": bar.step_seconds, "loss": bar.loss}
    return {name: value for name, value in values.items() if value is not None}

"""This module matches the lines that one rank prints with a framework's preset, or with the job's own pattern. Pure.

`common_lines` recognises lines that no framework prints. If many lines of a framework arrive at once, only the newest
match counts. A line belongs to a framework if it contains the framework's
`mark`. Marks are searched first, because this is cheap. Lines that only training prints are recognised without a
setting (`auto`). The frameworks print these lines:

- Hugging Face's transformers 5 prints tqdm's bar, and a dictionary whose values are texts since version 5
  (`trainer_callback.py`, `PrinterCallback` and `ProgressCallback`).
- Lightning 2 prints a bar for each epoch, and counts epochs from 0. The bar shows `v_num` if there is a logger
  (`callbacks/progress/tqdm_progress.py`).
- DeepSpeed 0.19 prints lines in `runtime/engine.py` (`_report_progress`), `utils/timer.py` (`ThroughputTimer`) and
  `runtime/pipe/engine.py`.
- torchtune 0.6 describes each epoch's bar (`recipes/*.py`).

With tqdm, a training has either one bar for all its steps, or a new bar for each epoch. The steps of the epochs' bars
are added up, so that steps never decrease. `Epoch 3:` in a bar is the epoch's number; without it, a bar that begins
again belongs to the next epoch. If each epoch has a bar, the total of steps is only known if the number of epochs is
known (`Epoch 3/10:`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from trainmaster_operator.agent.progress.common_lines import MARKS, NUMBER, CommonLines, Count, is_evaluation, plain
from trainmaster_operator.wire.log_rules import AUTO, compile_pattern
from trainmaster_operator.wire.ranks import RankProgress

MAX_LINE_CHARACTERS = 1_000
"""Only this many characters of a line are matched."""
MAX_COMMON_LINES = 32
"""Only so many of the newest lines of one read are matched without a preset, so that a flood of lines costs little."""
MAX_BARS = 16
"""The most bars of different lengths to remember. Reports of Hugging Face's Trainer show which bar is the Trainer's."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m|\x08+")
"""Colours, and the backspaces of Keras's bar."""
_WHOLE = ("step", "totalSteps")
BAR_MARK = b"%|"


class LineMatcher:
    """LineMatcher collects the values in one rank's lines. `preset` is a preset's name; a pattern takes precedence."""

    def __init__(self, pattern: str, preset: str) -> None:
        found = Preset(((b"", compile_pattern(pattern)),)) if pattern else PRESETS[preset]
        self._lines, self._mark, self._is_own = found.lines, found.bars, bool(pattern)
        self._sums = Bars(found.first_epoch)
        self._common = CommonLines() if preset == AUTO and not pattern else None
        self._fields: dict[str, float] = {}
        """The fields that the preset's or the job's own rules have found."""
        self.progress: Optional[RankProgress] = None
        """The progress that all lines together have shown; None until a line has matched."""
        self.bars: dict[int, Bar] = {}
        """The newest bar of each length."""

    def read(self, lines: Sequence[bytes], unfinished: bytes = b"") -> bool:
        """Match new output; returns whether it contains new values.

        `unfinished`: a line that may continue; in such a line only a complete bar counts.
        """
        before, bars_before = self._found(), dict(self.bars)
        data = b"\n".join((*lines, unfinished))
        for mark, pattern in self._lines:
            if mark in data:
                self._match(pattern, [line for line in lines if mark in line])
        if not self._is_own and BAR_MARK in data:
            self._read_bars([line for line in (*lines, unfinished) if BAR_MARK in line])
        if self._common is not None and not self._fields:
            self._read_common(self._common, data, lines, unfinished)
        found = self._found()
        if found != before:
            self.progress = RankProgress.salvage(found)
        return found != before or self.bars != bars_before

    def _found(self) -> dict[str, float]:
        """Returns all fields. If a framework's lines have matched, other lines don't count."""
        return dict(self._fields) if self._common is None or self._fields else self._common.fields

    def _read_common(self, common: CommonLines, data: bytes, lines: Sequence[bytes], unfinished: bytes) -> None:
        data = data.lower()
        marks = [mark for mark in MARKS if mark in data]
        if not marks:
            return
        lines = [line for line in lines if any(mark in line.lower() for mark in marks)][-MAX_COMMON_LINES:]
        for line in (*lines, unfinished) if BAR_MARK in unfinished else lines:
            text = _text(line)
            bar = read_bar(text) if BAR_MARK in line else None
            if bar is None or bar.loss is None:
                common.read(plain(text))
            elif not is_evaluation(plain(text)):
                common.add(Count(bar.n, bar.total, bar.epoch, bar.epochs), measured(bar))

    def _match(self, pattern: re.Pattern[str], lines: Sequence[bytes]) -> None:
        for line in reversed(lines):
            text = _text(line)
            found = pattern.search(text)
            if found is None:
                continue
            fields = read_fields(found.groupdict())
            bar = None if self._is_own or BAR_MARK not in line else read_bar(text)
            self._fields.update(fields, **({} if bar is None else measured(bar)))
            if fields:
                return

    def _read_bars(self, lines: Sequence[bytes]) -> None:
        for line in reversed(lines):
            bar = read_bar(_text(line))
            if bar is None:
                continue
            self.bars.pop(bar.total, None)
            self.bars[bar.total] = bar
            if len(self.bars) > MAX_BARS:
                del self.bars[next(iter(self.bars))]
            if self._mark and self._mark in line:
                fields = self._sums.add(bar)
                if fields and "totalSteps" not in fields:
                    self._fields.pop("totalSteps", None)
                self._fields.update(fields)
            return


def read_fields(groups: Mapping[str, Optional[str]]) -> dict[str, float]:
    """Returns a match's numbers, by field name."""
    fields: dict[str, float] = {}
    for name, text in groups.items():
        value = None if text is None else _number(text)
        if value is None:
            continue
        if name == "stepsPerSecond":
            if value > 0:
                fields["stepSeconds"] = 1 / value
        else:
            fields[name] = int(value) if name in _WHOLE else value
    return fields


def _text(line: bytes) -> str:
    text = line[: 4 * MAX_LINE_CHARACTERS].decode("utf-8", "replace")[:MAX_LINE_CHARACTERS]
    return _COLOURS.sub("", text) if "\x1b" in text or "\x08" in text else text


def _number(text: str) -> Optional[float]:
    """Returns a printed number (12, 1.5e-3, 1,234), or a time as seconds (1:02:03); None for other texts."""
    parts = text.replace(",", "").strip().split(":")
    value = 0.0
    try:
        for part in parts[:4]:
            value = value * 60 + float(part)
    except ValueError:
        return None
    return value if len(parts) <= 4 and math.isfinite(value) and abs(value) < 1e100 else None


BAR = re.compile(
    r"(?:^|[:\s])\s*[0-9]{1,3}%\|[^|]*\|\s*(?P<n>[0-9]+)/(?P<total>[0-9]+) "
    rf"\[[0-9:]+<[0-9:?]+,\s*(?P<rate>{NUMBER}|\?)\s?(?P<unit>it/s|s/it)(?P<rest>.*)\]\s*$",
    re.ASCII,
)
"""tqdm's default format with its default unit, because a bar that counts bytes, files or examples doesn't show
training. A bar below another bar doesn't match, because it ends with an escape sequence that moves the cursor up (tqdm
4.70: std.py, `format_meter` and `display`)."""
EPOCH = re.compile(r"[Ee]poch\s+(?P<epoch>[0-9]+)(?:/(?P<epochs>[0-9]+))?", re.ASCII)
LOSS = re.compile(rf"\b(?:train[_/])?[Ll]oss(?:_step)?[=:]\s*(?P<loss>{NUMBER})", re.ASCII)


class Bar(NamedTuple):
    """Bar contains the values that a bar in one line shows."""

    n: int
    total: int
    step_seconds: Optional[float]
    loss: Optional[float]
    epoch: Optional[int] = None
    epochs: Optional[int] = None
    """The number of all epochs, if the bar shows it."""


def read_bar(line: str) -> Optional[Bar]:
    """Returns a line's bar; None if it contains none."""
    found = BAR.search(line)
    if found is None:
        return None
    rate = None if found["rate"] == "?" else float(found["rate"])
    seconds = rate if found["unit"] == "s/it" else (1 / rate if rate else None)
    before = line[: found.start()]
    epoch = EPOCH.search(before)
    loss = LOSS.search(found["rest"]) or LOSS.search(before)
    bar = Bar(int(found["n"]), int(found["total"]), seconds, float(loss["loss"]) if loss is not None else None)
    if epoch is None:
        return bar
    return bar._replace(epoch=int(epoch["epoch"]), epochs=int(epoch["epochs"]) if epoch["epochs"] else None)


class Bars:
    """Bars turns the bars of one rank into steps. If there are several kinds of bar, the longest one shows training."""

    def __init__(self, first_epoch: Optional[int]) -> None:
        self._first_epoch = first_epoch
        self._total = 0
        self._last: Optional[Bar] = None
        self._before = 0
        """The number of earlier epochs' bars."""

    def add(self, bar: Bar) -> dict[str, float]:
        """Returns the fields of progress that a bar shows; empty if the bar doesn't show training."""
        if bar.total < max(self._total, 1) or bar.n > bar.total:
            return {}
        if bar.total > self._total:
            self._total, self._before, self._last = bar.total, 0, None
        last = self._last
        if last is not None and (bar.epoch or 0) < (last.epoch or 0):
            # This bar belongs to another rank, which is behind and prints into the same stream.
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
    """Returns a bar's speed and loss, if it shows them."""
    values = {"stepSeconds": bar.step_seconds, "loss": bar.loss}
    return {name: value for name, value in values.items() if value is not None}


LineRule = tuple[bytes, re.Pattern[str]]
"""A mark, and the pattern of lines that contain this mark. The pattern's groups have the names of fields."""


class Preset(NamedTuple):
    """Preset describes a framework's lines and bars."""

    lines: tuple[LineRule, ...] = ()
    bars: bytes = b""
    """The mark of lines with a bar that shows training; empty if the framework's bars don't show steps."""
    first_epoch: Optional[int] = None
    """The number that the first epoch's bar shows, if known."""


def _line(mark: bytes, pattern: str) -> LineRule:
    return mark, re.compile(pattern, re.ASCII)


_HUGGING_FACE = _line(
    b"'loss': ",
    rf"^\{{'loss': '?(?P<loss>{NUMBER})'?,(?: 'grad_norm': '?(?:(?P<gradNorm>{NUMBER})|nan|inf)'?,)?"
    rf"(?: 'learning_rate': '?(?P<learningRate>{NUMBER})'?,)?.*'epoch': '?(?P<epoch>{NUMBER})'?[,}}]",
)
_DEEPSPEED = (
    _line(b"skipped=", rf"\bstep=(?P<step>[0-9]+), skipped=[0-9]+, lr=(?:\[(?P<learningRate>{NUMBER}))?"),
    _line(
        b"CurrSamplesPerSec=",
        rf"/global_step=(?P<step>[0-9]+), RunningAvgSamplesPerSec=(?P<samplesPerSecond>{NUMBER}), CurrSamplesPerSec=",
    ),
    _line(
        b"iter time (s): ",
        rf"^steps: (?P<step>[0-9]+) loss: (?P<loss>{NUMBER}) .*"
        rf"iter time \(s\): (?P<stepSeconds>{NUMBER}) samples/sec: (?P<samplesPerSecond>{NUMBER})",
    ),
)
_TORCHTUNE = _line(b"|Loss: ", rf"^[0-9]+\|(?P<step>[0-9]+)\|Loss: (?P<loss>{NUMBER})")

PRESETS: dict[str, Preset] = {
    "huggingface": Preset((_HUGGING_FACE,), bars=BAR_MARK),
    "lightning": Preset(bars=BAR_MARK, first_epoch=0),
    "deepspeed": Preset(_DEEPSPEED),
    "torchtune": Preset((_TORCHTUNE,)),
    "tqdm": Preset(bars=BAR_MARK),
    # Lightning's bars are recognised by the logger's version that they show, other bars by their loss (common_lines).
    AUTO: Preset((_HUGGING_FACE, *_DEEPSPEED, _TORCHTUNE), bars=b", v_num=", first_epoch=0),
}

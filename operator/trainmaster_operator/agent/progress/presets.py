"""The lines that frameworks print of their training, as data. Pure.

A line is of a framework where it has its `mark`, which is looked for first because that costs next to nothing.
What nothing but training prints is recognised without being asked for (`auto`).

- Hugging Face: transformers 5, `trainer_callback.py` (`PrinterCallback` and `ProgressCallback`): a dictionary, whose
  values are texts since version 5, and tqdm's bar.
- Lightning 2: `callbacks/progress/tqdm_progress.py`, a bar for each epoch, from 0; with a logger it shows `v_num`.
- DeepSpeed 0.19: `runtime/engine.py` (`_report_progress`), `utils/timer.py` (`ThroughputTimer`),
  `runtime/pipe/engine.py`.
- torchtune 0.6: `recipes/*.py`, the description of each epoch's bar.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

from trainmaster_operator.agent.progress.bars import NUMBER
from trainmaster_operator.wire.log_rules import AUTO

BAR_MARK = b"%|"


class LineRule(NamedTuple):
    """A line that has the mark and matches says the fields that the pattern's groups are named for."""

    mark: bytes
    pattern: re.Pattern[str]


class Preset(NamedTuple):
    """A framework's lines and bars."""

    lines: tuple[LineRule, ...] = ()
    bars: bytes = b""
    """What a line has that shows a bar of the training; empty: bars say nothing of steps."""
    first_epoch: Optional[int] = None
    """The number that the first epoch's bar shows, where that is known."""


def _line(mark: bytes, pattern: str) -> LineRule:
    return LineRule(mark, re.compile(pattern, re.ASCII))


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
    # Of the bars only Lightning's with its logger's version.
    AUTO: Preset((_HUGGING_FACE, *_DEEPSPEED, _TORCHTUNE), bars=b", v_num=", first_epoch=0),
}

"""This module recognises training progress in lines of plain scripts, which no framework prints. Pure.

A line shows training if it contains a counter (of steps, iterations, updates, batches, or at least epochs) and a
training loss. A step and a speed also show it, until a line with a loss arrives. The counters are written as in
PyTorch's examples and tutorials, Keras, nanoGPT, Megatron-LM, torchtitan, fairseq, MMEngine, Detectron2, Ultralytics,
or as `step=10 loss=0.9` or JSON; docs/progress.md has samples. Lines about evaluations, checkpoints and downloads don't
count, and neither do bars without a loss.

`Steps` turns counters into steps that never decrease. A counter with a total that begins again in each epoch is added
up: `epoch 2`, `batch 10/192` is step 2 * 192 + 10 if the first epoch is 0. If a script prints only epochs, an epoch
counts as a step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

BAR_MARK = "%|"
MARKS = (b"loss", b"/s", b"step_avg", b"epoch")
"""A line without any of these, in lower case, shows nothing."""
LINES_BEHIND = 3
"""So many lines in a row that are behind the known step, and follow one another, are a new beginning. Fewer come from
a rank that is behind, or name an earlier step, such as the best one."""

NUMBER = r"[-+]?(?:[0-9]+(?:[.][0-9]*)?|[.][0-9]+)(?:[eE][-+]?[0-9]+)?"
_WHOLE = r"[0-9][0-9,]{0,15}"
_IS = r"""["']? ?[:=#]? ?["'\[(]? ?"""
_TOTAL = rf" ?(?:/|\bof\b) ?(?P<total>{_WHOLE})"
_ENDS = r"(?!\w|[.][0-9]| ?%)"
_EPOCH = rf"(?P<epoch>{_WHOLE})(?: ?(?:/|of) ?(?P<epochs>{_WHOLE}))?"
_GAP = r"[ :,|\-\[\](]{1,16}"


def _pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern for lines in lower case, with single spaces, so that no repetition can take long."""
    return re.compile(text, re.ASCII)


# step 10/192, iter 250:, "global_step": 10, iteration      100/  500000, Iter(train) [ 50/40000]
_STEP = _pattern(
    r"(?<!\w)(?:global[_ ]?steps?|num_updates|steps?|iter(?:ation)?s?|updates?)(?:\(train\))?"
    rf"{_IS}(?P<n>{_WHOLE})(?:{_TOTAL})?{_ENDS}"
)
_COUNTERS = (
    # [1/5][100/1583] (PyTorch's DCGAN tutorial)
    _pattern(rf"\[(?P<epoch>{_WHOLE})/(?P<epochs>{_WHOLE})\] ?\[ ?(?P<n>{_WHOLE}){_TOTAL}\]"),
    # [1,  2000] loss: 2.215 (PyTorch's CIFAR-10 tutorial)
    _pattern(rf"\[(?P<epoch>{_WHOLE}), ?(?P<n>{_WHOLE})\] ?loss"),
    # Epoch: [0][  10/5005], Train Epoch: 1 [640/60000 (1%)], Epoch(train) [1][50/1000], epoch   1 |   200/ 2983 batches
    _pattern(rf"(?<!\w)(?:epoch|train)(?:\(train\))?{_GAP}{_EPOCH}{_GAP}(?P<n>{_WHOLE}){_TOTAL}{_ENDS}"),
    _STEP,
    _pattern(rf"(?<!\w)(?:mini-?)?batch(?:es|_idx)?{_IS}(?P<n>{_WHOLE})(?:{_TOTAL})?{_ENDS}"),
    # loss: 2.303494  [   64/60000] (PyTorch's quickstart)
    _pattern(rf"loss:? {NUMBER} \[ ?(?P<n>{_WHOLE}){_TOTAL}\]"),
    # 120/1875 [===>....], 120/1875 ━━━━, 1875/1875 - 5s (Keras)
    _pattern(rf"^(?P<n>{_WHOLE})/(?P<total>{_WHOLE}) (?:\[[=>.]|━|- )"),
)
_EPOCHS = _pattern(rf"(?<!\w)epochs?{_IS}{_EPOCH}{_ENDS}")
_HEADING = _pattern(rf"^\W*epoch[ :#]*\[?{_EPOCH}\W*$")
# Epoch 2/2  ━━━━━━━ 20/20 0:00:01 • 0:00:00 18.76it/s (Lightning with Rich: both numbers count from 0)
_RICH = _pattern(rf"^epoch {_EPOCH} [━╸╺]+ (?P<n>{_WHOLE})/(?P<total>{_WHOLE}) ")
# 1/100      2.5G      1.2      2.3      1.1       12        640:  45%|████▌     | 12/40 [00:01<00:03,  8.2it/s]
_ULTRALYTICS = _pattern(rf"^{_EPOCH} [0-9.]+g .* [0-9]+: [0-9]+%[^0-9]+(?P<n>{_WHOLE})/(?P<total>{_WHOLE}) ")
# [GPU0] Epoch 3 | Batchsize: 32 | Steps: 8 (PyTorch's DDP tutorial, which prints no loss)
_DDP_TUTORIAL = _pattern(rf"\] epoch (?P<epoch>{_WHOLE}) \| batchsize: [0-9]+ \| steps: (?P<total>{_WHOLE})")
_LOSS = _pattern(
    rf"loss(?:_step|_d)?[\"')\]]* ?(?:[:=]|is )? ?[\"'\[(]?(?:tensor\()?(?P<loss>{NUMBER}|nan|[-+]?inf)(?!\w)"
)
_NAME = _pattern(r"[\w/]*[ .-]?$")
_OTHERS = (
    ("learningRate", _pattern(rf"(?<![a-z])(?:lr|learning[_ ]rate)[\"']? ?[:=]? ?[\"'\[]?(?P<number>{NUMBER})")),
    ("gradNorm", _pattern(rf"(?<![a-z])(?:grad(?:ient)?[_ -]?norm|gnorm)[\"']? ?[:=]? ?(?P<number>{NUMBER})")),
)
_SPECIAL = (_RICH, _ULTRALYTICS)
_SPEED = _pattern(
    r"step_avg: ?[0-9.]+ms|[0-9] ?(?:it|iters?|steps?)/s|[0-9] ?m?s/(?:it|iter|step)\b"
    r"|[0-9] ?(?:tok|tokens|samples|imgs|images)/s|\b(?:tok|tokens|samples|images)/s(?:ec|econd)?[:= ] ?[0-9]"
)
# A line about an evaluation. `val_loss` or `val acc` may stand in a line about training.
_EVALUATION = _pattern(
    r"(?<![a-z])(?:val|valid|validat(?:ion|ing)|eval|evaluat(?:ion|ing)|test|testing|dev)"
    r"(?![a-z_/.]| (?:loss|acc|ppl|perplexity|bpb|error|score|f1|bleu))"
)
_EVALUATED = frozenset(("val", "valid", "validation", "eval", "evaluation", "test", "dev"))
_OTHER_WORK = _pattern(r"(?<![a-z])(?:best|resum|restor|load(?:ed|ing)|sav(?:ed|ing)|download)")


class Count(NamedTuple):
    """Count contains the counters of one line."""

    n: Optional[int] = None
    """The step, iteration or batch; None if the line only has an epoch."""
    total: Optional[int] = None
    epoch: Optional[int] = None
    epochs: Optional[int] = None
    has_loss: bool = True


class CommonLines:
    """CommonLines collects the progress in one rank's lines."""

    def __init__(self) -> None:
        self._steps = Steps()
        self._heading = Count()
        """The newest line that is only an epoch's heading, such as `Epoch 1/5`."""
        self.fields: dict[str, float] = {}
        """The progress that the lines have shown, by field name."""

    def read(self, line: str) -> None:
        """Match the next line (`plain`)."""
        heading = _HEADING.match(line)
        if heading is not None:
            self._heading = _count(heading.groupdict())
            return
        loss = find_loss(line)
        count = find_count(line, has_loss=loss is not None)
        if count is not None:
            if count.epoch is None:
                count = count._replace(epoch=self._heading.epoch, epochs=self._heading.epochs)
            others = {name: float(found["number"]) for name, pattern in _OTHERS if (found := pattern.search(line))}
            if loss is not None and math.isfinite(loss):
                others["loss"] = loss
            self.add(count, others)

    def add(self, count: Count, fields: Mapping[str, float]) -> None:
        """Add the counters and the other fields of a line, or of a bar."""
        steps = self._steps.add(count)
        if steps is not None:
            kept = {name: value for name, value in self.fields.items() if name not in _COUNTED}
            self.fields = {**kept, **fields, **steps}


_COUNTED = ("step", "totalSteps", "epoch")


def plain(text: str) -> str:
    """Returns a line as the patterns expect it: in lower case, with single spaces."""
    return " ".join(text.lower().split())


def find_loss(line: str) -> Optional[float]:
    """Returns the first loss in a line that isn't an evaluation's; None if there is none."""
    for found in _LOSS.finditer(line):
        name = _NAME.search(line[max(found.start() - 24, 0) : found.start()])
        if name is None or not _EVALUATED & set(re.split(r"[^a-z]+", name[0])):
            return float(found["loss"])
    return None


def is_evaluation(line: str) -> bool:
    """Returns whether a line, or the text before a bar, is about an evaluation."""
    return _EVALUATION.search(line) is not None


def find_count(line: str, *, has_loss: bool) -> Optional[Count]:
    """Returns the counters of a line about training; None for any other line."""
    if is_evaluation(line):
        return None
    if not has_loss:
        tutorial = _DDP_TUTORIAL.search(line)
        if tutorial is not None:
            return _count(tutorial.groupdict())._replace(n=0)
        if not _SPEED.search(line) or _OTHER_WORK.search(line):
            return None
    for pattern in _SPECIAL:
        found = pattern.match(line)
        if found is not None:
            count = _count(found.groupdict())
            return (
                count
                if pattern is not _RICH
                else count._replace(epoch=_after(count.epoch), epochs=_after(count.epochs))
            )
    if BAR_MARK in line:
        # Only a bar that shows a loss itself counts, and it is read elsewhere.
        return None
    for pattern in _COUNTERS if has_loss else (_STEP,):
        found = pattern.search(line)
        if found is None:
            continue
        count = _count(found.groupdict())._replace(has_loss=has_loss)
        if count.total is not None and count.n is not None and count.n > count.total:
            continue
        if count.epoch is None and (epoch := _EPOCHS.search(line)) is not None:
            named = _count(epoch.groupdict())
            count = count._replace(epoch=named.epoch, epochs=named.epochs)
        return None if _OTHER_WORK.search(line, 0, found.start()) else count
    found = _EPOCHS.search(line) if has_loss else None
    return None if found is None or _OTHER_WORK.search(line, 0, found.start()) else _count(found.groupdict())


def _count(groups: Mapping[str, Optional[str]]) -> Count:
    numbers: dict[str, Any] = {name: int(text.replace(",", "")) for name, text in groups.items() if text is not None}
    return Count(**numbers)


def _after(number: Optional[int]) -> Optional[int]:
    return None if number is None else number + 1


class _State(NamedTuple):
    """_State is what is known of a rank's counters after a line."""

    last: Count
    step: int
    first_epoch: int
    before: int = 0
    """The steps of earlier epochs, if the epoch's number doesn't show them."""
    is_global: bool = False
    """Whether the counter continues in the next epoch, instead of beginning again."""


class Steps:
    """Steps turns the counters of one rank's lines into steps."""

    def __init__(self) -> None:
        self._state: Optional[_State] = None
        self._behind: list[tuple[int, int]] = []
        """The epochs and counters of the newest lines in a row that were behind the known step."""

    def add(self, count: Count) -> Optional[dict[str, float]]:
        """Returns the fields of progress that a line shows; None if the line doesn't count."""
        known = self._state
        if known is not None and _weight(count) != _weight(known.last):
            if _weight(count) < _weight(known.last):
                return None
            known = None
        if known is not None and count.total is not None and count.total * 2 < (known.last.total or 0):
            # This is something shorter, such as an evaluation.
            return None
        state = _following(known, count)
        if known is not None and (state.step < known.step or (count.epoch or 0) < (known.last.epoch or 0)):
            position = (count.epoch or 0, count.n or 0)
            self._behind = [*self._behind, position] if not self._behind or position > self._behind[-1] else [position]
            if len(self._behind) < LINES_BEHIND:
                return None
            state = _following(None, count)
        self._state, self._behind = state, []
        return _fields(state)


def _weight(count: Count) -> int:
    """Returns which kind of line counts if a script prints several: lines with a step and a loss count most."""
    return 0 if count.n is None else 2 if count.has_loss else 1


def _following(known: Optional[_State], count: Count) -> _State:
    """Returns the state after a line."""
    n, epoch, total = count.n or 0, count.epoch, count.total
    if known is None:
        first = 1 if epoch and (epoch == 1 or count.epochs is not None) else 0
        before, is_global = 0, False
    else:
        last, first, before = known.last, known.first_epoch, known.before
        last_n, is_next = last.n or 0, epoch is not None and last.epoch is not None and epoch > last.epoch
        is_global = known.is_global or (is_next and last_n < n <= 2 * last_n)
        if not is_global and total is None and is_next:
            before += last_n
        elif epoch is None and last.total is not None and n * 2 < last_n and last_n * 5 >= last.total * 4:
            # The counter begins again shortly after its end, so this is the next epoch.
            before += last.total
    if count.n is None:
        step = (epoch or 0) - first + 1
    elif is_global or epoch is None or total is None:
        step = before + n
    else:
        step = (epoch - first) * total + n
    return _State(count, max(step, 0), first, before, is_global)


def _fields(state: _State) -> dict[str, float]:
    fields: dict[str, float] = {"step": state.step}
    count = state.last
    index = None if count.epoch is None else max(count.epoch - state.first_epoch, 0)
    total, done = count.total, index
    if count.n is None:
        total, done = count.epochs, state.step
    elif count.total is None or state.is_global or index is None:
        total = None if state.before else count.total
    else:
        total = None if count.epochs is None else max(count.epochs, index + 1) * count.total
        fields["epoch"] = index + count.n / max(count.total, 1)
    if total is not None:
        fields["totalSteps"] = total
    if done is not None:
        fields.setdefault("epoch", done)
    return fields

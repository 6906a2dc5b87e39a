"""The command `diff` compares two checkpoints: settings, results and code, then weights by layer.

A tensor's relative change is the norm of the difference, divided by the norm of the earlier tensor. For a layer or a
model, both norms are over all of its numbers. Sums are computed in double precision, for a few million numbers at a
time.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainloop.checkpoints.export import chunks
from trainloop.checkpoints.storage import CheckpointError
from trainloop.versions import output
from trainloop.versions.catalog import UsageError, Version, checked, configuration, find, versions
from trainloop.versions.tensors import Weights, type_name

#: Differences: name, before, after.
Pairs = list[tuple[str, Any, Any]]


def diff(options: argparse.Namespace) -> int:
    before, after = _two(options)
    checked(before)
    checked(after)
    one, other = configuration(before), configuration(after)
    settings = setting_changes(one, other) if one is not None and other is not None else None
    measured = sorted({*before.results, *after.results})
    results = [(name, before.results.get(name), after.results.get(name)) for name in measured]
    changes = weight_changes(Weights(before.path), Weights(after.path))
    if options.output == "json":
        print(output.document(_document(before, after, settings, results, changes)))
    else:
        without = before if one is None else after
        output.lines([f"before   {before.path}", f"after    {after.path}", "", _code(before, after)])
        output.lines([*_settings(settings, without.name), *_results(results)])
        output.lines(_weights(changes, None if options.all else options.top))
    other_results = any(first != second for _, first, second in results)
    differs = bool(settings) or before.code != after.code or other_results or changes.differs
    return int(options.exit_code and differs)


def _two(options: argparse.Namespace) -> tuple[Version, Version]:
    """Returns the two checkpoints to compare, which are given as two names in a directory, or as two paths."""
    if options.after is not None:
        found = versions(options.directory)
        return find(options.directory, options.before, found), find(options.directory, options.after, found)
    pair = [options.directory, Path(options.before)]
    if any(path.name == str(path) for path in pair):
        raise UsageError("diff takes a directory and two checkpoints of it, or two of the form DIR/CHECKPOINT")
    before, after = (find(path.parent, path.name) for path in pair)
    return before, after


def _document(
    before: Version, after: Version, settings: Pairs | None, results: Pairs, changes: WeightChanges
) -> dict[str, Any]:
    """Returns the differences for JSON output; settings are null if a checkpoint has no configuration."""
    tensors = [
        {"name": one.name, "changed": bool(one.changed), "relative": one.relative, "largest": one.largest}
        for one in changes.changes
    ]
    return {
        "before": str(before.path),
        "after": str(after.path),
        "code": {"before": before.code, "after": after.code},
        "settings": None if settings is None else _pairs(settings),
        "results": _pairs(results),
        "weights": {
            "relative": total("", changes.changes).relative,
            "onlyBefore": changes.only_before,
            "onlyAfter": changes.only_after,
            "otherForm": _pairs(changes.reshaped),
            "tensors": tensors,
        },
    }


def _pairs(pairs: Pairs) -> list[dict[str, Any]]:
    return [{"name": name, "before": before, "after": after} for name, before, after in pairs]


def _code(before: Version, after: Version) -> str:
    if before.code is None or after.code is None:
        return "code: unknown, a checkpoint has no hash of it"
    return f"code: {before.code}, the same" if before.code == after.code else f"code: {before.code} -> {after.code}"


def _settings(settings: Pairs | None, without: str) -> list[str]:
    if settings is None:
        return [f"settings: unknown, {without} has no configuration: an older version of the loop wrote it"]
    if not settings:
        return ["settings: the same"]
    rows = [(path, _value(one), _value(other)) for path, one, other in settings]
    return [f"settings: {len(settings)} differ", *_indented(output.table(("SETTING", "BEFORE", "AFTER"), rows))]


def _results(results: Pairs) -> list[str]:
    if not results:
        return ["results: none"]
    rows = [(name, *("-" if value is None else output.number(value) for value in pair)) for name, *pair in results]
    return ["results:", *_indented(output.table(("RESULT", "BEFORE", "AFTER"), rows))]


def _weights(changes: WeightChanges, top: int | None) -> list[str]:
    """Returns the lines about weights; more than `top` tensors are grouped by layer, and a long list is cut."""
    lines = [f"only before: {name}" for name in changes.only_before[:top]]
    lines += [f"only after: {name}" for name in changes.only_after[:top]]
    lines += [f"other form: {name}, {one} -> {other}" for name, one, other in changes.reshaped[:top]]
    hidden = sum(
        max(0, len(kind) - (top or len(kind))) for kind in (changes.only_before, changes.only_after, changes.reshaped)
    )
    lines += [f"... and {hidden} more such (--all)"] if hidden else []
    whole = total("", changes.changes)
    if not whole.tensors:
        return [*lines, "weights: none in common"]
    if not whole.changed:
        return [*lines, f"weights: all {whole.tensors} tensors are the same"]
    lines.append(
        f"weights: {whole.changed} of {whole.tensors} tensors differ, relative change {_relative(whole)}, "
        f"largest difference {output.number(whole.largest)}"
    )
    grouped = top is not None and whole.changed > top
    layers = by_layer(changes.changes) if grouped else changes.changes
    shown = [change for change in layers if change.changed]
    rows = [
        (one.name, f"{one.changed}/{one.tensors}", _relative(one), output.number(one.largest)) for one in shown[:top]
    ]
    header = ("LAYER" if grouped else "TENSOR", "CHANGED", "RELATIVE", "LARGEST")
    lines += _indented(output.table(header, rows))
    if len(shown) > len(rows):
        lines.append(f"  ... and {len(shown) - len(rows)} more that changed less (--top, or --all for every tensor)")
    return lines


def _relative(change: Change) -> str:
    value = change.relative
    return "not finite" if math.isnan(value) else "from zero" if math.isinf(value) else f"{value:.2e}"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


#: The value of a setting that isn't set.
MISSING = "(not set)"


@dataclass(frozen=True)
class Change:
    """A change describes the differences in one tensor, or in all tensors of a layer."""

    name: str
    tensors: int
    changed: int
    squares: float  # sum over the differences
    squares_before: float
    largest: float  # maximum of the absolute differences

    @property
    def relative(self) -> float:
        """Returns the relative change; infinite if all numbers were zero, nan if some weren't finite."""
        if math.isnan(self.largest):
            return math.nan
        if self.squares_before == 0:
            return math.inf if self.squares else 0.0
        return math.sqrt(self.squares) / math.sqrt(self.squares_before)

    @property
    def order(self) -> tuple[bool, float, str]:
        """Returns the sort key of changes: those that aren't finite first, then the largest."""
        return (not math.isnan(self.largest), -self.relative if not math.isnan(self.largest) else 0.0, self.name)


@dataclass(frozen=True)
class WeightChanges:
    """These are the differences between two models."""

    only_before: list[str]
    only_after: list[str]
    reshaped: list[tuple[str, Any, Any]]  # name, type and shape before and after
    changes: list[Change]  # one for each tensor with the same shape in both, largest first

    @property
    def differs(self) -> bool:
        others = self.only_before or self.only_after or self.reshaped
        return bool(others) or any(change.changed for change in self.changes)


def setting_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Returns path, value before and value after of every setting that differs."""
    one, other = dict(_flat(before)), dict(_flat(after))
    paths = [*one, *(path for path in other if path not in one)]
    pairs = [(path, one.get(path, MISSING), other.get(path, MISSING)) for path in paths]
    return [(path, first, second) for path, first, second in pairs if not _same(first, second)]


def weight_changes(before: Weights, after: Weights) -> WeightChanges:
    """Returns the differences between two models. At most one tensor of each model is in memory at a time.

    Raises CheckpointError if a tensor can't be read.
    """
    common = [name for name in after if name in before]
    reshaped = [(name, _form(before, name), _form(after, name)) for name in common]
    reshaped = [(name, one, other) for name, one, other in reshaped if one != other]
    different = {name for name, _, _ in reshaped if before.shape(name)[1] != after.shape(name)[1]}
    changes = [_change(name, before, after) for name in common if name not in different]
    return WeightChanges(
        [name for name in before if name not in after],
        [name for name in after if name not in before],
        reshaped,
        sorted(changes, key=lambda change: change.order),
    )


def by_layer(changes: Iterable[Change]) -> list[Change]:
    """Returns the changes of whole layers, largest first.

    A layer's name is a tensor's name up to the first number (`blocks.3` for `blocks.3.attention.weight`). If there is
    no number, the layer is the module.
    """
    layers: dict[str, list[Change]] = {}
    for change in changes:
        numbered = re.match(r"(?:[^.]+\.)*?\d+(?=\.)", change.name)
        layers.setdefault(numbered[0] if numbered else change.name.rpartition(".")[0] or change.name, []).append(change)
    return sorted((total(name, members) for name, members in layers.items()), key=lambda change: change.order)


def total(name: str, changes: Iterable[Change]) -> Change:
    """Returns the combined change of several tensors."""
    several = list(changes)
    largest = [change.largest for change in several]
    return Change(
        name,
        sum(change.tensors for change in several),
        sum(change.changed for change in several),
        math.fsum(change.squares for change in several if math.isfinite(change.squares)),
        math.fsum(change.squares_before for change in several if math.isfinite(change.squares_before)),
        math.nan if any(map(math.isnan, largest)) else max(largest, default=0.0),
    )


def _change(name: str, before: Weights, after: Weights) -> Change:
    try:
        squares, squares_before, largest = 0.0, 0.0, 0.0
        for one, other in zip(chunks(before[name]), chunks(after[name]), strict=True):
            base = _real(one)
            difference = _real(other).sub_(base).abs_()
            squares += float(difference.square().sum())
            squares_before += float(base.square_().sum())
            largest = max(largest, float(difference.max())) if not math.isnan(largest) else largest
            largest = math.nan if not math.isfinite(squares) else largest
        return Change(name, 1, int(largest != 0), squares, squares_before, largest)
    except (RuntimeError, ValueError, TypeError) as error:
        first = str(error).partition("\n")[0]
        raise CheckpointError(f"{name} of {before.folder} and {after.folder} can't be compared: {first}") from error


def _real(part: torch.Tensor) -> torch.Tensor:
    """Returns a copy in double precision; a complex number becomes two real numbers."""
    real = torch.view_as_real(part.resolve_conj()) if part.is_complex() else part
    return real.to(torch.float64, copy=True)


def _form(weights: Weights, name: str) -> str:
    dtype, shape = weights.shape(name)
    return f"{type_name(dtype)} {list(shape)}"


def _flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _same(one: Any, other: Any) -> bool:
    """Returns whether two values are equal; 1 and true differ, but 1 and 1.0 don't."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)

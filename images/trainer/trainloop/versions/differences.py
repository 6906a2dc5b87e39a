"""`diff` prints what `comparison` finds: settings, results and code, then weights by layer."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainloop.versions import output
from trainloop.versions.catalog import UsageError, Version, checked, find, versions
from trainloop.versions.comparison import Change, WeightChanges, by_layer, setting_changes, total, weight_changes
from trainloop.versions.configuration import configuration
from trainloop.versions.tensors import Weights

#: What differs: name, before, after.
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
    """Returns the two checkpoints that are compared: two of one directory, or two paths."""
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
    """Returns what differs, for JSON; settings are null where a checkpoint has no configuration."""
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
    """Returns the lines about weights; with more than `top` tensors they are by layer, and of many only the first."""
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

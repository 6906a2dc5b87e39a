"""Two checkpoints are compared in settings and results, and in weights tensor by tensor.

A tensor's relative change is the norm of the difference over the norm before. Of a layer (of a whole model) both norms
are over all its numbers. All sums are in double precision, over parts of a few million numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from trainloop.checkpoints.export import chunks
from trainloop.checkpoints.verification import CheckpointError
from trainloop.versions.tensors import Weights, type_name

#: What a setting has where it isn't set.
MISSING = "(not set)"


@dataclass(frozen=True)
class Change:
    """What has changed in one tensor, or in several that are a layer."""

    name: str
    tensors: int
    changed: int
    squares: float  # of the differences, summed
    squares_before: float
    largest: float  # of the absolute differences

    @property
    def relative(self) -> float:
        """Returns the relative change; infinite where all numbers were zero, nan where some weren't finite."""
        if math.isnan(self.largest):
            return math.nan
        if self.squares_before == 0:
            return math.inf if self.squares else 0.0
        return math.sqrt(self.squares) / math.sqrt(self.squares_before)

    @property
    def order(self) -> tuple[bool, float, str]:
        """Returns what sorts changes, those that aren't finite first, then the largest."""
        return (not math.isnan(self.largest), -self.relative if not math.isnan(self.largest) else 0.0, self.name)


@dataclass(frozen=True)
class WeightChanges:
    """What differs between two models."""

    only_before: list[str]
    only_after: list[str]
    reshaped: list[tuple[str, Any, Any]]  # name, type and shape before and after
    changes: list[Change]  # of every tensor that both have in the same shape, largest first

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
    """Returns what differs between two models, of which never more than one tensor each is in memory.

    Raises CheckpointError where a tensor can't be read.
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

    A layer is what a name's first number counts (`blocks.3` of `blocks.3.attention.weight`), elsewhere the module.
    """
    layers: dict[str, list[Change]] = {}
    for change in changes:
        numbered = re.match(r"(?:[^.]+\.)*?\d+(?=\.)", change.name)
        layers.setdefault(numbered[0] if numbered else change.name.rpartition(".")[0] or change.name, []).append(change)
    return sorted((total(name, members) for name, members in layers.items()), key=lambda change: change.order)


def total(name: str, changes: Iterable[Change]) -> Change:
    """Returns several tensors' change as one."""
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
    """Returns a copy in double precision; a complex number is two."""
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
    """Returns whether two values are the same; 1 and true aren't, 1 and 1.0 are."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)

"""Retention decides which checkpoints stay: the ones that were written last, the best one, and what has a tag."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from trainloop.checkpoints.storage import Checkpoint, Survey, named, remove, tags


def best(newest_first: Sequence[Checkpoint], result: str | None, order: str) -> Checkpoint | None:
    """Returns the checkpoint with the best `result`, of equal ones the oldest; the `order` is max or min. A result that
    is nan doesn't count.
    """
    scored = [(one.results.get(result or "", math.nan), one) for one in reversed(newest_first)]
    sign = -1 if order == "min" else 1
    found = [(sign * value, one) for value, one in scored if isinstance(value, int | float) and not math.isnan(value)]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def prune(
    written: Checkpoint, found: Survey, keep: int, best: Checkpoint | None = None, broken: Collection[str] = ()
) -> None:
    """Delete what `superseded` names."""
    for checkpoint in superseded(written, found, keep, best, broken):
        remove(checkpoint)


def superseded(
    written: Checkpoint, found: Survey, keep: int, best: Checkpoint | None = None, broken: Collection[str] = ()
) -> list[Checkpoint]:
    """Returns all that was `found` but the `keep` checkpoints that were written last, the `best`, and those with a tag.

    `written` stays: of it alone it is known that it can be read. Broken ones, by the survey or by their names in
    `broken`, don't count; they are superseded when all that count have a later step.
    """
    whole, damaged = found
    usable = [one for one in whole if one.name not in broken and one != written]
    window, older = [written, *usable[: keep - 1]], usable[keep - 1 :]
    odd = filter(None, (named(written.directory, name) for name in {*damaged, *broken}))
    past = [one for one in odd if len(window) == keep and one < min(window) and one.path.is_dir()]
    tagged = tags(written.directory).values()
    return [one for one in [*older, *past] if one != best and one.name not in tagged]

"""Rows that a task measures (a score for each sample, say) are joined over passes and ranks, in the data's order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from trainloop.errors import TrainingError

#: A rank's rows: how many each pass has, and all of them.
Rows = tuple[list[int], torch.Tensor]


def of_passes(values: list[torch.Tensor]) -> Rows | None:
    """Returns the rows of a rank's passes; None where they don't go together, as a scalar and rows."""
    try:
        return [len(value) for value in values], torch.cat(values)
    except (TypeError, RuntimeError):
        return None


def of_ranks(name: str, ranks: Sequence[Any]) -> torch.Tensor:
    """Returns the rows of all ranks, each pass of theirs after the one before. Raises TrainingError where a rank has
    something else.
    """
    try:
        passes = zip(*(torch.split(rows, lengths) for lengths, rows in cast("Sequence[Rows]", ranks)), strict=True)
        return torch.cat([part for parts in passes for part in parts])
    except (TypeError, ValueError, RuntimeError):
        raise TrainingError(
            f"the task's measure gives {name!r} in shapes that don't go together: it must be a scalar in every batch, "
            "or rows (samples first) in every batch, of a single sample too, which squeeze() would make a scalar"
        ) from None

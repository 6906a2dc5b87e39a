"""Parameters without a gradient are named; imported where a rank has some."""

from __future__ import annotations

from trainloop.errors import listed


def sentence(missing: list[list[str]], *, sharded: bool) -> str | None:
    """Returns a sentence about the names of parameters that each rank has no gradient for; None where that is in order,
    because FSDP2 takes zeros of the ranks that have none.
    """
    by_ranks: dict[tuple[int, ...], list[str]] = {}
    for name in dict.fromkeys(name for names in missing for name in names):
        by_ranks.setdefault(tuple(rank for rank, names in enumerate(missing) if name in names), []).append(name)
    if sharded:
        by_ranks = {ranks: names for ranks, names in by_ranks.items() if len(ranks) == len(missing)}
    if not by_ranks:
        return None
    parts = [
        f"no rank has a gradient for {listed(names)}"
        if len(ranks) == len(missing)
        else f"rank {listed(ranks)} has none for {listed(names)}, the others do"
        for ranks, names in by_ranks.items()
    ]
    return (
        f"parameters without gradient after the first step: {'; '.join(parts[:8])}. Use them in the loss, freeze them "
        "(requires_grad=False), or set parallel.find_unused_parameters where it depends on the batch"
    )

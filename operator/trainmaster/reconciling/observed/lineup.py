"""The lineup says who trains: as many of each group's pods as it has workers, in the order of their ranks.

The other pods of a group are its spares. So no index is a spare's by itself: where a spare takes a lost worker's place,
in the same position, the pod that comes back under the lost index is the spare from then on. A spare only stands in for
a worker of its own group, because another group has other machines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from trainmaster.rendering import GroupLayout


def has_spares(layout: Sequence[GroupLayout]) -> bool:
    """Returns whether a job has more pods than workers."""
    return any(group.spares for group in layout)


def desired_lineup(layout: Sequence[GroupLayout], current: Sequence[int], able: Collection[int]) -> tuple[int, ...]:
    """Returns who trains if nobody is lost: `current`, cut or filled to the number of workers.

    `able`: who could begin at once; they are the first to fill a gap. Without spares there is no choice.
    """
    if not has_spares(layout):
        return tuple(index for group in layout for index in group.indexes)
    kept: set[int] = set()
    more: list[int] = []
    for group in layout:
        present = [worker for worker in current if worker in group.indexes][: group.count]
        free = sorted(set(group.indexes) - set(present), key=lambda index: (index not in able, index))
        kept.update(present)
        more += free[: group.count - len(present)]
    return (*(worker for worker in current if worker in kept), *more)


def with_stand_ins(
    layout: Sequence[GroupLayout], workers: Sequence[int], lost: Iterable[int], spares: Iterable[int]
) -> tuple[int, ...]:
    """Returns the workers with spares in the places of lost ones, as far as there are spares of their groups.

    `lost` and `spares` are in the order in which they are taken. A spare that is among the workers already, because the
    group is to grow, is nobody's stand-in.
    """
    free = [spare for spare in spares if spare not in workers]
    instead: dict[int, int] = {}
    for worker in lost:
        group = next((group for group in layout if worker in group.indexes), None)
        spare = next((index for index in free if group is not None and index in group.indexes), None)
        if spare is not None:
            free.remove(spare)
            instead[worker] = spare
    return tuple(instead.get(worker, worker) for worker in workers)

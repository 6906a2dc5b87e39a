"""The members of an attempt are its workers' ranks, some of which may be absent in a continued attempt.

A rank keeps its number while its process lives, so continued attempts keep the lineup and list the absent ranks. A
worker is absent if all its ranks are absent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from trainmaster_operator.api.printable import listed
from trainmaster_operator.rendering import GroupLayout


@dataclass(frozen=True)
class Members:
    """Each worker's global ranks, in rank order, and the ranks that aren't in the group."""

    ranks: Mapping[int, range]
    absent_ranks: tuple[int, ...] = ()

    @classmethod
    def of(cls, workers: Iterable[int], layout: tuple[GroupLayout, ...], absent: Iterable[int]) -> Members:
        """Returns the members of an attempt with these workers."""
        counts = {index: group.processes for group in layout for index in group.indexes}
        # Only jobs with one group are resized, so a removed worker had the same number of ranks as the others.
        usual = layout[0].processes if layout else 1
        ranks, first = dict[int, range](), 0
        for worker in workers:
            ranks[worker] = range(first, first + counts.get(worker, usual))
            first = ranks[worker].stop
        ordered = tuple(rank for rank in sorted({*absent}) if 0 <= rank < first)
        # If the status lists all ranks as absent, it was edited, so the list is ignored.
        return cls(ranks, ordered if len(ordered) < first else ())

    @cached_property
    def _absent(self) -> frozenset[int]:
        return frozenset(self.absent_ranks)

    def present_ranks(self, worker: int) -> tuple[int, ...]:
        """Returns a worker's ranks that are in the group."""
        return tuple(rank for rank in self.ranks.get(worker, ()) if rank not in self._absent)

    @cached_property
    def present(self) -> tuple[int, ...]:
        """Returns the workers that have a rank in the group, in rank order."""
        if not self.absent_ranks:
            return tuple(self.ranks)
        return tuple(worker for worker in self.ranks if self.present_ranks(worker))

    @cached_property
    def absent(self) -> frozenset[int]:
        """Returns the workers all of whose ranks are absent."""
        return frozenset(self.ranks) - frozenset(self.present)

    @property
    def incomplete(self) -> tuple[int, ...]:
        """Returns the workers with an absent rank, in rank order."""
        return tuple(worker for worker, ranks in self.ranks.items() if not self._absent.isdisjoint(ranks))

    def without(self, ranks: Iterable[int]) -> Members:
        """Returns the same members, of which exactly these ranks are absent."""
        return Members(self.ranks, tuple(sorted(ranks)))

    def shown(self, desired: int) -> str:
        """Describes the training workers, such as `3 of 4 workers` or `all 4 workers`. `desired` is the full number."""
        incomplete = self.incomplete
        parts = [
            f"{len(self.present_ranks(worker))} of {len(self.ranks[worker])} ranks of worker {worker}"
            for worker in incomplete
            if worker not in self.absent
        ]
        whole = len(self.ranks) - len(incomplete)
        if parts and desired == 1:
            return parts[0]
        if whole >= desired:
            return f"all {whole} workers" if whole > 1 else "its worker"
        return f"{whole} of {desired} workers" + (f" and {listed(parts)}" if parts else "")

    def named(self, ranks: Collection[int]) -> str:
        """Describes these ranks: `worker 2`, `workers 2, 3`, `rank 5 of worker 2`."""
        whole = [str(worker) for worker, own in self.ranks.items() if own and set(own) <= {*ranks}]
        parts = [
            f"rank {rank} of worker {worker}"
            for worker, own in self.ranks.items()
            for rank in own
            if rank in ranks and str(worker) not in whole
        ]
        names = [f"worker{'' if len(whole) == 1 else 's'} {listed(whole)}"] if whole else []
        return " and ".join([*names, *([listed(parts)] if parts else [])])

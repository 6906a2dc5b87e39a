"""What lookups have found for a job beyond its own objects: None where it isn't there or can't be read."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainmaster_operator.reconciling.observed.snapshot import Flavor


@dataclass
class LookupResults:
    """Holds what `lookups` has found for one job."""

    # By node (`lookups.node_domains`).
    domains: dict[str, str | None] = field(default_factory=dict)
    # Kueue's flavors and the values of priority classes, by name (`lookups.kueue`).
    flavors: dict[str, Flavor | None] = field(default_factory=dict)
    priorities: dict[str, int | None] = field(default_factory=dict)
    # Why the kubelet killed a pod's container, by the pod's uid and the end's time (`lookups.killed_containers`).
    kills: dict[tuple[str, float], str | None] = field(default_factory=dict)
    # Uids of pods that were listed because no watch had shown them (`lookups.unseen_pods`).
    listed_pods: set[str] = field(default_factory=set)

    def merge(self, more: LookupResults) -> bool:
        """Add what was found now; returns whether anything is new."""
        before = [each.copy() for each in vars(self).values()]
        self.domains.update(more.domains)
        self.flavors.update(more.flavors)
        self.priorities.update(more.priorities)
        self.kills.update(more.kills)
        self.listed_pods.update(more.listed_pods)
        return before != [*vars(self).values()]

"""The operator adds to pods what `pod-overlay.yaml.j2` has, whatever the job's podTemplate says.

It is laid over the rendered pod template after the user's podTemplate, because it must hold beside that: the gang that
the pods are in, the flavors that Kueue has admitted, and the nodes to avoid. Maps are merged, and lists grow: what
stands there stays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainmaster_operator.rendering.pod_group import GangScheduler


@dataclass(frozen=True)
class Placement:
    """Placement is what an admission adds to a pod template. Tolerations are JSON: equal placements hash alike."""

    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class OverlayContext:
    """OverlayContext is what the overlay's template gets."""

    group_name: str
    gang_scheduler: GangScheduler | None
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    node_selector: Mapping[str, str]
    tolerations: Sequence[Mapping[str, Any]]
    avoided_nodes: Sequence[str]

    @property
    def is_empty(self) -> bool:
        """Returns whether nothing is added, so that the template need not be rendered."""
        admitted = self.labels or self.annotations or self.node_selector or self.tolerations
        return not admitted and not self.avoided_nodes and self.gang_scheduler in (None, "kueue")


def overlay_context(
    group_name: str, gang_scheduler: GangScheduler | None, placement: Placement, avoided_nodes: Sequence[str]
) -> OverlayContext:
    """Returns the context of a group's overlay. `group_name`: the job's PodGroup, where it has one."""
    return OverlayContext(
        group_name=group_name,
        gang_scheduler=gang_scheduler,
        labels=dict(placement.labels),
        annotations=dict(placement.annotations),
        node_selector=dict(placement.node_selector),
        tolerations=tuple(json.loads(toleration) for toleration in placement.tolerations),
        avoided_nodes=avoided_nodes,
    )


def lay_over(original: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the original with the overlay's values: maps merged, list items added that aren't there yet. A part of
    the overlay that is null is empty: it adds nothing."""
    merged = dict(original)
    for name, value in overlay.items():
        old = merged.get(name)
        if value is None:
            continue
        if isinstance(value, Mapping):
            merged[name] = lay_over(old or {}, value)
        elif isinstance(value, list):
            merged[name] = [*(old or []), *(item for item in value if item not in (old or []))]
        else:
            merged[name] = value
    return merged

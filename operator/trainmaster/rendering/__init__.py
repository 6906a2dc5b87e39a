"""From a job to the manifests of its children. Pure: the same job gives the same bytes.

`layout` says who the workers are, `context` computes what the templates get, `engine` renders and reads back,
`api.merge` lays the user's podTemplate over it, `rendering` puts them together.
"""

from trainmaster.rendering.context import NetworkPeers, Settings, pod_grace_seconds, rank_grace_seconds
from trainmaster.rendering.gangs import GANG_APIS, GangAPI, has_pod_group, scheduler_of
from trainmaster.rendering.kueue import Placement
from trainmaster.rendering.layout import (
    GroupLayout,
    JobIdentity,
    first_assignment,
    stable_hosts,
    worker_count,
    worker_layout,
    world_size,
)
from trainmaster.rendering.manifest import Manifest, child_kind
from trainmaster.rendering.rendering import render

__all__ = [
    "GANG_APIS",
    "GangAPI",
    "GroupLayout",
    "JobIdentity",
    "Manifest",
    "NetworkPeers",
    "Placement",
    "Settings",
    "child_kind",
    "first_assignment",
    "has_pod_group",
    "pod_grace_seconds",
    "rank_grace_seconds",
    "render",
    "scheduler_of",
    "stable_hosts",
    "worker_count",
    "worker_layout",
    "world_size",
]

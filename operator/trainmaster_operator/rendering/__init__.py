"""A job becomes the manifests of its children. Rendering is pure: the same job gives the same bytes.

Start with `render`: which children a job has, in the order in which they are applied. `layout` says who the workers
are; `stateful_set` (with `environment`, `accelerators`, `grace_periods`, `paths`), `pod_group` and `workload` compute
what the templates of these names get, `child` what all of them get; `agent_source` says where a worker has its agent
from, and `verified_agent` is the program that runs one from a ConfigMap. `engine` renders a template and reads it back.
`pod_overlay` is what the operator adds after the user's podTemplate is merged in; `manifest` adds the hash.
`training_text` writes the bundled loop's configuration, and `settings` are the operator's own choices.
"""

from trainmaster_operator.rendering.agent_source import AgentConfigMap
from trainmaster_operator.rendering.grace_periods import pod_grace_seconds, rank_grace_seconds
from trainmaster_operator.rendering.layout import (
    GroupLayout,
    JobIdentity,
    first_assignment,
    has_spares,
    processes_by_worker,
    stable_hosts,
    worker_count,
    worker_layout,
    world_size,
)
from trainmaster_operator.rendering.manifest import Manifest, child_kind
from trainmaster_operator.rendering.pod_group import GANG_APIS, GangAPI, has_pod_group, scheduler_of
from trainmaster_operator.rendering.pod_overlay import Placement
from trainmaster_operator.rendering.render import render
from trainmaster_operator.rendering.settings import NetworkPeers, Settings

__all__ = [
    "GANG_APIS",
    "AgentConfigMap",
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
    "has_spares",
    "pod_grace_seconds",
    "processes_by_worker",
    "rank_grace_seconds",
    "render",
    "scheduler_of",
    "stable_hosts",
    "worker_count",
    "worker_layout",
    "world_size",
]

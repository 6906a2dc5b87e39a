"""Renders the manifests of a job's children. Rendering is pure, so equal jobs give equal bytes.

Start with `render`, which lists a job's children in the order in which they are applied. `layout` computes groups,
names and ranks. `stateful_set` (with `environment`) and `gang_scheduling` compute the values for their templates.
`manifest` adds the fields that all children share, and their hash. `engine` renders a template, and writes the loop's
configuration as YAML. `agent_source` decides where a pod gets its agent, and the program `verified_agent` runs an agent
from a ConfigMap. `settings` contains the operator's own choices.
"""

from trainmaster_operator.rendering.agent_source import AgentConfigMap
from trainmaster_operator.rendering.environment import pod_grace_seconds, rank_grace_seconds
from trainmaster_operator.rendering.gang_scheduling import GANG_APIS, GangAPI, pod_group_kind, scheduler_of
from trainmaster_operator.rendering.layout import (
    GroupLayout,
    first_assignment,
    has_spares,
    processes_by_worker,
    stable_hosts,
    worker_layout,
    world_size,
)
from trainmaster_operator.rendering.manifest import Manifest, child_kind
from trainmaster_operator.rendering.render import Placement, render
from trainmaster_operator.rendering.settings import NetworkPeers, Settings

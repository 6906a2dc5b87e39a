"""Defines the operator's settings for manifests and decisions."""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster_operator.api.signing import SigningKeys
from trainmaster_operator.rendering.agent_source import AgentConfigMap

_UNBUILT = AgentConfigMap(f"trainmaster-agent-{0:064}")


@dataclass(frozen=True)
class NetworkPeers:
    """NetworkPeers lists the other pods that a job's NetworkPolicy allows to connect to the job's pods."""

    # The namespace and labels of the operator's pods. If there are no labels, these pods have no access.
    operator_namespace: str
    operator_labels: tuple[tuple[str, str], ...] = ()
    # Namespaces whose pods may read the agents' /metrics.
    metrics_namespaces: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """Settings are the operator's choices for rendering, and for decisions that depend on the cluster."""

    # Pods get the agent from this ConfigMap, unless they use the bundled image or their job started with another agent.
    # The ConfigMap's name is known once the agent is built (`config_map_name`).
    agent: AgentConfigMap = _UNBUILT
    # If the kubelet's crash back-off would delay a worker's container for more than these seconds, the pod is replaced.
    # None disables this. (On a real kubelet, a new pod was created after 1.4 s if no container was running. Volumes and
    # a busy scheduler take longer.)
    replace_after_seconds: float | None = 5.0
    # Whether workers' output may be kept and shown. The job must allow it too (runPolicy.keepLogs).
    keep_logs: bool = True
    # Peers that may connect to a job's pods. If None, jobs have no NetworkPolicy.
    network_peers: NetworkPeers | None = None
    # The operator's keys. None is only for displaying manifests, because agents accept only signed assignments.
    keys: SigningKeys | None = None

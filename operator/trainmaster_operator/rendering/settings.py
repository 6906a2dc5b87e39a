"""The operator's settings for manifests and decisions."""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster_operator.api.signing import SigningKeys
from trainmaster_operator.rendering.agent_source import AgentConfigMap

_UNBUILT = AgentConfigMap(f"trainmaster-agent-{0:064}")


@dataclass(frozen=True)
class NetworkPeers:
    """NetworkPeers may connect to a job's pods, besides the job's own pods, if jobs have a NetworkPolicy."""

    # The namespace and labels of the operator's pods. Without labels they have no access.
    operator_namespace: str
    operator_labels: tuple[tuple[str, str], ...] = ()
    # Namespaces whose pods may read the agents' /metrics.
    metrics_namespaces: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """Settings are the operator's choices for rendering, and for decisions that depend on the cluster."""

    # Pods get the agent from this ConfigMap, unless they have the bundled image or their job started with another
    # agent. A ConfigMap's name is known when the agent is built (`config_map_name`).
    agent: AgentConfigMap = _UNBUILT
    # Maximum seconds of a worker's container in the kubelet's crash back-off before its pod is replaced; None: never.
    # (On a real kubelet the successor of a pod without a running container was there after 1.4 s; volumes and a busy
    # scheduler take longer.)
    replace_after_seconds: float | None = 5.0
    # Workers' output may be kept and shown if the job allows it too (runPolicy.keepLogs).
    keep_logs: bool = True
    # Peers that may connect to a job's pods; None: jobs have no NetworkPolicy.
    network_peers: NetworkPeers | None = None
    # The operator's keys. None if manifests are only shown: agents accept only signed assignments.
    keys: SigningKeys | None = None

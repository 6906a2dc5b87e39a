"""Manifests and decisions depend on these choices of the operator."""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster_operator.api.signing import SigningKeys
from trainmaster_operator.rendering.agent_source import AgentConfigMap

_UNBUILT = AgentConfigMap(f"trainmaster-agent-{0:064}")


@dataclass(frozen=True)
class NetworkPeers:
    """NetworkPeers may connect to a job's pods beside those of the same job, where each job has a NetworkPolicy."""

    # The operator's pods: their namespace, and labels that they have. Without labels they aren't let in.
    operator_namespace: str
    operator_labels: tuple[tuple[str, str], ...] = ()
    # Namespaces whose pods may read the agents' /metrics.
    metrics_namespaces: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """Settings are the operator's choices for what it renders, and where a cluster's ways matter for its decisions."""

    # Pods whose image isn't the bundled one have the agent from it, unless their job has begun with another. A
    # ConfigMap's name is known when the agent is built (`config_map_name`).
    agent: AgentConfigMap = _UNBUILT
    # Seconds that a worker's container may wait in the kubelet's crash back-off before its pod is replaced instead (the
    # successor of a pod without a running container was there after 1.4 s on a real kubelet; volumes and a busy
    # scheduler take longer). None: never.
    replace_after_seconds: float | None = 5.0
    # What workers print may be kept and shown, where the job allows it too (runPolicy.keepLogs).
    keep_logs: bool = True
    # These may connect to a job's pods; None: jobs have no NetworkPolicy.
    network_peers: NetworkPeers | None = None
    # The operator's. None where manifests are only shown: no agent accepts an assignment that isn't signed.
    keys: SigningKeys | None = None

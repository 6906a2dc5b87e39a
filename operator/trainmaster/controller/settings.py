"""The operator's settings, each with its unit, default and why. The command line and TRAINMASTER_* fill them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainmaster import __version__

Reach = Literal["auto", "direct", "proxy"]
LogFormat = Literal["json", "text"]


@dataclass(frozen=True)
class OperatorSettings:
    """Everything that a person may want to change, and what the tests do."""

    # Namespaces to serve; empty means all. A namespace needn't exist yet.
    namespaces: tuple[str, ...] = ()
    kubeconfig: str | None = None
    context: str | None = None
    # Jobs that are worked on at the same time. Most of a pass is waiting for the API server.
    workers: int = 8
    # How agents are reached: pod IPs, or the API server's pod proxy; auto is direct in a cluster, else proxy.
    reach: Reach = "auto"
    leader_elect: bool = True
    lease_namespace: str = "trainmaster-system"
    lease_name: str = "trainmaster-operator"
    # client-go's defaults (tools/leaderelection): 15, 10 and 2 s.
    lease_seconds: float = 15.0
    renew_seconds: float = 10.0
    retry_seconds: float = 2.0
    # Port of /healthz, /readyz and /metrics; 0 chooses a free one, None serves none.
    metrics_port: int | None = 8080
    metrics_host: str = "0.0.0.0"
    agent_image: str = f"ghcr.io/trainmaster/trainer:{__version__}"
    agent_port: int = 8472
    # Seconds that a worker may wait in the kubelet's crash back-off before its pod is replaced; None: never is.
    replace_after_seconds: float | None = 5.0
    log_format: LogFormat = "text"
    log_level: str = "INFO"
    # Seconds between two status writes that only tell progress; state changes are written at once.
    progress_seconds: float = 5.0
    # Seconds between two comparisons of the store with a list (metadata only): finds what a watch lost.
    resync_seconds: float = 300.0
    # Whether what workers print is kept in ConfigMaps, where jobs allow it too (runPolicy.keepLogs). False for clusters
    # whose ConfigMaps are read by people who may not read logs.
    keep_logs: bool = True
    # Whether each job gets a NetworkPolicy. The operator's namespace in it is that of its lease.
    job_network_policies: bool = False
    # Labels of the operator's own pods: who has them may connect to agents. Empty where it runs outside of the cluster.
    operator_labels: tuple[tuple[str, str], ...] = ()
    # Namespaces whose pods may read the agents' /metrics.
    metrics_namespaces: tuple[str, ...] = ()
    # Bytes of workers' logs kept in the ConfigMap <job>-logs when a job ends; 0 keeps none. A ConfigMap holds 1 MiB.
    kept_log_bytes: int = 512 * 1024
    # Seconds for one API request.
    request_seconds: float = 30.0

"""Each of the operator's settings is declared once, with its name, unit, default and reason.

The command line, the environment variables and the table in docs/operating.md are generated from the fields. A field
with an `Option` is an option of `trainmaster-operator run`. The other fields are for tests, or never need a change.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from trainmaster_operator.api.options import InvalidSetting, LogFormat, LogLevel, option
from trainmaster_operator.wire.names import AGENT_PORT, LEASE_NAME, LEASE_NAMESPACE

METRICS_PORT = 8080
ReachMode = Literal["auto", "direct", "proxy"]


def parse_names(given: list[str]) -> tuple[str, ...]:
    """Returns the names in a list, whose items can each contain several names separated by commas or spaces."""
    return tuple(name for entry in given for name in entry.replace(",", " ").split())


def parse_namespaces(given: list[str]) -> tuple[str, ...]:
    """Returns the names of namespaces, as `parse_names` reads them. Raises InvalidSetting."""
    return tuple(parse_namespace(name) for name in parse_names(given))


def parse_namespace(name: str) -> str:
    """Returns the name of a namespace. Raises InvalidSetting."""
    # Import this only here, because it loads the models, which --help doesn't need.
    from trainmaster_operator.api.values import DNS_LABEL_PATTERN

    if re.fullmatch(DNS_LABEL_PATTERN, name) is None:
        raise InvalidSetting(f"{name!r} is no name of a namespace; give small letters, digits and '-'")
    return name


def parse_history(url: str) -> str:
    """Returns the base address to which records are sent. Raises InvalidSetting."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not url.isascii() or not url.isprintable() or set(" ?#") & set(url):
        raise InvalidSetting(f"{url!r} is no address of a history; use http://host:port, without a query")
    if parts.username is not None or parts.password is not None:
        raise InvalidSetting("an address with a name or a password shows it to many; give --history-token-file")
    return url.rstrip("/")


def parse_labels(given: list[str]) -> tuple[tuple[str, str], ...]:
    """Returns labels, each given as NAME=VALUE. Raises InvalidSetting."""
    labels = []
    for text in parse_names(given):
        name, sign, value = text.partition("=")
        if not name or not sign:
            raise InvalidSetting(f"{text!r} has to be NAME=VALUE")
        labels.append((name, value))
    return tuple(labels)


def _option(default: Any, help: str, **how: Any) -> Any:
    return field(default=default, metadata=option(help, **how))


@dataclass(frozen=True)
class OperatorSettings:
    """Holds all settings, for users and for tests."""

    # An empty tuple means all namespaces.
    namespaces: tuple[str, ...] = _option(
        (),
        "Namespace to serve, which needn't exist yet; repeatable.",
        name="namespace",
        short="n",
        variable="NAMESPACES",
        parse=parse_namespaces,
    )
    # Only the command line reads this, so that serving all namespaces is an explicit choice.
    all_namespaces: bool = _option(False, "Serve all namespaces.", short="A")
    kubeconfig: str | None = _option(
        None, "Kubeconfig file; default: the pod's service account, else KUBECONFIG, else ~/.kube/config."
    )
    context: str | None = _option(None, "Context of the kubeconfig; default: its current.")
    # A pass mostly waits for the API server, so many passes can run at once.
    workers: int = _option(8, "Jobs worked on at the same time.", least=1, most=256)
    reach: ReachMode = _option(
        "auto", "How agents are reached: pod addresses, or the API server's pod proxy. auto: direct in a cluster."
    )
    leader_elect: bool = _option(True, "Lead by a Lease, so that several replicas can run.")
    lease_namespace: str = _option(
        LEASE_NAMESPACE,
        "Namespace of the Lease, and of the Secret with the operator's keys.",
        more_variables=("POD_NAMESPACE",),
        default_text=f"the first --namespace, else {LEASE_NAMESPACE}",
        parse=parse_namespace,
    )
    # The metrics don't share the probes' port, because they name the jobs of every namespace. On a laptop, another
    # program often listens on 8080, and only the laptop's own programs may read them.
    metrics_port: int | None = _option(
        None,
        "Port of /metrics; 0 takes a free one.",
        least=0,
        most=65535,
        default_text=f"{METRICS_PORT} in a pod, else a free one",
    )
    metrics_host: str | None = _option(
        None, "Address that /metrics listens on.", default_text="0.0.0.0 in a pod, else 127.0.0.1"
    )
    metrics_require_token: bool = _option(
        False,
        "Answer /metrics only to Kubernetes tokens whose owner may get the nonResourceURL /metrics. The operator "
        "needs the right to create TokenReviews and SubjectAccessReviews.",
    )
    # The default is None because nothing sends probes on a laptop.
    health_port: int | None = _option(
        None,
        "Port of the probes /healthz and /readyz; 0 takes a free one; default: there are none.",
        least=0,
        most=65535,
    )
    health_host: str = _option("0.0.0.0", "Address that the probes listen on.")
    agent_port: int = _option(
        AGENT_PORT, "Port of the agents, for benchmarks with faked ones.", least=1, most=65535, hidden=True
    )
    # A new pod starts in less than 5 s. If this is None, pods are never replaced.
    replace_after_seconds: float | None = _option(
        5.0,
        "Seconds that a worker may wait in the kubelet's crash back-off before its pod is replaced; 0: never.",
        name="replace-after",
        least=0,
        parse=lambda seconds: seconds or None,
    )
    # Set this to False if people who may not read logs can read ConfigMaps.
    keep_logs: bool = _option(
        True, "Keep what workers printed in ConfigMaps, where the job's runPolicy.keepLogs allows it."
    )
    # The policy assumes that the operator runs in the namespace of the lease.
    job_network_policies: bool = _option(
        False,
        "Give each job a NetworkPolicy: its pods are reached by each other, and on the agents' port by the "
        "operator (--operator-label) and by those who read metrics (--metrics-namespace).",
    )
    # Pods with these labels may connect to agents. Empty if the operator runs outside of the cluster.
    operator_labels: tuple[tuple[str, str], ...] = _option(
        (),
        "Label NAME=VALUE of the operator's own pods, in the namespace of its Lease; repeatable.",
        name="operator-label",
        variable="OPERATOR_LABELS",
        parse=parse_labels,
    )
    metrics_namespaces: tuple[str, ...] = _option(
        (),
        "Namespace whose pods may read agents' metrics; repeatable.",
        name="metrics-namespace",
        variable="METRICS_NAMESPACES",
        parse=parse_namespaces,
    )
    # Jobs can't set this, because a tenant could then make the operator send requests anywhere.
    history_url: str | None = _option(
        None,
        "Address of the history (trainmaster history) to which records of jobs are sent; default: none are.",
        parse=parse_history,
    )
    history_token_file: str | None = _option(None, "File with the history's writer token; read for each request.")
    history_seconds: float = _option(
        2.0,
        "Seconds between two samples of a job's ranks for the history; a job of thousands is sampled less often.",
        least=0.5,
        most=3_600,
    )
    log_format: LogFormat = _option("text", "json for collectors, text for people.")
    log_level: LogLevel = _option("INFO", "Minimum log level.")

    lease_name: str = LEASE_NAME
    # In seconds: client-go's defaults (tools/leaderelection).
    lease_seconds: float = 15.0
    renew_seconds: float = 10.0
    retry_seconds: float = 2.0
    # Seconds between two status writes that contain only progress. State changes are written at once.
    progress_seconds: float = 5.0
    # Seconds between two sweeps. A sweep compares the store with a metadata-only list to find events that a watch lost.
    resync_seconds: float = 300.0
    # Bytes of workers' logs kept in the ConfigMap <job>-logs when a job ends; 0 keeps none. A ConfigMap holds 1 MiB.
    kept_log_bytes: int = 512 * 1024
    # Timeout in seconds for one API request.
    request_seconds: float = 30.0

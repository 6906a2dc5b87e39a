"""Computes a worker's environment: MASTER_ADDR, MASTER_PORT, WORLD_SIZE and the agent's variables.

MASTER_PORT is only for programs that don't use the agent's rendezvous. Otherwise each attempt uses its own port
(`wire.assignment`), which the agent sets. This module also defines the container's paths, devices, variables of the
collective libraries, and grace periods.
"""

from __future__ import annotations

import hashlib
from typing import Any

from trainmaster_operator.api.pod_schema.resources import resource_name
from trainmaster_operator.api.signing import AGENTS_SECRET_KEY
from trainmaster_operator.api.v1alpha1 import Interconnect, JobIdentity, JobSpec
from trainmaster_operator.rendering.layout import GroupLayout, stable_hosts, worker_layout, world_size
from trainmaster_operator.rendering.settings import Settings
from trainmaster_operator.wire.assignment import DEFAULT_MASTER_PORT
from trainmaster_operator.wire.names import AGENT_PORT, AGENTS_SECRET_VARIABLE, POD_INDEX_LABEL, PUBLIC_KEYS_VARIABLE
from trainmaster_operator.wire.signing import canonical


def worker_environment(job: JobIdentity, spec: JobSpec, group: GroupLayout, settings: Settings) -> dict[str, Any]:
    """Returns the variables in the order of docs/protocol.md, section "Files and environment".

    A variable is a text, or a reference to its source as in Kubernetes' `valueFrom`.
    """
    layout = worker_layout(job, spec)
    nodes, processes = str(sum(other.count for other in layout)), str(group.processes)
    master, port = stable_hosts(job, spec)[0], str(DEFAULT_MASTER_PORT)
    index = _field(f"metadata.labels['{POD_INDEX_LABEL}']")
    variables: dict[str, Any] = {
        "MASTER_ADDR": master,
        "MASTER_PORT": port,
        "NNODES": nodes,
        "NPROC_PER_NODE": processes,
        "WORLD_SIZE": str(world_size(layout)),
        "NODE_RANK": index,
        "RANK": index if all(other.processes == 1 for other in layout) else None,
        "PET_NNODES": nodes,
        "PET_NPROC_PER_NODE": processes,
        "PET_NODE_RANK": index,
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": port,
        "PET_RDZV_BACKEND": "static",
        "PET_MAX_RESTARTS": "0",
        "TRAINMASTER_JOB": job.name,
        "TRAINMASTER_JOB_UID": job.uid,
        "TRAINMASTER_NAMESPACE": job.namespace,
        "TRAINMASTER_WORKER": index,
        "TRAINMASTER_POD_NAME": _field("metadata.name"),
        "TRAINMASTER_POD_UID": _field("metadata.uid"),
        "TRAINMASTER_POD_IP": _field("status.podIP"),
        "TRAINMASTER_NODE_NAME": _field("spec.nodeName"),
        "TRAINMASTER_ASSIGNMENT_FILE": f"{PODINFO_DIRECTORY}/assignment",
        "TRAINMASTER_STATE_DIR": STATE_DIRECTORY,
        "TRAINMASTER_MEMORY_DIR": MEMORY_DIRECTORY,
        "TRAINMASTER_TERMINATION_LOG": TERMINATION_LOG,
        "TRAINMASTER_AGENT_PORT": str(AGENT_PORT),
        "TRAINMASTER_LAUNCHER": spec.launcher,
        "TRAINMASTER_BACKEND": spec.backend,
        "TRAINMASTER_GRACE_SECONDS": str(rank_grace_seconds(spec)),
        "TRAINMASTER_PROGRESS_TIMEOUT": _optional_seconds(spec.failure_policy.hang.progress_seconds),
        "TRAINMASTER_FIRST_STEP_TIMEOUT": _optional_seconds(spec.failure_policy.hang.first_step_seconds),
    }
    if spec.code is not None:
        claim = spec.code.claim
        variables["TRAINMASTER_CODE_DIR"] = CODE_DIRECTORY if claim is None else f"{CODE_DIRECTORY}/{claim.path}"
        source = f"ConfigMap {spec.code.config_map}" if claim is None else f"claim {claim.claim_name}"
        variables["TRAINMASTER_CODE_SOURCE"] = source
    if spec.training is not None:
        # The digest is computed from the values, because another version of the operator may write a different text.
        digest = hashlib.sha256(canonical(spec.training.value()).encode()).hexdigest()
        variables["TRAINMASTER_TRAINING"] = f"{digest} {TRAINING_FILE}"
    variables["TRAINMASTER_SETUP"] = _literal(spec.setup)
    if spec.warm_start.enabled and spec.launcher == "torchrun":
        variables["TRAINMASTER_WARM_START"] = "true"
        variables["TRAINMASTER_PRELOAD"] = ",".join(spec.warm_start.preload) or None
    if spec.progress is not None:
        variables["TRAINMASTER_PROGRESS_PATTERN"] = _literal(spec.progress.pattern)
        variables["TRAINMASTER_PROGRESS_PRESET"] = spec.progress.preset
    if spec.checkpoint is not None:
        variables["TRAINMASTER_CHECKPOINT_DIR"] = _literal(spec.checkpoint.path)
    if has_read_only_root(spec):
        # Torch Inductor's default needs the user's name, which is unknown if the image has no entry for the user id.
        variables["HOME"] = TEMPORARY_DIRECTORY
        variables["TORCHINDUCTOR_CACHE_DIR"] = f"{TEMPORARY_DIRECTORY}/torchinductor"
    variables |= interconnect_environment(group, spec.interconnect)
    if settings.keys is not None:
        # The keys for signed assignments, and the secret for the job's token. Without the Secret, the agents run too,
        # but accept no request on their port.
        secret = settings.keys.agents_secret(job.namespace).name
        variables[PUBLIC_KEYS_VARIABLE] = settings.keys.public_keys
        variables[AGENTS_SECRET_VARIABLE] = {
            "secretKeyRef": {"name": secret, "key": AGENTS_SECRET_KEY, "optional": True}
        }
    return {name: value for name, value in variables.items() if value is not None}


def _field(path: str) -> dict[str, Any]:
    return {"fieldRef": {"fieldPath": path}}


def has_read_only_root(spec: JobSpec) -> bool:
    """Returns whether the container's root file system is read-only."""
    return spec.security_context is not None and spec.security_context.read_only_root_filesystem is True


def _optional_seconds(value: float | None) -> str | None:
    if value is None:
        return None
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _literal(text: str | None) -> str | None:
    """Escapes a value so that the kubelet doesn't change it.

    The kubelet expands $(NAME) and replaces $$ by $ in every variable, which would break a shell's own $$ and $(...)
    (k8s.io/kubernetes/third_party/forked/golang/expansion).
    """
    return None if text is None else text.replace("$", "$$")


# The variables for NCCL's levels. oneCCL and CANN (0 debug ... 3 error) have their own levels. gloo uses torch's c10d
# logging, whose level DETAIL checks every collective. That takes time, so only TRACE selects DETAIL.
_DEBUG = {
    "intel": ("CCL_LOG_LEVEL", {"VERSION": "warn", "WARN": "warn", "INFO": "info", "TRACE": "trace"}),
    "ascend": ("ASCEND_GLOBAL_LOG_LEVEL", {"VERSION": "2", "WARN": "2", "INFO": "1", "TRACE": "0"}),
    "none": ("TORCH_DISTRIBUTED_DEBUG", {"VERSION": "OFF", "WARN": "OFF", "INFO": "INFO", "TRACE": "DETAIL"}),
}
_INTERFACE = {"intel": "FI_TCP_IFACE", "ascend": "HCCL_SOCKET_IFNAME"}


def extended_resources(group: GroupLayout, interconnect: Interconnect) -> dict[str, str]:
    """Returns one worker's devices by resource name. Kubernetes requires equal requests and limits for devices."""
    devices: dict[str, str] = {}
    if group.resources.gpus:
        devices[resource_name(group.accelerator)] = str(group.resources.gpus)
    if interconnect.rdma is not None:
        devices[interconnect.rdma.resource_name] = str(interconnect.rdma.count)
    return devices


def interconnect_environment(group: GroupLayout, interconnect: Interconnect) -> dict[str, str]:
    """Returns the variables of the collective libraries.

    RCCL (AMD) reads NCCL's variables. gloo's are always set, because jobs on accelerators use gloo on the host.
    """
    kind = group.accelerator.kind if group.resources.gpus else "none"
    nccl = kind in ("nvidia", "amd", "custom")
    environment: dict[str, str] = {}
    if interconnect.debug is not None:
        name, levels = _DEBUG.get(kind, ("NCCL_DEBUG", {}))
        environment[name] = levels.get(interconnect.debug, interconnect.debug)
        if kind == "ascend":
            environment["ASCEND_SLOG_PRINT_TO_STDOUT"] = "1"
    if interconnect.interface is not None:
        environment["GLOO_SOCKET_IFNAME"] = interconnect.interface
        if kind != "none":
            environment[_INTERFACE.get(kind, "NCCL_SOCKET_IFNAME")] = interconnect.interface
    if interconnect.nvlink is not None and nccl:
        # NVLS 2 means "if the GPUs support it". With 1, other GPUs would fail.
        environment["NCCL_P2P_DISABLE"] = "0" if interconnect.nvlink else "1"
        environment["NCCL_NVLS_ENABLE"] = "2" if interconnect.nvlink else "0"
    return environment


STATE_DIRECTORY = "/run/trainmaster/state"
# A volume in memory, which outlives ranks and containers. Ranks store state here from which the next attempt resumes.
MEMORY_DIRECTORY = "/run/trainmaster/memory"
PODINFO_DIRECTORY = "/run/trainmaster/podinfo"
# The folder for temporary files of all programs (tempfile, torchrun's logs, sockets of data loaders).
TEMPORARY_DIRECTORY = "/tmp"
CODE_DIRECTORY = "/run/trainmaster/code"
TRAINING_DIRECTORY = "/etc/trainmaster"
TRAINING_FILE = f"{TRAINING_DIRECTORY}/training.yaml"
TERMINATION_LOG = "/dev/termination-log"


# Seconds to save a checkpoint of a large model. A job that saves nothing ends at once on SIGTERM.
GRACE_SECONDS = 60
# Seconds of the grace period that are reserved for the agent between the last rank's end and SIGKILL.
GRACE_RESERVE_SECONDS = 5
# Seconds to save a checkpoint if the kubelet can't reach the agent. If the agent hangs, no checkpoint is saved.
PROBE_GRACE_SECONDS = 30


def pod_grace_seconds(spec: JobSpec) -> int:
    """Returns the pods' terminationGracePeriodSeconds, which the job may set in its podTemplate."""
    asked = spec.pod_template.grace_seconds if spec.pod_template is not None else None
    return GRACE_SECONDS if asked is None else asked


def rank_grace_seconds(spec: JobSpec) -> int:
    """Returns the seconds from SIGTERM to SIGKILL for ranks at a planned stop, which exclude the agent's reserve."""
    return max(pod_grace_seconds(spec) - GRACE_RESERVE_SECONDS, 1)

"""The environment of a worker's container has MASTER_ADDR, MASTER_PORT, WORLD_SIZE, and what the agent reads.

MASTER_PORT here is only what a program without the agent's rendezvous would use: each attempt has a port of its own
(`wire.ports`), which the agent puts in its place.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from trainmaster_operator.api.signing import AGENTS_SECRET_KEY
from trainmaster_operator.api.v1alpha1 import JobSpec
from trainmaster_operator.rendering.accelerators import interconnect_environment
from trainmaster_operator.rendering.grace_periods import rank_grace_seconds
from trainmaster_operator.rendering.layout import (
    GroupLayout,
    JobIdentity,
    stable_hosts,
    worker_count,
    worker_layout,
    world_size,
)
from trainmaster_operator.rendering.paths import (
    CODE_DIRECTORY,
    MEMORY_DIRECTORY,
    PODINFO_DIRECTORY,
    STATE_DIRECTORY,
    TEMPORARY_DIRECTORY,
    TERMINATION_LOG,
    TRAINING_FILE,
)
from trainmaster_operator.rendering.settings import Settings
from trainmaster_operator.wire.assignment import DEFAULT_MASTER_PORT
from trainmaster_operator.wire.names import AGENT_PORT, POD_INDEX_LABEL, PUBLIC_KEYS_VARIABLE
from trainmaster_operator.wire.signing import canonical


@dataclass(frozen=True)
class EnvironmentVariable:
    """EnvironmentVariable has a value, or is read from a field of the pod, or from a Secret that may be missing."""

    name: str
    value: str | None = None
    field_path: str | None = None
    secret_name: str | None = None
    secret_key: str | None = None


def worker_environment(
    job: JobIdentity, spec: JobSpec, group: GroupLayout, settings: Settings
) -> tuple[EnvironmentVariable, ...]:
    """Returns the variables of docs/protocol.md, "Files and environment", in its order."""
    layout = worker_layout(job, spec)
    nodes = str(worker_count(layout))
    processes = str(group.processes)
    master = stable_hosts(job, spec)[0]
    index = f"metadata.labels['{POD_INDEX_LABEL}']"
    value = EnvironmentVariable
    variables = [
        value("MASTER_ADDR", master),
        value("MASTER_PORT", str(DEFAULT_MASTER_PORT)),
        value("NNODES", nodes),
        value("NPROC_PER_NODE", processes),
        value("WORLD_SIZE", str(world_size(layout))),
        value("NODE_RANK", field_path=index),
    ]
    if all(other.processes == 1 for other in layout):
        variables.append(value("RANK", field_path=index))
    variables += [
        value("PET_NNODES", nodes),
        value("PET_NPROC_PER_NODE", processes),
        value("PET_NODE_RANK", field_path=index),
        value("PET_MASTER_ADDR", master),
        value("PET_MASTER_PORT", str(DEFAULT_MASTER_PORT)),
        value("PET_RDZV_BACKEND", "static"),
        value("PET_MAX_RESTARTS", "0"),
        value("TRAINMASTER_JOB", job.name),
        value("TRAINMASTER_JOB_UID", job.uid),
        value("TRAINMASTER_NAMESPACE", job.namespace),
        value("TRAINMASTER_WORKER", field_path=index),
        value("TRAINMASTER_POD_NAME", field_path="metadata.name"),
        value("TRAINMASTER_POD_UID", field_path="metadata.uid"),
        value("TRAINMASTER_POD_IP", field_path="status.podIP"),
        value("TRAINMASTER_NODE_NAME", field_path="spec.nodeName"),
        value("TRAINMASTER_ASSIGNMENT_FILE", f"{PODINFO_DIRECTORY}/assignment"),
        value("TRAINMASTER_STATE_DIR", STATE_DIRECTORY),
        value("TRAINMASTER_MEMORY_DIR", MEMORY_DIRECTORY),
        value("TRAINMASTER_TERMINATION_LOG", TERMINATION_LOG),
        value("TRAINMASTER_AGENT_PORT", str(AGENT_PORT)),
        value("TRAINMASTER_LAUNCHER", spec.launcher),
        value("TRAINMASTER_BACKEND", spec.backend),
        value("TRAINMASTER_GRACE_SECONDS", str(rank_grace_seconds(spec))),
        value("TRAINMASTER_PROGRESS_TIMEOUT", _seconds(spec.failure_policy.hang.progress_seconds)),
        value("TRAINMASTER_FIRST_STEP_TIMEOUT", _seconds(spec.failure_policy.hang.first_step_seconds)),
    ]
    if spec.code is not None:
        claim = spec.code.claim
        folder = CODE_DIRECTORY if claim is None else f"{CODE_DIRECTORY}/{claim.path}"
        source = f"ConfigMap {spec.code.config_map}" if claim is None else f"claim {claim.claim_name}"
        variables.append(value("TRAINMASTER_CODE_DIR", folder))
        variables.append(value("TRAINMASTER_CODE_SOURCE", source))
    if spec.training is not None:
        # By value and not by text: an operator of another version may write the file otherwise.
        digest = hashlib.sha256(canonical(spec.training.value()).encode()).hexdigest()
        variables.append(value("TRAINMASTER_TRAINING", f"{digest} {TRAINING_FILE}"))
    if spec.setup is not None:
        variables.append(value("TRAINMASTER_SETUP", _literal(spec.setup)))
    if spec.warm_start.enabled and spec.launcher == "torchrun":
        variables.append(value("TRAINMASTER_WARM_START", "true"))
        if spec.warm_start.preload:
            variables.append(value("TRAINMASTER_PRELOAD", ",".join(spec.warm_start.preload)))
    if spec.progress is not None:
        if spec.progress.pattern is not None:
            variables.append(value("TRAINMASTER_PROGRESS_PATTERN", _literal(spec.progress.pattern)))
        if spec.progress.preset is not None:
            variables.append(value("TRAINMASTER_PROGRESS_PRESET", spec.progress.preset))
    if spec.checkpoint is not None:
        variables.append(value("TRAINMASTER_CHECKPOINT_DIR", _literal(spec.checkpoint.path)))
    if has_read_only_root(spec):
        # Torch Inductor's own choice asks for the user's name, which a user that no image knows hasn't.
        variables.append(value("HOME", TEMPORARY_DIRECTORY))
        variables.append(value("TORCHINDUCTOR_CACHE_DIR", f"{TEMPORARY_DIRECTORY}/torchinductor"))
    collectives = interconnect_environment(group.resources, group.accelerator, spec.interconnect)
    variables += [value(name, text) for name, text in collectives.items()]
    return (*variables, *_trust(job, settings))


def has_read_only_root(spec: JobSpec) -> bool:
    """Returns whether nothing of the image can be written to."""
    return spec.security_context is not None and spec.security_context.read_only_root_filesystem is True


def _trust(job: JobIdentity, settings: Settings) -> tuple[EnvironmentVariable, ...]:
    """Returns the keys whose assignments the agent accepts, and the secret that it derives the job's token from."""
    if settings.keys is None:
        return ()
    secret = settings.keys.agents_secret(job.namespace)
    return (
        EnvironmentVariable(PUBLIC_KEYS_VARIABLE, settings.keys.public_keys),
        EnvironmentVariable("TRAINMASTER_AGENTS_SECRET", secret_name=secret.name, secret_key=AGENTS_SECRET_KEY),
    )


def _seconds(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _literal(text: str) -> str:
    """Returns a value that the kubelet hands on as it is: it expands $(NAME) and turns $$ into $ in every variable
    (k8s.io/kubernetes/third_party/forked/golang/expansion), which would break a shell's own $$ and $(...)."""
    return text.replace("$", "$$")

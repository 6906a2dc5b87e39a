"""The manifest configures the agent by environment variables (docs/protocol.md, "Files and environment")."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from trainmaster_operator.agent import ed25519
from trainmaster_operator.agent.errors import UsageError
from trainmaster_operator.wire.log_rules import AUTO, PRESETS, check_pattern
from trainmaster_operator.wire.names import AGENT_PORT, AGENTS_SECRET_VARIABLE, PUBLIC_KEYS_VARIABLE
from trainmaster_operator.wire.values import decimal

LONGEST_SECONDS, LONGEST_FIRST_SECONDS = 600.0, 1_800.0
"""The limits of a step and of the first step if the spec sets none, and nothing shorter has been learnt."""


class AgentSettings(NamedTuple):
    """AgentSettings contains one worker's settings; times are in seconds."""

    worker: int
    """The worker's global index."""
    processes: int
    """The number of this worker's ranks (NPROC_PER_NODE)."""
    launcher: str
    """`torchrun` or `exec`."""
    warm_start: bool
    """Whether ranks are forked from a process that has already imported slow modules."""
    preload: tuple[str, ...]
    """Modules that the warm process imports in addition to the learned modules."""
    setup: str
    """A shell line that runs before the launcher and sets its environment; empty: none."""
    job: str
    job_uid: str
    namespace: str
    public_keys: tuple[bytes, ...]
    """The operator's public Ed25519 keys. An assignment must be signed with one of them."""
    agents_secret: str
    """The namespace's secret, which `main` removes from the ranks' environment. If it is empty, because the Secret is
    missing, the agents' port accepts no request."""
    node: str
    pod_uid: str
    pod_ip: str
    """The address on which the agents' port listens; empty: all addresses."""
    port: int
    """The agents' port. 0: there is none, and agents report only by exiting."""
    assignment_file: str
    state_dir: str
    termination_log: str
    hosts_file: str
    """A file like /etc/hosts, searched before DNS is asked; empty: none."""
    grace_seconds: float
    """The ranks' time between SIGTERM and SIGKILL when the pod is stopped."""
    progress_timeout: float
    """The limit of a step's duration; 0: no limit."""
    learns_progress: bool
    """Whether the job's own durations determine that limit (progress/usual.py), because the spec sets none."""
    first_step_timeout: float
    """The limit of the first step's duration; 0: no limit."""
    learns_first_step: bool
    """Whether the first attempt determines that limit for later ones."""
    progress_pattern: str
    """The pattern for the ranks' output; empty: use the preset."""
    progress_preset: str
    """The lines that count as progress: `auto`, `none`, or a framework's name."""
    startup_timeout: float
    """If worker 0's name can't be resolved for this long, the attempt fails as MasterUnreachable."""
    cgroup_root: str
    """Where the cgroup file system is mounted."""
    code_dir: str
    """Where the archive of the user's code is mounted; empty if the image contains the code."""
    code_source: str
    """A description of the volume at `code_dir`, for people."""


def read_settings(environ: Mapping[str, str]) -> AgentSettings:
    """Read the settings; raises UsageError with the variable, its value and what is allowed."""
    launcher = environ.get("TRAINMASTER_LAUNCHER") or "torchrun"
    if launcher not in ("torchrun", "exec"):
        raise UsageError(f"TRAINMASTER_LAUNCHER: {launcher!r} is no launcher; use torchrun or exec")
    if not environ.get("TRAINMASTER_WORKER"):
        raise UsageError("TRAINMASTER_WORKER is not set; it is this worker's global index, from the pod-index label")
    preset = environ.get("TRAINMASTER_PROGRESS_PRESET") or AUTO
    if preset not in PRESETS:
        known = f"{', '.join(PRESETS[:-1])} or {PRESETS[-1]}"
        raise UsageError(f"TRAINMASTER_PROGRESS_PRESET: {preset[:40]!r} is no preset; use {known}")
    pattern = environ.get("TRAINMASTER_PROGRESS_PATTERN", "")
    problem = check_pattern(pattern) if pattern else None
    if problem is not None:
        raise UsageError(f"TRAINMASTER_PROGRESS_PATTERN: {pattern[:60]!r} {problem}")
    first_step_timeout = _number(environ, "TRAINMASTER_FIRST_STEP_TIMEOUT", LONGEST_FIRST_SECONDS)
    return AgentSettings(
        worker=_whole(environ, "TRAINMASTER_WORKER", 0, 0),
        processes=_whole(environ, "NPROC_PER_NODE", 1, 1),
        launcher=launcher,
        warm_start=launcher == "torchrun" and environ.get("TRAINMASTER_WARM_START") == "true",
        preload=tuple(filter(None, environ.get("TRAINMASTER_PRELOAD", "").split(","))),
        setup=environ.get("TRAINMASTER_SETUP", "").strip(),
        job=environ.get("TRAINMASTER_JOB", ""),
        job_uid=environ.get("TRAINMASTER_JOB_UID", ""),
        namespace=environ.get("TRAINMASTER_NAMESPACE", ""),
        public_keys=_public_keys(environ),
        agents_secret=environ.get(AGENTS_SECRET_VARIABLE, ""),
        node=environ.get("TRAINMASTER_NODE_NAME", ""),
        pod_uid=environ.get("TRAINMASTER_POD_UID", ""),
        pod_ip=environ.get("TRAINMASTER_POD_IP", ""),
        port=_whole(environ, "TRAINMASTER_AGENT_PORT", AGENT_PORT, 0),
        assignment_file=environ.get("TRAINMASTER_ASSIGNMENT_FILE") or "/run/trainmaster/podinfo/assignment",
        state_dir=os.path.abspath(environ.get("TRAINMASTER_STATE_DIR") or "/run/trainmaster/state"),
        termination_log=environ.get("TRAINMASTER_TERMINATION_LOG") or "/dev/termination-log",
        hosts_file=environ.get("TRAINMASTER_HOSTS_FILE", ""),
        grace_seconds=_number(environ, "TRAINMASTER_GRACE_SECONDS", 25.0),
        progress_timeout=_number(environ, "TRAINMASTER_PROGRESS_TIMEOUT", LONGEST_SECONDS),
        learns_progress=not environ.get("TRAINMASTER_PROGRESS_TIMEOUT", "").strip(),
        first_step_timeout=first_step_timeout,
        learns_first_step=not environ.get("TRAINMASTER_FIRST_STEP_TIMEOUT", "").strip(),
        progress_pattern=pattern,
        progress_preset=preset,
        startup_timeout=first_step_timeout or LONGEST_FIRST_SECONDS,
        cgroup_root=environ.get("TRAINMASTER_CGROUP_ROOT") or "/sys/fs/cgroup",
        code_dir=environ.get("TRAINMASTER_CODE_DIR", ""),
        code_source=environ.get("TRAINMASTER_CODE_SOURCE", "the volume of the code"),
    )


def _public_keys(environ: Mapping[str, str]) -> tuple[bytes, ...]:
    name = PUBLIC_KEYS_VARIABLE
    texts = environ.get(name, "").split(",")
    if texts == [""]:
        raise UsageError(
            f"{name} is not set, so no assignment can be trusted; the operator sets it in the pods that it makes: "
            "delete this pod, if an older operator made it"
        )
    keys = []
    for text in texts:
        key = ed25519.decoded(text)
        if not ed25519.is_key(key):
            raise UsageError(f"{name}: {text[:60]!r} is not an Ed25519 public key in base64")
        keys.append(key)
    return tuple(keys)


def _whole(environ: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = environ.get(name, "").strip()
    if not text:
        return default
    value = decimal(text, 10**9)
    if value is None or value < least:
        raise UsageError(f"{name}: {text[:40]!r} is not a whole number of at least {least}")
    return value


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise UsageError(f"{name}: {text[:40]!r} is not a number of seconds of at least 0")
    return value

"""Prints the rows of `kubectl get pods` (kubernetes `pkg/printers/internalversion/printers.go`, `printPod`)."""

from __future__ import annotations

from typing import Any

from trainmaster_local.ages import age, human_duration, seconds_since_epoch
from trainmaster_local.apiserver.resources import Column
from trainmaster_local.apiserver.schema.official import description
from trainmaster_local.kinds.columns import AGE, NAME

Json = dict[str, Any]

_NONE = "<none>"

POD_COLUMNS = (
    NAME,
    Column("Ready", description="The aggregate readiness state of this pod for accepting traffic."),
    Column("Status", description="The aggregate status of the containers in this pod."),
    Column(
        "Restarts",
        description="The number of times the containers in this pod have been restarted and when the last container in "
        "this pod has restarted.",
    ),
    AGE,
    Column("IP", description=description("io.k8s.api.core.v1.PodStatus", "podIP"), priority=1),
    Column("Node", description=description("io.k8s.api.core.v1.PodSpec", "nodeName"), priority=1),
    Column("Nominated Node", description=description("io.k8s.api.core.v1.PodStatus", "nominatedNodeName"), priority=1),
    Column("Readiness Gates", description=description("io.k8s.api.core.v1.PodSpec", "readinessGates"), priority=1),
)


def pod_row(pod: Json, now: float) -> list[Any]:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    ready, total = _ready_containers(spec, status)
    addresses = status.get("podIPs") or []
    return [
        pod["metadata"]["name"],
        f"{ready}/{total}",
        pod_status(pod),
        _restarts(pod, now),
        age(pod["metadata"].get("creationTimestamp"), now),
        (addresses[0]["ip"] if addresses else status.get("podIP")) or _NONE,
        spec.get("nodeName") or _NONE,
        status.get("nominatedNodeName") or _NONE,
        _readiness_gates(spec, status),
    ]


def _sidecars(spec: Json) -> set[str]:
    return {c["name"] for c in spec.get("initContainers") or [] if c.get("restartPolicy") == "Always"}


def _ready_containers(spec: Json, status: Json) -> tuple[int, int]:
    sidecars = _sidecars(spec)
    counted = status.get("containerStatuses") or []
    ready = sum(1 for c in counted if c.get("ready") and "running" in (c.get("state") or {}))
    inits = [c for c in status.get("initContainerStatuses") or [] if c["name"] in sidecars]
    ready += sum(1 for c in inits if c.get("ready") and "running" in (c.get("state") or {}))
    return ready, len(spec.get("containers") or []) + len(sidecars)


def _condition(status: Json, kind: str) -> Json:
    return next((c for c in status.get("conditions") or [] if c.get("type") == kind), {})


def _ended(state: Json) -> str:
    """Returns the name of a container's end: its reason, else its signal or exit code."""
    if state.get("reason"):
        return str(state["reason"])
    return f"Signal:{state['signal']}" if state.get("signal") else f"ExitCode:{state.get('exitCode', 0)}"


def _initializing(spec: Json, status: Json) -> str | None:
    """Returns the Status while init containers run or after one failed; None when all are done."""
    sidecars, total = _sidecars(spec), len(spec.get("initContainers") or [])
    for index, container in enumerate(status.get("initContainerStatuses") or []):
        state = container.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting") or {}
        if ended is not None and ended.get("exitCode", 0) == 0:
            continue
        if container["name"] in sidecars and container.get("started"):
            continue
        if ended is not None:
            return f"Init:{_ended(ended)}"
        if waiting.get("reason") and waiting["reason"] != "PodInitializing":
            return f"Init:{waiting['reason']}"
        return f"Init:{index}/{total}"
    return None


def pod_status(pod: Json) -> str:
    """Returns the Status column: the phase, or a specific reason (`Init:0/1`, `CrashLoopBackOff`, `Terminating`)."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    reason = status.get("reason") or status.get("phase") or ""
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("reason") == "SchedulingGated":
        reason = "SchedulingGated"
    initializing = _initializing(spec, status)
    if initializing is not None:
        reason = initializing
    if initializing is None or _condition(status, "Initialized").get("status") == "True":
        running = False
        for container in reversed(status.get("containerStatuses") or []):
            state = container.get("state") or {}
            waiting, ended = state.get("waiting") or {}, state.get("terminated")
            if waiting.get("reason"):
                reason = waiting["reason"]
            elif ended is not None:
                reason = _ended(ended)
            elif container.get("ready") and "running" in state:
                running = True
        if reason == "Completed" and running:
            reason = "Running" if _condition(status, "Ready").get("status") == "True" else "NotReady"
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if status.get("phase") not in ("Succeeded", "Failed"):
            return "Terminating"
    return str(reason)


def _restarts(pod: Json, now: float) -> str:
    """Returns the number of restarts and the time since the last run's end: `3 (12s ago)`."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    sidecars = _sidecars(spec)
    inits = status.get("initContainerStatuses") or []
    if _initializing(spec, status) is None or _condition(status, "Initialized").get("status") == "True":
        counted = [c for c in inits if c["name"] in sidecars] + (status.get("containerStatuses") or [])
    else:
        counted = inits
    total = sum(c.get("restartCount", 0) for c in counted)
    ends = [(c.get("lastState") or {}).get("terminated", {}).get("finishedAt") for c in counted]
    last = max((seconds_since_epoch(end) for end in ends if end), default=0.0)
    return f"{total} ({human_duration(now - last)} ago)" if total and last else str(total)


def _readiness_gates(spec: Json, status: Json) -> str:
    gates = spec.get("readinessGates") or []
    if not gates:
        return _NONE
    passed = sum(1 for gate in gates if _condition(status, gate["conditionType"]).get("status") == "True")
    return f"{passed}/{len(gates)}"

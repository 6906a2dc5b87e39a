"""Builds a pod's status from the state of its containers, with the kubelet's messages.

Everything here is pure. The order of conditions, the reasons and the messages are those of
`pkg/kubelet/status/generate.go` and `pkg/kubelet/kubelet_pods.go` (`getPhase`, `convertStatusToAPIStatus`), checked by
local/tests/data/kubernetes-pods.jsonl.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainmaster_local.images import image_id, normalize

Object = Mapping[str, Any]
EPOCH = "1970-01-01T00:00:00Z"
LOST_MESSAGE = "The container could not be located when the pod was terminated"


def timestamp(seconds: float) -> str:
    """Returns seconds since the epoch as Kubernetes writes times."""
    return datetime.datetime.fromtimestamp(int(seconds), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Terminated:
    """The end of one run of a container. Times are seconds since the epoch; `started_at` is 0 if it never started."""

    exit_code: int
    reason: str
    finished_at: float
    started_at: float = 0.0
    message: str = ""
    container_id: str = ""

    def render(self) -> dict[str, Any]:
        state: dict[str, Any] = {"exitCode": self.exit_code, "reason": self.reason}
        if self.message:
            state["message"] = self.message
        state["startedAt"] = timestamp(self.started_at) if self.started_at else EPOCH
        state["finishedAt"] = timestamp(self.finished_at)
        if self.container_id:
            state["containerID"] = f"containerd://{self.container_id}"
        return state


@dataclass(frozen=True)
class Running:
    started_at: float
    container_id: str

    def render(self) -> dict[str, Any]:
        return {"startedAt": timestamp(self.started_at)}


@dataclass(frozen=True)
class Waiting:
    reason: str
    message: str = ""

    def render(self) -> dict[str, Any]:
        return {"reason": self.reason, **({"message": self.message} if self.message else {})}


State = Waiting | Running | Terminated


@dataclass
class ContainerView:
    """The kubelet's knowledge of one container. `container_id` identifies the container of the newest run."""

    spec: Object
    state: State
    init: bool = False
    last: Terminated | None = None
    restart_count: int = 0
    ready: bool = False
    started: bool = False
    container_id: str = ""

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def sidecar(self) -> bool:
        """Returns whether this is an init container that stays (`restartPolicy: Always`, KEP-753)."""
        return self.init and self.spec.get("restartPolicy") == "Always"

    @property
    def finished(self) -> Terminated | None:
        """Returns the end of the newest run, or None while the container runs."""
        if isinstance(self.state, Terminated):
            return self.state
        return self.last if isinstance(self.state, Waiting) else None

    @property
    def initialized(self) -> bool:
        if self.sidecar:
            return self.started
        return isinstance(self.state, Terminated) and self.state.exit_code == 0

    def render(self) -> dict[str, Any]:
        name = "waiting" if isinstance(self.state, Waiting) else "running" if isinstance(self.state, Running) else ""
        created = bool(self.container_id)
        image = str(self.spec.get("image", ""))
        status: dict[str, Any] = {
            "name": self.name,
            "state": {name or "terminated": self.state.render()},
            "lastState": {"terminated": self.last.render()} if self.last else {},
            "ready": self.ready,
            "restartCount": self.restart_count,
            "image": normalize(image) if created else image,
            "imageID": image_id(image) if created else "",
            "started": self.started,
        }
        if created:
            status["containerID"] = f"containerd://{self.container_id}"
            resources = self.spec.get("resources") or {}
            if isinstance(self.state, Running) and resources.get("requests"):
                status["allocatedResources"] = dict(resources["requests"])
            status["resources"] = {key: dict(value) for key, value in resources.items() if key != "claims"}
            status["user"] = {"linux": {"uid": 0, "gid": 0, "supplementalGroups": [0]}}
        return status


@dataclass
class PodView:
    """The kubelet knows this of one pod. `reason` and `message` are set if it is evicted or rejected."""

    containers: Sequence[ContainerView]
    host_ip: str
    started_at: float
    sandbox_ready: bool = False
    pod_ip: str = ""
    terminal: bool = False
    """No container of the pod runs or will run again, so the phase may show the pod's end."""
    reason: str = ""
    message: str = ""
    failed: bool = False
    gates: Mapping[str, str] = field(default_factory=dict)

    @property
    def init_containers(self) -> list[ContainerView]:
        return [container for container in self.containers if container.init]

    @property
    def app_containers(self) -> list[ContainerView]:
        return [container for container in self.containers if not container.init]

    def settle(self, now: float) -> None:
        """Sets the end of containers that never ran, as the kubelet does (`status_manager.go:TerminatePod`)."""
        for container in self.containers:
            if isinstance(container.state, Terminated):
                continue
            if isinstance(container.state, Waiting) and container.last is not None:
                container.state, container.last = container.last, None
            elif not (container.init and container.initialized):
                container.state = Terminated(137, "ContainerStatusUnknown", now, message=LOST_MESSAGE)
                container.ready = container.started = False


def restarts(spec: Object, container: ContainerView, exit_code: int) -> bool:
    """Returns whether a container with this exit code is started again."""
    if container.sidecar:
        return True
    policy = spec.get("restartPolicy", "Always")
    if container.init:
        return policy != "Never" and exit_code != 0
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def ended_for_good(spec: Object, container: ContainerView) -> bool:
    """Returns whether the container has ended and its restart policy doesn't start it again."""
    return isinstance(container.state, Terminated) and not restarts(spec, container, container.state.exit_code)


def has_ended(spec: Object, view: PodView) -> bool:
    """Returns whether the pod's work is done or has become impossible."""
    broken = any(ended_for_good(spec, init) and not init.initialized for init in view.init_containers)
    return broken or all(ended_for_good(spec, container) for container in view.app_containers)


def phase(spec: Object, view: PodView, ended: bool) -> str:
    """Returns the phase (`kubelet_pods.go:getPhase`). `ended` is true if the pod counts as over."""
    if view.failed:
        return "Failed"
    if ended:
        ends = [container.finished for container in view.app_containers]
        inits = [container.finished for container in view.init_containers if not container.sidecar]
        if any(end and end.exit_code for end in inits):
            return "Failed"
        return "Succeeded" if all(end and end.exit_code == 0 for end in ends) else "Failed"
    if any(not container.initialized for container in view.init_containers):
        return "Pending"
    if any(isinstance(c.state, Waiting) and c.last is None for c in view.app_containers):
        return "Pending"
    return "Running"


def conditions(
    spec: Object, view: PodView, phase_: str, previous: Sequence[Object], generation: int, now: float
) -> list[dict[str, Any]]:
    """Returns all conditions in the kubelet's order.

    Conditions of other owners follow at the end. A condition's time is kept while its status doesn't change.
    """
    apps = view.app_containers
    unready = [c.name for c in [*apps, *(i for i in view.init_containers if i.sidecar)] if not c.ready]
    incomplete = [c.name for c in view.init_containers if not c.initialized]
    known = {str(condition["type"]): condition for condition in previous}
    made: list[tuple[str, bool, str, str]] = [
        ("PodReadyToStartContainers", view.sandbox_ready and not view.terminal, "", "")
    ]
    if incomplete and phase_ != "Succeeded":
        message = f"containers with incomplete status: [{' '.join(incomplete)}]"
        made.append(("Initialized", False, "ContainersNotInitialized", message))
    else:
        made.append(("Initialized", True, "PodCompleted" if phase_ == "Succeeded" else "", ""))
    if phase_ in ("Succeeded", "Failed"):
        reason = "PodCompleted" if phase_ == "Succeeded" else "PodFailed"
        ready = containers_ready = (False, reason, "")
    elif unready:
        message = f"containers with unready status: [{' '.join(unready)}]"
        ready = containers_ready = (False, "ContainersNotReady", message)
    else:
        ready = containers_ready = (True, "", "")
    gates = [str(gate["conditionType"]) for gate in spec.get("readinessGates") or []]
    closed = [gate for gate in gates if (known.get(gate) or {}).get("status") != "True"]
    if ready[0] and closed:
        ready = (False, "ReadinessGatesNotReady", _gate_message(closed, known))
    made += [("Ready", *ready), ("ContainersReady", *containers_ready)]
    result = [
        _condition(name, status, reason, message, known.get(name), generation, now)
        for name, status, reason, message in made
    ]
    for name, condition in known.items():
        if name not in {entry[0] for entry in made}:
            kept = dict(condition)
            if name == "PodScheduled":
                kept = _condition(name, kept.get("status") == "True", "", "", condition, generation, now)
            result.append(kept)
    return result


def _gate_message(closed: Sequence[str], known: Mapping[str, Object]) -> str:
    words = [
        f'corresponding condition of pod readiness gate "{gate}" does not exist.'
        if gate not in known
        else f'the status of pod readiness gate "{gate}" is not "True", but {known[gate].get("status")}'
        for gate in closed
    ]
    return ", ".join(words)


def _condition(
    name: str, status: bool, reason: str, message: str, previous: Object | None, generation: int, now: float
) -> dict[str, Any]:
    word = "True" if status else "False"
    since = timestamp(now)
    if previous and previous.get("status") == word and previous.get("lastTransitionTime"):
        since = str(previous["lastTransitionTime"])
    condition: dict[str, Any] = {
        "type": name,
        "observedGeneration": generation,
        "status": word,
        "lastProbeTime": None,
        "lastTransitionTime": since,
    }
    if reason:
        condition["reason"] = reason
    if message:
        condition["message"] = message
    return condition


def pod_status(pod: Object, view: PodView, now: float) -> dict[str, Any]:
    """Returns the complete status that replaces `pod`'s. Times are seconds since the epoch."""
    spec, old = pod["spec"], pod.get("status") or {}
    generation = int(pod["metadata"].get("generation") or 1)
    # The conditions show at once that a pod is over; the phase shows it only when no container runs any more.
    outcome = phase(spec, view, view.terminal or has_ended(spec, view))
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "phase": phase(spec, view, view.terminal),
        "conditions": conditions(spec, view, outcome, old.get("conditions") or [], generation, now),
    }
    if view.message:
        status["message"] = view.message
    if view.reason:
        status["reason"] = view.reason
    status["hostIP"] = view.host_ip
    status["hostIPs"] = [{"ip": view.host_ip}]
    if view.pod_ip:
        status["podIP"] = view.pod_ip
        status["podIPs"] = [{"ip": view.pod_ip}]
    status["startTime"] = old.get("startTime") or timestamp(view.started_at)
    if view.init_containers:
        status["initContainerStatuses"] = [container.render() for container in view.init_containers]
    status["containerStatuses"] = [container.render() for container in view.app_containers]
    for kept in ("qosClass", "nominatedNodeName"):
        if old.get(kept):
            status[kept] = old[kept]
    status["resources"] = old.get("resources") or {}
    return status

"""Chooses a pod's node: kube-scheduler's filters with its messages, and one simple score.

The filters run in the default profile's order (`pkg/scheduler/framework/plugins`): unschedulable nodes, node name,
taints, node affinity, ports, resources, topology spread, pod affinity. The first filter that refuses a node gives the
reason. Among the nodes that fit, the node with the best score wins: `placement`'s preference, and few requested
resources (LeastAllocated). The name breaks ties. A pod with a higher priority evicts pods with a lower one if that
makes room (`defaultpreemption`).

Everything here is pure; `SchedulerController` in `controllers` does the binding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from trainmaster_local.quantities import parse_quantity
from trainmaster_local.scheduling import placement

Object = Mapping[str, Any]

NO_NODES = "no nodes available to schedule pods"
NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = "No preemption victims found for incoming pod"


def pod_requests(spec: Object) -> dict[str, Fraction]:
    """Returns a pod's requests: the sum of its containers, or its largest init container if that requests more."""
    total: dict[str, Fraction] = {}
    for container in spec.get("containers") or []:
        _add(total, _requests(container))
    sidecars: dict[str, Fraction] = {}
    for container in spec.get("initContainers") or []:
        requests = _requests(container)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, requests)
            _add(total, requests)
        else:
            for name, amount in requests.items():
                total[name] = max(total.get(name, Fraction(0)), amount + sidecars.get(name, Fraction(0)))
    _add(total, {name: parse_quantity(value) for name, value in (spec.get("overhead") or {}).items()})
    return total


def _requests(container: Object) -> dict[str, Fraction]:
    resources = container.get("resources") or {}
    merged = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: parse_quantity(value) for name, value in merged.items()}


def _add(total: dict[str, Fraction], more: Mapping[str, Fraction]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Fraction(0)) + amount


@dataclass
class NodeState:
    """A node's state includes its pods."""

    node: Object
    pods: dict[str, Object] = field(default_factory=dict)  # by uid
    requested: dict[str, Fraction] = field(default_factory=dict)
    # These pods keep others away.
    shunning: dict[str, Object] = field(default_factory=dict)
    _allocatable: dict[str, Fraction] = field(default_factory=dict)
    _read_from: Object | None = None

    @property
    def name(self) -> str:
        return str(self.node["metadata"]["name"])

    @property
    def allocatable(self) -> dict[str, Fraction]:
        """Returns the node's allocatable resources; they are read again after a change of the node."""
        if self._read_from is not self.node:
            values = (self.node.get("status") or {}).get("allocatable") or {}
            self._allocatable = {name: parse_quantity(value) for name, value in values.items()}
            self._read_from = self.node
        return self._allocatable

    def add(self, pod: Object) -> None:
        if pod["metadata"]["uid"] not in self.pods:
            _add(self.requested, pod_requests(pod["spec"]))
        self.pods[pod["metadata"]["uid"]] = pod
        if placement.is_shunning(pod):
            self.shunning[pod["metadata"]["uid"]] = pod

    def remove(self, uid: str) -> None:
        self.shunning.pop(uid, None)
        pod = self.pods.pop(uid, None)
        if pod is not None:
            _add(self.requested, {name: -amount for name, amount in pod_requests(pod["spec"]).items()})


@dataclass(frozen=True)
class Refusal:
    """A refusal is the reason why a node doesn't fit. It is `resolvable` if evicting pods from the node could help."""

    reasons: tuple[str, ...]
    resolvable: bool = False


@dataclass(frozen=True)
class Decision:
    """A decision is a pod's node, or the message of its PodScheduled condition.

    Evicting `victims` makes room on `nominated`.
    """

    node: str = ""
    message: str = ""
    nominated: str = ""
    victims: tuple[Object, ...] = ()


def tolerates(tolerations: Iterable[Object], taint: Object) -> bool:
    """Evaluates `v1.Toleration.ToleratesTaint`."""
    for toleration in tolerations:
        if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
            continue
        if toleration.get("key") and toleration["key"] != taint.get("key"):
            continue
        operator = toleration.get("operator") or "Equal"
        if operator == "Exists" or (
            operator == "Equal" and (toleration.get("value") or "") == (taint.get("value") or "")
        ):
            return True
    return False


def matches_expression(labels: Mapping[str, str], expression: Object) -> bool:
    """Evaluates a requirement of a node selector."""
    key, operator, values = expression["key"], expression["operator"], expression.get("values") or []
    value = labels.get(key)
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    if operator in ("Gt", "Lt"):
        if value is None or not value.lstrip("-").isdigit():
            return False
        return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])
    return False


def matches_affinity(spec: Object, node: Object) -> bool:
    """Evaluates nodeSelector and the required node affinity."""
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    return any(matches_term(term, node) for term in required.get("nodeSelectorTerms") or [])


def matches_term(term: Object, node: Object) -> bool:
    """Evaluates a term of a node selector; an empty one matches nothing."""
    labels = node["metadata"].get("labels") or {}
    fields = {"metadata.name": node["metadata"]["name"]}
    return (
        bool(term.get("matchExpressions") or term.get("matchFields"))
        and all(matches_expression(labels, expression) for expression in term.get("matchExpressions") or [])
        and all(matches_expression(fields, expression) for expression in term.get("matchFields") or [])
    )


def refuse(pod: Object, state: NodeState) -> Refusal | None:
    """Returns why the node can't take the pod, or None."""
    spec, node = pod["spec"], state.node
    tolerations = spec.get("tolerations") or []
    taints = (node.get("spec") or {}).get("taints") or []
    unschedulable = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    if (node.get("spec") or {}).get("unschedulable") and not tolerates(tolerations, unschedulable):
        return Refusal(("node(s) were unschedulable",))
    for taint in taints:
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not tolerates(tolerations, taint):
            return Refusal(("node(s) had untolerated taint(s)",))
    if not matches_affinity(spec, node):
        return Refusal(("node(s) didn't match Pod's node affinity/selector",))
    ports = _ports(spec)
    if ports and ports & {port for other in state.pods.values() for port in _ports(other["spec"])}:
        return Refusal(("node(s) didn't have free ports for the requested pod ports",), resolvable=True)
    return _fits(spec, state)


def _ports(spec: Object) -> set[tuple[str, int]]:
    return {
        (str(port.get("protocol") or "TCP"), int(port["hostPort"]))
        for container in spec.get("containers") or []
        for port in container.get("ports") or []
        if port.get("hostPort")
    }


def _fits(spec: Object, state: NodeState) -> Refusal | None:
    allocatable = state.allocatable
    reasons: list[str] = []
    resolvable = True
    if len(state.pods) + 1 > allocatable.get("pods", Fraction(110)):
        reasons.append("Too many pods")
    for name, amount in sorted(pod_requests(spec).items()):
        room = allocatable.get(name, Fraction(0))
        if amount and amount > room - state.requested.get(name, Fraction(0)):
            reasons.append(f"Insufficient {name}")
            # The pod needs more than the whole node has, so no eviction helps.
            resolvable = resolvable and amount <= room
    return Refusal(tuple(reasons), resolvable) if reasons else None


def schedule(pod: Object, nodes: Sequence[NodeState], unbound_claims: str = "") -> Decision:
    """Chooses a node. `unbound_claims`: why the pod's claims can't be used, or None."""
    if not nodes:
        return Decision(message=NO_NODES)
    spreads = bool(pod["spec"].get("topologySpreadConstraints"))
    eligible = [state for state in nodes if spreads and matches_affinity(pod["spec"], state.node)]
    rules = placement.Rules(pod, nodes, eligible)
    refusals = {
        state.name: Refusal((unbound_claims,)) if unbound_claims else refuse(pod, state) or _kept_off(rules, state)
        for state in nodes
    }
    fitting = [state for state in nodes if refusals[state.name] is None]
    if fitting:
        return Decision(node=_preferred(pod, fitting, nodes, eligible).name)
    nominated, victims = _preempt(pod, [state for state in nodes if _resolvable(refusals[state.name])])
    return Decision(
        message=message(len(nodes), [r for r in refusals.values() if r]), nominated=nominated, victims=victims
    )


def _kept_off(rules: placement.Rules, state: NodeState) -> Refusal | None:
    reason = rules.refusal(state)
    return None if reason is None else Refusal((reason,))


def _preferred(
    pod: Object, fitting: Sequence[NodeState], nodes: Sequence[NodeState], eligible: Sequence[NodeState]
) -> NodeState:
    requests = pod_requests(pod["spec"])
    wanted = placement.scores(pod, fitting, nodes, eligible, matches_term)
    free = [100 * (1 - _load(state, requests)) for state in fitting]
    ranked = sorted(
        zip(wanted, free, fitting, strict=True),
        key=lambda item: (-(Fraction(item[0]) + item[1]), len(item[2].pods), item[2].name),
    )
    return ranked[0][2]


def _resolvable(refusal: Refusal | None) -> bool:
    return bool(refusal and refusal.resolvable)


def _load(state: NodeState, requests: Mapping[str, Fraction]) -> Fraction:
    shares = []
    for name in ("cpu", "memory", *sorted(set(requests) - {"cpu", "memory"})):
        room = state.allocatable.get(name, Fraction(0))
        if room:
            shares.append((state.requested.get(name, Fraction(0)) + requests.get(name, Fraction(0))) / room)
    return sum(shares, Fraction(0)) / len(shares) if shares else Fraction(0)


def message(nodes: int, refusals: Sequence[Refusal]) -> str:
    """Returns FitError's message, with the result of preemption (`framework/types.go`)."""
    counts = Counter(reason for refusal in refusals for reason in refusal.reasons)
    reasons = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))
    helpful = Counter(NO_VICTIMS if refusal.resolvable else NOT_HELPFUL for refusal in refusals)
    preemption = ", ".join(sorted(f"{count} {reason}" for reason, count in helpful.items()))
    head = f"0/{nodes} nodes are available: "
    return f"{head}{reasons}. no new claims to deallocate, preemption: {head}{preemption}."


def priority(pod: Object) -> int:
    return int(pod["spec"].get("priority") or 0)


def _preempt(pod: Object, nodes: Sequence[NodeState]) -> tuple[str, tuple[Object, ...]]:
    """Returns the node on which the fewest evictions make room, and the pods to evict."""
    if pod["spec"].get("preemptionPolicy") == "Never":
        return "", ()
    best: tuple[tuple[int, int, str], str, tuple[Object, ...]] | None = None
    for state in nodes:
        lower = sorted((p for p in state.pods.values() if priority(p) < priority(pod)), key=priority)
        trial = NodeState(state.node, dict(state.pods), dict(state.requested))
        for victim in lower:
            trial.remove(victim["metadata"]["uid"])
        if not lower or refuse(pod, trial) is not None:
            continue
        victims: list[Object] = []
        for candidate in sorted(lower, key=priority, reverse=True):
            # As many pods as fit are spared, the most important first.
            trial.add(candidate)
            if refuse(pod, trial) is not None:
                trial.remove(candidate["metadata"]["uid"])
                victims.append(candidate)
        highest = max((priority(victim) for victim in victims), default=0)
        rank = ((highest, len(victims), state.name), state.name, tuple(victims))
        if best is None or rank[0] < best[0]:
            best = rank
    return (best[1], best[2]) if best else ("", ())

"""Scores nodes for a pod: affinity to nodes and to other pods, and spreading over domains, as kube-scheduler does.

Required terms refuse a node with kube-scheduler's messages
(`pkg/scheduler/framework/plugins/{interpodaffinity,podtopologyspread}`); preferred ones score it. Scores are weighted
as in the default profile: 2 for each of the three, 1 for free room, each normalised to 0 to 100 over the nodes that
fit. Namespaces are the pod's own; a namespaceSelector isn't supported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

Object = Mapping[str, Any]

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

NO_AFFINITY = "node(s) didn't match pod affinity rules"
NO_ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
OTHERS_ANTI_AFFINITY = "node(s) didn't satisfy existing pods anti-affinity rules"
SKEWED = "node(s) didn't match pod topology spread constraints"
UNLABELLED = "node(s) didn't match pod topology spread constraints (missing required label)"


class Place(Protocol):
    """A place is a node, the pods on it, and those of these pods for which `is_shunning` is true."""

    @property
    def node(self) -> Object: ...

    @property
    def pods(self) -> Mapping[str, Object]: ...

    @property
    def shunning(self) -> Mapping[str, Object]: ...


def matches_labels(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """Evaluates a LabelSelector: null selects nothing, an empty one everything."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_holds(labels, expression) for expression in selector.get("matchExpressions") or [])


def _holds(labels: Mapping[str, str], expression: Object) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case _:
            return value is None


class Rules:
    """These rules between a pod and other pods and domains are counted once over all nodes."""

    def __init__(self, pod: Object, places: Sequence[Place], eligible: Sequence[Place]) -> None:
        """Counts the rules. `eligible` are the places that the pod's selectors admit; only they count for spreading."""
        spec = pod["spec"]
        affinity = spec.get("affinity") or {}
        self._spread = [
            (constraint, _spread(pod, constraint, eligible))
            for constraint in spec.get("topologySpreadConstraints") or []
            if constraint.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"
        ]
        self._near = [
            (term, _domains(pod, term, places)) for term in (affinity.get("podAffinity") or {}).get(REQUIRED) or []
        ]
        self._apart = [
            (term, _domains(pod, term, places)) for term in (affinity.get("podAntiAffinity") or {}).get(REQUIRED) or []
        ]
        self._shunned = _shunned(pod, places)
        self._pod = pod

    def refusal(self, place: Place) -> str | None:
        """Returns why the rules keep the pod off a node, or None."""
        labels = node_labels(place)
        for constraint, counts in self._spread:
            domain = labels.get(constraint["topologyKey"])
            if domain is None:
                return UNLABELLED
            own = 1 if matches_labels(constraint.get("labelSelector"), pod_labels(self._pod)) else 0
            if counts[domain] + own - min(counts.values(), default=0) > constraint.get("maxSkew", 1):
                return SKEWED
        for term, domains in self._near:
            # The first pod of a group that must be together may use any node with the label.
            alone = not domains and _selects(term, self._pod, self._pod)
            domain = labels.get(term["topologyKey"])
            if domain not in domains and not (alone and domain is not None):
                return NO_AFFINITY
        if any(labels.get(term["topologyKey"]) in domains for term, domains in self._apart):
            return NO_ANTI_AFFINITY
        return OTHERS_ANTI_AFFINITY if any(labels.get(key) == domain for key, domain in self._shunned) else None


def scores(
    pod: Object,
    fitting: Sequence[Place],
    places: Sequence[Place],
    eligible: Sequence[Place],
    matches_node: Callable[[Object, Object], bool],
) -> list[float]:
    """Returns the preference for each node that fits, from 0 to 600. `matches_node` takes a term and a node."""
    near = _near_nodes(pod, fitting, matches_node)
    others = _near_pods(pod, fitting, places)
    spread = _even(pod, fitting, eligible)
    return [2 * sum(each) for each in zip(near, others, spread, strict=True)]


def _near_nodes(pod: Object, fitting: Sequence[Place], matches_node: Callable[[Object, Object], bool]) -> list[float]:
    terms = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(PREFERRED) or []
    raw = [sum(term["weight"] for term in terms if matches_node(term["preference"], place.node)) for place in fitting]
    most = max(raw, default=0)
    return [100 * value / most if most else 0.0 for value in raw]


def _near_pods(pod: Object, fitting: Sequence[Place], places: Sequence[Place]) -> list[float]:
    affinity = pod["spec"].get("affinity") or {}
    raw = [0.0] * len(fitting)
    for kind, sign in (("podAffinity", 1), ("podAntiAffinity", -1)):
        for weighted in (affinity.get(kind) or {}).get(PREFERRED) or []:
            term = weighted["podAffinityTerm"]
            domains = _domains(pod, term, places)
            for position, place in enumerate(fitting):
                raw[position] += sign * weighted["weight"] * domains[node_labels(place).get(term["topologyKey"])]
    return _from_0_to_100(raw)


def _even(pod: Object, fitting: Sequence[Place], places: Sequence[Place]) -> list[float]:
    constraints = [
        constraint
        for constraint in pod["spec"].get("topologySpreadConstraints") or []
        if constraint.get("whenUnsatisfiable") == "ScheduleAnyway"
    ]
    if not constraints:
        return [0.0] * len(fitting)
    raw = [0.0] * len(fitting)
    for constraint in constraints:
        counts = _spread(pod, constraint, places)
        for position, place in enumerate(fitting):
            domain = node_labels(place).get(constraint["topologyKey"])
            # On a node without the label a pod isn't counted, so such a node is last.
            raw[position] -= counts[domain] if domain is not None else max(counts.values(), default=0) + 1
    return _from_0_to_100(raw)


def _from_0_to_100(raw: list[float]) -> list[float]:
    least, most = min(raw, default=0.0), max(raw, default=0.0)
    return [100 * (value - least) / (most - least) if most > least else 0.0 for value in raw]


def _domains(pod: Object, term: Object, places: Iterable[Place]) -> Counter[str | None]:
    """Returns how many pods that a term selects are in each domain."""
    found: Counter[str | None] = Counter()
    for place in places:
        domain = node_labels(place).get(term["topologyKey"])
        if domain is not None:
            count = sum(_selects(term, pod, other) for other in place.pods.values())
            if count:
                found[domain] += count
    return found


def _spread(pod: Object, constraint: Object, places: Iterable[Place]) -> Counter[str | None]:
    """Returns how many pods of the constraint are in each domain, including empty ones."""
    found: Counter[str | None] = Counter()
    namespace = pod["metadata"].get("namespace")
    for place in places:
        domain = node_labels(place).get(constraint["topologyKey"])
        if domain is not None:
            found[domain] += sum(
                other["metadata"].get("namespace") == namespace
                and not other["metadata"].get("deletionTimestamp")
                and matches_labels(constraint.get("labelSelector"), pod_labels(other))
                for other in place.pods.values()
            )
    return found


def _shunned(pod: Object, places: Sequence[Place]) -> set[tuple[str, str]]:
    """Returns the domains, by key and value, with a pod whose rules exclude this one."""
    found = set()
    for place in places:
        for other in place.shunning.values():
            for term in other["spec"]["affinity"]["podAntiAffinity"][REQUIRED]:
                domain = node_labels(place).get(term["topologyKey"])
                if domain is not None and _selects(term, other, pod):
                    found.add((term["topologyKey"], domain))
    return found


def is_shunning(pod: Object) -> bool:
    """Returns whether a pod has rules about other pods nearby."""
    return bool(((pod["spec"].get("affinity") or {}).get("podAntiAffinity") or {}).get(REQUIRED))


def _selects(term: Object, owner: Object, other: Object) -> bool:
    """Returns whether one pod's term applies to another pod."""
    namespaces = term.get("namespaces") or [owner["metadata"].get("namespace")]
    return other["metadata"].get("namespace") in namespaces and matches_labels(
        term.get("labelSelector"), pod_labels(other)
    )


def node_labels(place: Place) -> Mapping[str, str]:
    """Returns the labels of a node."""
    labels: Mapping[str, str] = place.node["metadata"].get("labels") or {}
    return labels


def pod_labels(pod: Object) -> Mapping[str, str]:
    """Returns the labels of a pod."""
    labels: Mapping[str, str] = pod["metadata"].get("labels") or {}
    return labels

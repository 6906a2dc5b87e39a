"""Pods without a node: what the scheduler says is decoded, and compared with what the nodes have free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal

from trainmaster.client.diagnosis.claims import claim_finding, claims_of
from trainmaster.client.diagnosis.finding import Finding, Step
from trainmaster.client.diagnosis.objects import Object, condition, items, joined, name_of, plural, text
from trainmaster.client.diagnosis.room import (
    Room,
    is_counted,
    is_ready,
    requests_of,
    resource_noun,
    rooms,
    shown,
    too_little,
)
from trainmaster.client.diagnosis.situation import Situation
from trainmaster.client.diagnosis.words import Exclusion, SchedulerWords, read_words
from trainmaster_operator.wire.values import mapping

# Where a person asks for the resource.
_FIELDS = {
    "cpu": "spec.resources.cpu",
    "memory": "spec.resources.memory",
    "ephemeral-storage": "podTemplate's ephemeral-storage",
}
# Nodes that are no place for work have this taint in every cluster; it isn't the news.
_CONTROL_PLANE = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
_MEANINGS = {
    "selector": "without the labels that the pod's nodeSelector or affinity asks for",
    "cordoned": "cordoned (kubectl cordon), so nothing new goes there",
    "not ready": "not ready",
    "volume zone": "where the claim's volume can't be used",
    "volume limit": "with as many volumes as can be attached",
    "port": "where the port that the pod wants of its host is taken",
    "spread": "that would break the pod's topologySpreadConstraints",
    "pod affinity": "ruled out by the affinity of pods",
    "device": "that can't give all devices that the pod claims",
}


def scheduling_findings(situation: Situation) -> Iterator[Finding]:
    """Yields why the first pod without a node has none."""
    if not situation.is_starting:
        return
    pod, message = _unscheduled(situation)
    words = read_words(message)
    if words is None:
        if message and situation.shown_reason == "Unschedulable":
            evidence = (f"the scheduler: {message}",)
            yield Finding("Unschedulable", f"its pods find no node: {message.rstrip('.')}", evidence)
        return
    finding = _Reading(situation, pod, message, words).finding()
    yield finding


def _unscheduled(situation: Situation) -> tuple[Object, str]:
    """Returns a pod that the scheduler has refused, with its words; or what the operator kept of them."""
    for pod in situation.pods:
        scheduled = condition(pod, "PodScheduled")
        if scheduled.get("status") == "False" and not text(pod, "spec", "nodeName"):
            message = text(scheduled, "message")
            if read_words(message) is not None or text(scheduled, "reason") == "Unschedulable":
                return pod, message
    if situation.shown_reason == "Unschedulable":
        return {}, situation.shown_message
    return {}, ""


class _Reading:
    """_Reading has the pod, the scheduler's words about it, and the nodes where they could be read."""

    def __init__(self, situation: Situation, pod: Object, message: str, words: SchedulerWords) -> None:
        self.situation, self.pod, self.message, self.words = situation, pod, message, words
        self.asked = requests_of(pod) if pod else _asked(situation)
        self.nodes = situation.nodes

    def finding(self) -> Finding:
        """Returns the constraint that a person would change first.

        What rules the pod out everywhere comes first. Too little room comes before taints and selectors, because a
        cluster has nodes that aren't meant for the job; unless all nodes that are large enough are ruled out.
        """
        claim = claim_finding(self.situation, self.words)
        if claim is not None:
            return self._with_words(claim)
        short = self.words.of("resource")
        zone = self._largest("volume zone")
        if zone is not None and _count(zone) >= max((_count(one) for one in short), default=0):
            return self._volume_zone()
        if short:
            ruled_out = self._that_rule_out_large_nodes(short)
            return ruled_out if ruled_out is not None else self._no_room(short)
        for kind in ("device", "port", "spread", "pod affinity", "volume limit"):
            if self.words.of(kind):
                return self._constraint(kind)
        kinds = ("taint", "selector", "cordoned", "not ready")
        news = [one for one in self.words.of(*kinds) if not one.about.startswith(_CONTROL_PLANE)]
        if news:
            return self._excluded(max(news, key=_count).kind)
        return self._with_words(Finding("Unschedulable", f"no node takes pod {self._name}: {self.message}"))

    @property
    def _name(self) -> str:
        return name_of(self.pod) or f"{self.situation.name}-0"

    def _largest(self, kind: str) -> Exclusion | None:
        return max(self.words.of(kind), key=_count, default=None)

    def _with_words(self, finding: Finding) -> Finding:
        lines = [f"the scheduler about pod {self._name}: {self.message}"]
        lines += [f"{plural(one.nodes, 'node')} {_meaning(one)}" for one in self.words.exclusions if one.nodes]
        steps = (*finding.steps, Step("what the scheduler says of each pod", _events(self.situation, self._name)))
        return Finding(finding.cause, finding.clause, (*finding.evidence, *lines), steps, finding.is_certain)

    def _that_rule_out_large_nodes(self, short: tuple[Exclusion, ...]) -> Finding | None:
        """Returns the finding for the case that every node that could hold the pod, were it empty, is ruled out."""
        if not self.nodes or not self.pod:
            return None
        names = {one.about for one in short}
        large = [node for node in self.nodes if all(self._could_hold(node, name) for name in names)]
        if not large:
            return None
        tainted = [node for node in large if self._taints_of(node)]
        cordoned = [node for node in large if mapping(node.get("spec")).get("unschedulable") is True]
        unlabelled = [node for node in large if self._missing_labels(node)]
        for kind, ruled_out in (("cordoned", cordoned), ("taint", tainted), ("selector", unlabelled)):
            if len(ruled_out) == len(large) and self.words.of(kind):
                return self._excluded(kind)
        return None

    def _could_hold(self, node: Object, resource: str) -> bool:
        return rooms([node], None, resource)[0].allocatable >= self.asked.get(resource, Decimal(0))

    def _no_room(self, short: tuple[Exclusion, ...]) -> Finding:
        """Returns the finding on the resource that most nodes lack, an accelerator before CPU and memory."""
        ordinary = ("cpu", "memory", "ephemeral-storage", "pods")
        resource = max(short, key=lambda one: (one.about not in ordinary, _count(one))).about
        asked, noun = self.asked.get(resource), resource_noun(resource)
        noun = noun.removesuffix("s") if asked == 1 else noun
        amount = f"{shown(asked, resource)} " if asked else "enough "
        are, much = ("are", "many") if is_counted(resource) else ("is", "much")
        asks = f"each worker asks for {amount}{noun}" if asked else f"a worker asks for more {noun} than {are} free"
        also = [too_little(one.about) for one in short if one.about != resource]
        more = f" (and {joined(also)})" if also else ""
        field = _FIELDS.get(
            resource, "spec.resources.gpus" if noun in ("GPU", "GPUs") else f"what the pod asks of {resource}"
        )
        wait = Step(f"ask for less in {field}, or wait until others' pods are gone")
        evidence = self._scale_up()
        found = [] if self.nodes is None else rooms(self._usable(), self.situation.pods_on_nodes, resource)
        if not found or asked is None:
            clause = f"{asks}, and no node has so {much} left{more}" if asked else f"{asks}{more}"
            look = Step("what each node has left", "kubectl describe nodes | grep -A 8 'Allocated resources'")
            return self._with_words(Finding("InsufficientResources", clause, evidence, (wait, look)))
        largest = max(found, key=lambda room: room.allocatable)
        nearest = found[0]
        if largest.allocatable <= 0:
            plugin = "its device plugin isn't running, or the cluster has none of them"
            clause = f"{asks}, and no node of this cluster offers {resource}; {plugin}"
            look = Step("what the nodes offer", "kubectl get nodes -o json | grep -F nvidia.com/gpu | sort | uniq -c")
            if resource != "nvidia.com/gpu":
                look = Step("what the nodes offer", "kubectl describe nodes | grep -A 10 Allocatable")
            return self._with_words(Finding("InsufficientResources", clause, evidence, (look,)))
        if asked > largest.allocatable:
            limit = shown(largest.allocatable, resource)
            clause = f"{asks}, and the largest node, {largest.node}, has {limit} in all{more}"
            wait = Step(f"ask for at most {limit} in {field} and use more workers; waiting can't help")
        elif nearest.free is None:
            clause = f"{asks}, and no node has so {much} left{more}"
        else:
            free, of = shown(max(nearest.free, Decimal(0)), resource), shown(nearest.allocatable, resource)
            clause = f"{asks}, and the nearest node, {nearest.node}, has {free} of {of} free{more}"
        lines = tuple(_room_line(room, resource) for room in found[:5])
        look = Step("what runs there", f"kubectl describe node {nearest.node} | grep -A 20 'Non-terminated Pods'")
        return self._with_words(Finding("InsufficientResources", clause, (*lines, *evidence), (wait, look)))

    def _usable(self) -> list[Object]:
        """Returns the nodes that only lack room."""
        nodes = [
            node
            for node in self.nodes or ()
            if not self._taints_of(node)
            and not self._missing_labels(node)
            and mapping(node.get("spec")).get("unschedulable") is not True
        ]
        return nodes or list(self.nodes or ())

    def _scale_up(self) -> tuple[str, ...]:
        """Returns what a cluster autoscaler says about the pod."""
        for event in self.situation.events_about("Pod"):
            if event.get("reason") in ("NotTriggerScaleUp", "TriggeredScaleUp"):
                return (f"the cluster autoscaler: {text(event, 'message')}",)
        return ()

    def _volume_zone(self) -> Finding:
        claims = claims_of(self.pod)
        what = f"the volume of claim {joined(claims)}" if claims else "a volume of the pod"
        clause = f"{what} can only be used in its own zone, or on its own node, and no node there has room"
        steps = (
            Step("make room in that zone, or use a volume that all zones reach (ReadWriteMany)"),
            Step("where the volume is", f"kubectl get pvc {' '.join(claims)} {self.situation.where} -o wide"),
        )
        return self._with_words(Finding("VolumeZone", clause, (), steps))

    def _constraint(self, kind: str) -> Finding:
        causes = {
            "device": ("DeviceClaim", "no node can give all devices that the pod's resource claims ask for"),
            "port": ("PortTaken", "a port that the pod wants of its host is taken on every node that fits"),
            "spread": ("TopologySpread", "its pods have to be spread evenly, and every node left would break that"),
            "pod affinity": ("PodAffinity", "the affinity or anti-affinity between pods leaves no node"),
            "volume limit": ("VolumeLimit", "every node that fits has as many volumes as can be attached"),
        }
        remedies = {
            "device": Step(
                "what is claimed and what is there", f"kubectl get resourceclaims,resourceslices {self.situation.where}"
            ),
            "port": Step("wait for the other job, or set spec.interconnect.hostNetwork: false"),
            "spread": Step("relax topologySpreadConstraints in spec.podTemplate (whenUnsatisfiable: ScheduleAnyway)"),
            "pod affinity": Step("relax affinity in spec.podTemplate, or spec.scheduling.topology"),
            "volume limit": Step("use fewer volumes, or nodes that can attach more"),
        }
        cause, clause = causes[kind]
        ports = sorted(
            {
                str(port["hostPort"])
                for each in items(self.pod, "spec", "containers")
                for port in items(each, "ports")
                if port.get("hostPort")
            }
        )
        if kind == "port" and ports:
            clause = clause.replace("a port", f"port {joined(ports)}")
        return self._with_words(Finding(cause, clause, (), (remedies[kind],)))

    def _excluded(self, kind: str) -> Finding:
        if kind == "taint":
            return self._tainted()
        if kind == "selector":
            return self._unmatched()
        nodes = [node for node in self.nodes or () if (kind == "cordoned") == _is_cordoned(node)]
        if kind == "not ready":
            nodes = [node for node in self.nodes or () if not is_ready(node)]
        names = f" ({joined([name_of(node) for node in nodes])})" if nodes else ""
        what = "cordoned" if kind == "cordoned" else "not ready"
        clause = f"the nodes that could take the pod are {what}{names}"
        step = Step("which nodes take pods", "kubectl get nodes")
        if kind == "cordoned":
            step = Step(
                "somebody works on them; when that is over",
                f"kubectl uncordon {name_of(nodes[0]) if nodes else 'NODE'}",
            )
        return self._with_words(Finding("NodesUnavailable", clause, (), (step,)))

    def _tainted(self) -> Finding:
        found = {taint: None for node in self.nodes or () for taint in self._taints_of(node)}
        named = [f"{one.about.rstrip(': ')}" for one in self.words.of("taint") if one.about]
        taints = [one for one in (*found, *named) if not one.startswith(_CONTROL_PLANE)] or list(found) or named
        what = f"the taint {joined(list(dict.fromkeys(taints)))}" if taints else "a taint"
        clause = f"the nodes that could take the pod have {what}, which the job doesn't tolerate"
        key = taints[0].partition("=")[0].partition(":")[0] if taints else "KEY"
        toleration = f"podTemplate: {{spec: {{tolerations: [{{key: {key}, operator: Exists}}]}}}}"
        steps = (
            Step(f"if the job may go there, add to its spec: {toleration}"),
            Step("all taints", "kubectl get nodes -o custom-columns=NAME:.metadata.name,TAINTS:.spec.taints"),
        )
        return self._with_words(Finding("UntoleratedTaint", clause, (), steps))

    def _unmatched(self) -> Finding:
        wanted = {key: value for key, value in mapping(_node_selector(self.pod)).items() if isinstance(value, str)}
        nodes = [mapping(mapping(node.get("metadata")).get("labels")) for node in self.nodes or ()]
        absent = [f"{key}={value}" for key, value in wanted.items() if not any(at.get(key) == value for at in nodes)]
        asked = absent if self.nodes is not None and absent else [f"{key}={value}" for key, value in wanted.items()]
        what = f"the label {joined(asked)}" if asked else "what the pod's node affinity asks for"
        clause = f"no node that could take the pod has {what}"
        evidence = []
        for key in wanted:
            there = sorted({str(labels[key]) for labels in nodes if key in labels})
            if self.nodes is not None:
                evidence.append(f"nodes have {key}: {joined(there, 6) or 'none at all'}")
        steps = (
            Step("correct spec.nodeSelector (or the affinity in spec.podTemplate)"),
            Step("which labels nodes have", "kubectl get nodes --show-labels"),
        )
        return self._with_words(Finding("NoMatchingNode", clause, tuple(evidence), steps))

    def _taints_of(self, node: Object) -> list[str]:
        """Returns the node's taints that keep the pod away; a cordon's own is none of them."""
        found = []
        for taint in items(node, "spec", "taints"):
            key, value = text(taint, "key"), text(taint, "value")
            hard = taint.get("effect") in ("NoSchedule", "NoExecute")
            if hard and not key.startswith("node.kubernetes.io/unschedulable") and not self._tolerates(taint):
                found.append(f"{key}={value}" if value else key)
        return found

    def _tolerates(self, taint: Object) -> bool:
        for toleration in items(self.pod, "spec", "tolerations"):
            key, effect = text(toleration, "key"), text(toleration, "effect")
            exists = text(toleration, "operator") == "Exists"
            same = exists or text(toleration, "value") == text(taint, "value")
            if effect in ("", taint.get("effect")) and ((not key and exists) or (key == taint.get("key") and same)):
                return True
        return False

    def _missing_labels(self, node: Object) -> bool:
        labels = mapping(mapping(node.get("metadata")).get("labels"))
        return any(labels.get(key) != value for key, value in mapping(_node_selector(self.pod)).items())


def _node_selector(pod: Object) -> object:
    return mapping(pod.get("spec")).get("nodeSelector")


def _asked(situation: Situation) -> Mapping[str, Decimal]:
    """Returns what a worker asks for by the job's own spec, for pods that are gone."""
    spec = mapping(situation.job.raw.get("spec"))
    resources, accelerator = mapping(spec.get("resources")), mapping(spec.get("accelerator"))
    asked = {}
    for field, name in (("gpus", ""), ("cpu", "cpu"), ("memory", "memory")):
        value = resources.get(field)
        request = mapping(value).get("request", value) if isinstance(value, Mapping) else value
        if request is not None:
            amounts = requests_of({"spec": {"containers": [{"resources": {"requests": {"it": request}}}]}})
            kinds = {"amd": "amd.com/gpu", "intel": "gpu.intel.com/i915", "ascend": "huawei.com/Ascend910"}
            kind = str(accelerator.get("resourceName") or kinds.get(str(accelerator.get("kind")), "nvidia.com/gpu"))
            asked[name or kind] = amounts["it"]
    return asked


def _is_cordoned(node: Object) -> bool:
    return mapping(node.get("spec")).get("unschedulable") is True


def _count(one: Exclusion) -> int:
    return one.nodes or 0


def _meaning(one: Exclusion) -> str:
    if one.kind == "resource":
        return f"with {too_little(one.about)} left"
    if one.kind == "taint":
        return (
            f"with the taint {one.about.rstrip(': ')}, which isn't tolerated"
            if one.about
            else "with a taint that isn't tolerated"
        )
    return _MEANINGS.get(one.kind, f"where it is so: {one.text}")


def _room_line(room: Room, resource: str) -> str:
    whole = shown(room.allocatable, resource)
    if room.free is None:
        return f"node {room.node} has {whole} {resource_noun(resource)} in all"
    return (
        f"node {room.node} has {shown(max(room.free, Decimal(0)), resource)} of {whole} {resource_noun(resource)} free"
    )


def _events(situation: Situation, pod: str) -> str:
    return f"kubectl events {situation.where} --for pod/{pod}"

"""Explains why pods have no node: compares the scheduler's message with the nodes' free resources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import takewhile
from operator import attrgetter

from trainmaster.client.diagnosis.capacity import (
    Exclusion,
    Room,
    is_counted,
    read_exclusions,
    requests_of,
    resource_noun,
    rooms,
    shown,
    too_little,
)
from trainmaster.client.diagnosis.gangs import gang_finding, gang_of, is_own, users_of
from trainmaster.client.diagnosis.situation import Finding, Situation, Step
from trainmaster.client.objects import Object, at, condition, has_condition, items, joined, name_of, text
from trainmaster.client.view import plural
from trainmaster_operator.api.pod_schema.resources import RESOURCE_NAMES
from trainmaster_operator.wire.values import mapping

# Fields in which users request a resource.
_FIELDS = {"cpu": "spec.resources.cpu", "memory": "spec.resources.memory"}
_FIELDS |= {"ephemeral-storage": "the pod's requests of ephemeral-storage"}
# The taints of control-plane nodes. Such nodes never run jobs, so they aren't mentioned.
_CONTROL_PLANE = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
# Each kind of constraint, with the cause, the clause, the remedy and a command.
_CONSTRAINTS = {
    "device": ("DeviceClaim", "no node can give all devices that the pod's resource claims ask for",
               "claimed and existing devices", "kubectl get resourceclaims,resourceslices {where}"),
    "port": ("PortTaken", "{port} that the pod wants of its host is taken on every node that fits",
             "wait for the other job, or set spec.interconnect.hostNetwork: false", ""),
    "spread": ("TopologySpread", "its pods have to be spread evenly, and every node left would break that",
               "relax spec.podTemplate.spec.topologySpreadConstraints (whenUnsatisfiable: ScheduleAnyway)", ""),
    "pod affinity": ("PodAffinity", "the affinity or anti-affinity between pods leaves no node",
                     "relax spec.podTemplate.spec.affinity, or spec.scheduling.topology", ""),
    "volume limit": ("VolumeLimit", "every node that fits has as many volumes as can be attached",
                     "use fewer volumes, or nodes that can attach more", ""),
}  # fmt: skip
_MEANINGS = {
    "selector": "without the labels that the pod's nodeSelector or affinity asks for",
    "cordoned": "cordoned (kubectl cordon)",
    "not ready": "not ready",
    "pressure": "short of disk, memory or process ids",
    "volume zone": "where the claim's volume can't be used",
    "volume limit": "with as many volumes as can be attached",
    "port": "without a free port for the pod",
    "spread": "that would break the pod's topologySpreadConstraints",
    "pod affinity": "ruled out by the affinity of pods",
    "device": "that can't give all devices that the pod claims",
}
_NODES = attrgetter("nodes")


# The operator's reasons for a job that waits for nodes, with or without pods.
_LACKING = ("Unschedulable", "SchedulingBackoff", "SchedulingRetried")


def scheduling_findings(situation: Situation) -> Iterator[Finding]:
    """Yields a finding on why the first unscheduled pod has no node."""
    if not situation.is_starting:
        return
    pod, message = _unscheduled(situation)
    exclusions = read_exclusions(message)
    if exclusions is not None:
        yield _preempted(situation, _Reading(situation, pod, message, exclusions).finding())
    elif message and situation.shown_reason in _LACKING:
        if found := whole_job_finding(situation):
            yield replace(found, evidence=(*found.evidence, f"the operator: {message}"))
            return
        clause = f"its pods find no node: {message.rstrip('.')}"
        look = Step("what each node has left", "kubectl describe nodes | grep -A 8 'Allocated resources'")
        yield Finding("Unschedulable", clause, (f"the scheduler: {message}",), (look,))


def _preempted(situation: Situation, found: Finding) -> Finding:
    """Returns the finding with how often pods of higher priority took the nodes of a job that now lacks nodes."""
    failures = takewhile(lambda failure: failure.reason == "Preempted", situation.job.status.failures)
    count = sum(failure.count or 1 for failure in failures)
    if not count:
        return found
    often = {1: "", 2: " twice"}.get(count, f" {count} times")
    clause = f"pods of higher priority have preempted it{often}, and now {found.clause}"
    return replace(found, clause=clause, steps=(Step("raise spec.scheduling.priorityClassName"), *found.steps))


def whole_job_finding(situation: Situation) -> Finding | None:
    """Returns why the nodes can't hold all workers at once. None if they can, or if that isn't known."""
    pod = next(iter(situation.pods), {})
    return _Reading(situation, pod, "", ()).whole_job()


def _unscheduled(situation: Situation) -> tuple[Object, str]:
    """Returns a pod that the scheduler refused and the scheduler's message, or only the message from the status."""
    for pod in situation.pods:
        scheduled = condition(pod, "PodScheduled")
        if scheduled.get("status") == "False" and not text(pod, "spec", "nodeName"):
            message = text(scheduled, "message")
            if read_exclusions(message) is not None or text(scheduled, "reason") == "Unschedulable":
                return pod, message
    if situation.shown_reason not in _LACKING:
        return {}, ""
    # A job that gave up its nodes has no pods. The scheduler's last message is in an event.
    for event in situation.events_about("Pod"):
        if event.get("reason") == "FailedScheduling":
            return {}, text(event, "message")
    return {}, situation.shown_message


class _Reading:
    """_Reading contains a pod, the scheduler's message about it, and the nodes if they could be read."""

    def __init__(self, situation: Situation, pod: Object, message: str, exclusions: Sequence[Exclusion]) -> None:
        self.situation, self.pod, self.message, self.exclusions = situation, pod, message, exclusions
        self.asked = requests_of(pod) if pod else _asked(situation)
        self.nodes = situation.nodes
        self.name = name_of(pod) or f"{situation.job.name}-0"
        # Without a pod, the job's own template shows most of its constraints.
        self.spec = mapping(at(pod or situation.job.raw.get("spec"), *(() if pod else ("podTemplate",)), "spec"))
        self.labels = mapping(self.spec.get("nodeSelector"))

    def finding(self) -> Finding:
        """Returns the constraint to change first, with the scheduler's message as evidence."""
        found = self._constraint()
        lines = [f"the scheduler about pod {self.name}: {self.message}"]
        lines += [f"{plural(one.nodes, 'node')} {_meaning(one)}" for one in self.exclusions if one.nodes]
        events = Step("its events", f"kubectl dtj events {self.situation.job.name} {self.situation.where}")
        if self.pod:
            events = Step("the scheduler's messages", self._kubectl(f"events --for pod/{self.name}"))
        return replace(found, evidence=(*found.evidence, *lines), steps=(*found.steps, events))

    def _constraint(self) -> Finding:
        """Returns the finding without the scheduler's message.

        Constraints that exclude every node come first. A cluster usually has nodes that aren't meant for the job, so a
        lack of room comes before taints and selectors, unless these exclude all nodes that are large enough.
        """
        if claim := self._claim():
            return claim
        lacking = self._of("resource")
        zone = max(self._of("volume zone"), key=_NODES, default=None)
        if zone is not None and zone.nodes >= max(map(_NODES, lacking), default=0):
            return self._volume_zone()
        if lacking:
            ruled_out = self._that_rules_out_large_nodes({one.about for one in lacking})
            return self._excluded(ruled_out) if ruled_out else self.whole_job() or self._no_room(lacking)
        for kind, (cause, clause, remedy, command) in _CONSTRAINTS.items():
            if self._of(kind):
                step = Step(remedy, command.format(where=self.situation.where))
                return Finding(cause, clause.format(port=self._ports()), (), (step,))
        kinds = ("taint", "selector", "cordoned", "not ready", "pressure")
        news = [one for one in self._of(*kinds) if not one.about.startswith(_CONTROL_PLANE)]
        if news:
            return self._excluded(max(news, key=_NODES).kind)
        return Finding("Unschedulable", f"no node takes pod {self.name}: {self.message}")

    def _of(self, *kinds: str) -> list[Exclusion]:
        return [one for one in self.exclusions if one.kind in kinds]

    def _kubectl(self, words: str) -> str:
        return f"kubectl {words} {self.situation.where}"

    def _claim(self) -> Finding | None:
        claims = self.situation.claims
        for missing in self._of("claim missing"):
            others = ", ".join(map(name_of, claims or ())) or "none"
            steps = (
                Step(f"create the claim {missing.about} in the job's namespace first, or correct its name in the job"),
                Step("the existing claims", self._kubectl("get pvc")),
            )
            clause = f"the PersistentVolumeClaim {missing.about} doesn't exist in the job's namespace"
            return Finding("ClaimMissing", clause, () if claims is None else (f"existing claims: {others}",), steps)
        if not self._of("claim unbound"):
            return None
        pending = [claim for claim in claims or () if text(claim, "status", "phase") == "Pending"]
        used = [name for pod in self.situation.pods for name in claims_of(pod)]
        claim = next((one for one in pending if name_of(one) in used), pending[0] if pending else {})
        name = name_of(claim) or next(iter(used), "")
        events = self.situation.events_about("PersistentVolumeClaim", name or None)
        message, storage_class = text(next(events, {}), "message"), text(claim, "spec", "storageClassName")
        why = f": {message}" if message else (f" (StorageClass {storage_class})" if storage_class else "")
        steps = (
            Step("the StorageClasses, and which is the default", "kubectl get storageclass"),
            Step("what the claim waits for", self._kubectl(f"describe pvc {name}".rstrip())),
        )
        which = f"the PersistentVolumeClaim {name}" if name else "a PersistentVolumeClaim of the pods"
        return Finding("ClaimUnbound", f"{which} has no volume yet{why}", (), steps)

    def _that_rules_out_large_nodes(self, resources: set[str]) -> str:
        """Returns the kind of constraint that excludes all nodes that are large enough, or an empty text."""
        large = [node for node in self.nodes or () if all(self._could_hold(node, name) for name in resources)]
        if not large or not self.pod:
            return ""
        excluded = {"cordoned": _is_cordoned, "taint": self._taints_of, "selector": self._lacks_labels}
        found = (kind for kind, rules_out in excluded.items() if all(map(rules_out, large)) and self._of(kind))
        return next(found, "")

    def _could_hold(self, node: Object, resource: str) -> bool:
        return rooms([node], None, resource)[0].allocatable >= self.asked.get(resource, Decimal(0))

    def whole_job(self) -> Finding | None:
        """Returns the finding on a job whose workers find nodes one by one, but not all at once."""
        gang = None if self.nodes is None else gang_of(self.situation, self.asked, self._usable())
        found = None if gang is None or gang.workers == 1 else gang_finding(self.situation, gang)
        return None if found is None else replace(found, evidence=(*found.evidence, *self._scale_up()))

    def _no_room(self, lacking: Sequence[Exclusion]) -> Finding:
        """Returns the finding on the resource that most nodes lack, preferring accelerators to CPU and memory."""
        ordinary = ("cpu", "memory", "ephemeral-storage", "pods")
        resource = max(lacking, key=lambda one: (one.about not in ordinary, one.nodes)).about
        asked = self.asked.get(resource)
        noun = resource_noun(resource, asked)
        are, much = ("are", "many") if is_counted(resource) else ("is", "much")
        asks = f"each worker asks for {shown(asked, resource)} {noun}" if asked else ""
        asks = asks or f"a worker asks for more {noun} than {are} free"
        also = [too_little(one.about) for one in lacking if one.about != resource]
        more = f" (and {joined(also)})" if also else ""
        usual = "spec.resources.gpus" if noun in ("GPU", "GPUs") else f"the pod's requests of {resource}"
        field = _FIELDS.get(resource, usual)
        wait = Step(f"ask for less in {field}, or wait until other pods have ended")
        evidence = self._scale_up()
        pods = self.situation.pods_on_nodes
        others = None if pods is None else [pod for pod in pods if not is_own(self.situation, pod)]
        found = [] if self.nodes is None else rooms(self._usable(), others, resource)
        if not found or asked is None:
            clause = f"{asks}, and no node has so {much} left{more}" if asked else f"{asks}{more}"
            look = Step("what each node has left", "kubectl describe nodes | grep -A 8 'Allocated resources'")
            return Finding("InsufficientResources", clause, evidence, (wait, look))
        largest, nearest = max(found, key=lambda room: room.allocatable), found[0]
        if largest.allocatable <= 0:
            plugin = "its device plugin isn't running, or the cluster has none of them"
            clause = f"{asks}, and no node of this cluster offers {resource}; {plugin}"
            look = Step("what the nodes offer", "kubectl get nodes -o json | grep -F nvidia.com/gpu | sort | uniq -c")
            if resource != "nvidia.com/gpu":
                look = Step("what the nodes offer", "kubectl describe nodes | grep -A 10 Allocatable")
            return Finding("InsufficientResources", clause, evidence, (look,))
        if asked > largest.allocatable:
            limit = shown(largest.allocatable, resource)
            clause = f"{asks}, and the largest node, {largest.node}, has {limit} in all{more}"
            wait = Step(f"ask for at most {limit} in {field} and use more workers; waiting can't help")
        elif nearest.free is None:
            clause = f"{asks}, and no node has so {much} left{more}"
        else:
            free, of = shown(max(nearest.free, Decimal(0)), resource), shown(nearest.allocatable, resource)
            clause = f"{asks}, and the nearest node, {nearest.node}, has {free} of {of} free{more}"
            if nearest.free >= asked and not also:
                clause = f"{asks}, and node {nearest.node} has {free} of {of} free now; the scheduler will try again"
        lines = tuple(_room_line(room, resource) for room in found[:5])
        gang = gang_of(self.situation, self.asked, self._usable())
        if gang is not None and resource in gang.asked and asked <= largest.allocatable:
            lines += tuple(f"in use by {user}" for user in users_of(self.situation, gang, resource)[:5])
        look = Step("its pods", f"kubectl describe node {nearest.node} | grep -A 20 'Non-terminated Pods'")
        return Finding("InsufficientResources", clause, (*lines, *evidence), (wait, look))

    def _usable(self) -> list[Object]:
        """Returns the nodes that the pod could use if they had room. If there are none, returns all nodes."""
        nodes = list(self.nodes or ())
        return [
            node
            for node in nodes
            if not (self._taints_of(node) or self._lacks_labels(node) or _is_cordoned(node))
            and condition(node, "Ready").get("status", "True") == "True"
        ] or nodes

    def _scale_up(self) -> tuple[str, ...]:
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
            Step("the volume's place", self._kubectl(f"get pvc {' '.join(claims)} -o wide")),
        )
        return Finding("VolumeZone", clause, (), steps)

    def _ports(self) -> str:
        containers = items(self.pod, "spec", "containers")
        found = {str(one["hostPort"]) for each in containers for one in items(each, "ports") if one.get("hostPort")}
        return f"port {joined(sorted(found))}" if found else "a port"

    def _excluded(self, kind: str) -> Finding:
        """Returns the finding on nodes that are excluded by a taint, labels, a cordon or their state."""
        if kind == "taint":
            return self._tainted()
        if kind == "selector":
            return self._unmatched()
        if kind == "pressure":
            return self._under_pressure(next(one.about for one in self._of("pressure")))
        is_cordon = kind == "cordoned"
        known = self.nodes or ()
        away = filter(_is_cordoned, known) if is_cordon else (one for one in known if not has_condition(one, "Ready"))
        nodes = list(map(name_of, away))
        names = f" ({joined(nodes)})" if nodes else ""
        step = Step("the nodes", "kubectl get nodes")
        if is_cordon:
            uncordon = f"kubectl uncordon {nodes[0] if nodes else 'NODE'}"
            step = Step("somebody works on them; once that is done", uncordon)
        return Finding("NodesUnavailable", f"the nodes that could take the pod are {kind}{names}", (), (step,))

    def _under_pressure(self, what: str) -> Finding:
        """Returns the finding on nodes that Kubernetes itself keeps free of pods."""
        names = [name_of(node) for node in self.nodes or () if any(what in taint for taint in self._taints_of(node))]
        which = f" ({joined(names)})" if names else ""
        clause = f"the nodes that could take the pod accept none now: {what}{which}"
        look = f"kubectl describe node {names[0]}" if names else "kubectl get nodes"
        free = Step("free what they lack (images, logs, other pods), or wait: the taint then goes by itself")
        return Finding("NodesUnavailable", clause, (), (free, Step("their state", look)))

    def _tainted(self) -> Finding:
        found = list(dict.fromkeys(taint for node in self.nodes or () for taint in self._taints_of(node)))
        named = [one.about.rstrip(": ") for one in self._of("taint") if one.about]
        taints = [one for one in (*found, *named) if not one.startswith(_CONTROL_PLANE)] or found or named
        if taints and all(one.startswith("node.kubernetes.io/") for one in taints):
            # Kubernetes itself sets these while a node is in trouble. No job should tolerate them.
            return self._under_pressure(taints[0].partition("/")[2])
        what = f"the taint {joined(list(dict.fromkeys(taints)))}" if taints else "a taint"
        clause = f"the nodes that could take the pod have {what}, which the job doesn't tolerate"
        key = taints[0].partition("=")[0].partition(":")[0] if taints else "KEY"
        toleration = f"spec.podTemplate.spec.tolerations: [{{key: {key}, operator: Exists}}]"
        steps = (
            Step(f"if the job may use these nodes, add {toleration}"),
            Step("all taints", "kubectl get nodes -o custom-columns=NAME:.metadata.name,TAINTS:.spec.taints"),
        )
        return Finding("UntoleratedTaint", clause, (), steps)

    def _unmatched(self) -> Finding:
        nodes = [mapping(at(node, "metadata", "labels")) for node in self.nodes or ()]
        wanted = [f"{key}={value}" for key, value in self.labels.items()]
        there = {f"{key}={value}" for labels in nodes for key, value in labels.items()}
        absent = [one for one in wanted if one not in there]
        asked = absent if self.nodes is not None and absent else wanted
        what = f"the label {joined(asked)}" if asked else "what the pod's node affinity asks for"
        groups = items(self.situation.job.raw, "spec", "workerGroups")
        field = "spec.workerGroups[].nodeSelector" if any(one.get("nodeSelector") for one in groups) else ""
        part = "nodeSelector" if self.labels else "affinity"
        field = field or f"spec.podTemplate.spec.{part}"
        evidence = []
        for key in self.labels if self.nodes is not None else ():
            values = sorted({str(labels[key]) for labels in nodes if key in labels})
            evidence.append(f"values of the label {key}: {joined(values, 6) or 'none'}")
        steps = (
            Step(f"correct {field}"),
            Step("the nodes' labels", "kubectl get nodes --show-labels"),
        )
        return Finding("NoMatchingNode", f"no node that could take the pod has {what}", tuple(evidence), steps)

    def _taints_of(self, node: Object) -> list[str]:
        """Returns the node's taints that exclude the pod, except for the taint of a cordon."""
        found = []
        for taint in items(node, "spec", "taints"):
            key, value = text(taint, "key"), text(taint, "value")
            hard = taint.get("effect") in ("NoSchedule", "NoExecute")
            if hard and not key.startswith("node.kubernetes.io/unschedulable") and not self._tolerates(taint):
                found.append(f"{key}={value}" if value else key)
        return found

    def _tolerates(self, taint: Object) -> bool:
        for toleration in items(self.spec, "tolerations"):
            key, effect = text(toleration, "key"), text(toleration, "effect")
            exists = text(toleration, "operator") == "Exists"
            same = exists or text(toleration, "value") == text(taint, "value")
            if effect in ("", taint.get("effect")) and ((not key and exists) or (key == taint.get("key") and same)):
                return True
        return False

    def _lacks_labels(self, node: Object) -> bool:
        labels = mapping(at(node, "metadata", "labels"))
        if any(labels.get(key) != value for key, value in self.labels.items()):
            return True
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        terms = items(self.spec, "affinity", "nodeAffinity", required, "nodeSelectorTerms")
        named = {"metadata.name": name_of(node)}
        return bool(terms) and not any(
            all(_matches(one, labels) for one in items(term, "matchExpressions"))
            and all(_matches(one, named) for one in items(term, "matchFields"))
            for term in terms
        )


def claims_of(pod: Object) -> list[str]:
    """Returns the names of the claims that a pod mounts."""
    names = (text(volume, "persistentVolumeClaim", "claimName") for volume in items(pod, "spec", "volumes"))
    return [name for name in names if name]


def _asked(situation: Situation) -> Mapping[str, Decimal]:
    """Returns a worker's requests according to the job's spec, for use when the pods are gone."""
    resources, accelerator = (at(situation.job.raw, "spec", name) for name in ("resources", "accelerator"))
    kind = RESOURCE_NAMES.get(text(accelerator, "kind"), RESOURCE_NAMES["nvidia"])
    fields = {"gpus": text(accelerator, "resourceName") or kind, "cpu": "cpu", "memory": "memory"}
    known = {name: at(resources, field, "request") or at(resources, field) for field, name in fields.items()}
    given = {name: value for name, value in known.items() if value is not None}
    return requests_of({"spec": {"containers": [{"resources": {"requests": given}}]}})


def _matches(expression: Object, labels: Mapping[str, object]) -> bool:
    """Returns whether labels fit a requirement of a node affinity. Comparisons of numbers count as fitting."""
    key, operator, values = text(expression, "key"), text(expression, "operator"), at(expression, "values") or ()
    return {
        "In": labels.get(key) in values,
        "NotIn": labels.get(key) not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }.get(operator, True)


def _is_cordoned(node: Object) -> bool:
    return at(node, "spec", "unschedulable") is True


def _meaning(one: Exclusion) -> str:
    if one.kind == "resource":
        return f"with {too_little(one.about)} left"
    if one.kind == "taint":
        taint = f"the taint {one.about.rstrip(': ')}" if one.about else "a taint"
        return f"with {taint}, which isn't tolerated"
    return _MEANINGS.get(one.kind, f"rejected it: {one.text}")


def _room_line(room: Room, resource: str) -> str:
    total = shown(room.allocatable, resource)
    noun = resource_noun(resource, total)
    if room.free is None:
        return f"node {room.node} has {total} {noun} in all"
    return f"node {room.node} has {shown(max(room.free, Decimal(0)), resource)} of {total} {noun} free"

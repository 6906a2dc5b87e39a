"""Containers that the kubelet can't make or that end before the ranks start, and pods without a sandbox."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainmaster.client.diagnosis.finding import Finding, Step
from trainmaster.client.diagnosis.objects import Object, containers, items, name_of, text
from trainmaster.client.diagnosis.situation import Situation
from trainmaster.client.diagnosis.starting import starting_findings
from trainmaster.client.diagnosis.waiting_pods import waiting_pods, waits
from trainmaster_operator.wire.values import mapping

_ABSENT = re.compile(r'(secret|configmap) "([^"]+)" not found', re.IGNORECASE)
_KEY = re.compile(r"couldn't find key (\S+) in (Secret|ConfigMap) [^/\s]+/(\S+)")
_PROGRAM = re.compile(r'exec: "([^"]+)": (.+?)(?:: unknown)?$', re.DOTALL)
_CREATE = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")


def container_findings(situation: Situation) -> Iterator[Finding]:
    """Yields what keeps the first container that doesn't run from running."""
    for pod, name, node in waiting_pods(situation):
        for event in situation.events_about("Pod", name):
            if event.get("reason") == "FailedCreatePodSandBox":
                yield _sandbox(situation, name, node, text(event, "message"))
                return
            if event.get("reason") in ("Scheduled", "Created"):
                break
        for container, status in containers(pod):
            finding = _container(situation, pod, container, status)
            if finding is not None:
                yield finding
                return
    if situation.failed_reason in ("CreateContainer", "InitFailed"):
        yield _created(situation, situation.name, situation.shown_message, "the operator")
    yield from starting_findings(situation)


def _container(situation: Situation, pod: Object, container: str, status: Object) -> Finding | None:
    name = name_of(pod)
    reason, message = waits(status)
    where = f"container {container} of pod {name}"
    if reason in _CREATE:
        return _created(situation, name, message or reason, f"{where}: {reason}")
    is_init = any(text(one, "name") == container for one in items(pod, "status", "initContainerStatuses"))
    for field in ("state", "lastState"):
        ended = mapping(mapping(status.get(field)).get("terminated"))
        code = ended.get("exitCode")
        if is_init and isinstance(code, int) and code != 0:
            said = text(ended, "message").strip()
            clause = f"its init container {container} fails with exit code {code}" + (
                f": {_short(said)}" if said else ""
            )
            log = Step("what it said", f"kubectl logs {name} -c {container} {situation.where}")
            return Finding("InitFailed", clause, (f"{where}: exit code {code}",), (log,))
    return None


def _created(situation: Situation, pod: str, message: str, where: str) -> Finding:
    evidence = (f"{where}: {message}",)
    if found := _KEY.search(message):
        clause = f"the {found[2]} {found[3]} has no key {found[1]}, which the containers need"
        step = Step("which keys it has", f"kubectl describe {found[2].lower()} {found[3]} {situation.where}")
        return Finding("ConfigMissing", clause, evidence, (step,))
    if found := _ABSENT.search(message):
        kind = {"secret": "Secret", "configmap": "ConfigMap"}[found[1].lower()]
        clause = f"the {kind} {found[2]} isn't there, and the containers need it"
        step = Step(
            "make it in the job's namespace; the pods go on by themselves",
            f"kubectl get {found[1].lower()}s {situation.where}",
        )
        return Finding("ConfigMissing", clause, evidence, (step,))
    if found := _PROGRAM.search(message):
        clause = f"the program {found[1]} can't be started in the image: {_short(found[2])}"
        return Finding("ProgramNotFound", clause, evidence, (Step("check spec.command and the image"),))
    look = Step("all that the kubelet says", f"kubectl describe pod {pod} {situation.where}")
    return Finding("CreateContainer", f"the kubelet can't make a container: {_short(message)}", evidence, (look,))


def _sandbox(situation: Situation, pod: str, node: str, message: str) -> Finding:
    is_network = "network" in message or "cni" in message.lower()
    what = "set up the pod's network" if is_network else "make the pod's sandbox"
    clause = f"node {node} can't {what}: {_short(message.rpartition('rpc error: ')[2])}"
    steps = (
        Step("tell who runs the nodes; meanwhile keep the job away from it", f"kubectl cordon {node}"),
        Step("what else is wrong there", f"kubectl describe node {node}"),
    )
    return Finding("SandboxFailed", clause, (f"pod {pod}: {message}",), steps)


def _short(text: str) -> str:
    return " ".join(text.split()).rstrip(".; ")[:300]

"""Volumes that can't be attached or mounted, as attach-detach controller and kubelet say in a pod's events."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainmaster.client.diagnosis.finding import Finding, Step
from trainmaster.client.diagnosis.objects import Object, text
from trainmaster.client.diagnosis.situation import Situation
from trainmaster.client.diagnosis.waiting_pods import waiting_pods

_VOLUME = re.compile(r'volume "([^"]+)"')
_ABSENT = re.compile(r'(secret|configmap) "([^"]+)" not found', re.IGNORECASE)
_UNMOUNTED = re.compile(r"unmounted volumes=\[([^\]]+)\]")


def volume_findings(situation: Situation) -> Iterator[Finding]:
    """Yields what the first pod whose containers can't be made says about its volumes."""
    for pod, name, node in waiting_pods(situation):
        for event in situation.events_about("Pod", name):
            message = text(event, "message")
            if event.get("reason") == "FailedAttachVolume":
                yield _attach(situation, pod, name, message)
                return
            if event.get("reason") == "FailedMount":
                yield _mount(situation, name, node, message)
                return


def _attach(situation: Situation, pod: Object, name: str, message: str) -> Finding:
    volume = _VOLUME.search(message)
    which = f"the volume {volume[1]}" if volume else "a volume"
    evidence = (f"pod {name}: {message}",)
    look = Step("where it is attached", "kubectl get volumeattachments" + (f" | grep {volume[1]}" if volume else ""))
    if "Multi-Attach" in message:
        clause = f"{which} is still attached to another node, and it can be on one node only"
        steps = (
            Step(
                "wait until the other pod is gone (six minutes after its node was lost), or use a ReadWriteMany claim"
            ),
            look,
        )
        return Finding("VolumeAttach", clause, evidence, steps)
    return Finding("VolumeAttach", f"{which} can't be attached to the node: {_short(message)}", evidence, (look,))


def _mount(situation: Situation, name: str, node: str, message: str) -> Finding:
    evidence = (f"pod {name}: {message}",)
    absent = _ABSENT.search(message)
    if absent:
        kind = {"secret": "Secret", "configmap": "ConfigMap"}[absent[1].lower()]
        clause = f"the {kind} {absent[2]}, which a volume of its pods needs, isn't there"
        step = Step(
            "make it in the job's namespace; the pods go on by themselves",
            f"kubectl get {absent[1].lower()}s {situation.where}",
        )
        return Finding("ConfigMissing", clause, evidence, (step,))
    volume = _VOLUME.search(message) or _UNMOUNTED.search(message)
    which = f"the volume {volume[1]}" if volume else "a volume"
    last = message.rpartition("Output: ")[2] if "Output: " in message else message
    clause = f"{which} can't be mounted on node {node}: {_short(last)}"
    steps = (
        Step("check the server or the CSI driver, and whether the node reaches it"),
        Step("all that the kubelet says", f"kubectl describe pod {name} {situation.where}"),
    )
    return Finding("VolumeMount", clause, evidence, steps)


def _short(text: str) -> str:
    return " ".join(text.split()).rstrip(".; ")[:300]

"""Images that can't be pulled, or don't run on the node's processor.

The words are those of containerd (remotes/docker), CRI-O and the registries, behind the kubelet's reasons.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainmaster.client.diagnosis.finding import Finding, Step
from trainmaster.client.diagnosis.objects import containers, text
from trainmaster.client.diagnosis.situation import Situation
from trainmaster.client.diagnosis.waiting_pods import waiting_pods, waits
from trainmaster_operator.wire.values import mapping

_REASONS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "ImageInspectError", "InvalidImageName"}
    | {"RegistryUnavailable", "SignatureValidationFailed"}
)
_IMAGE = re.compile(r'(?:image|pull) "?([^"\s]+?)"?(?:[:,]? |$)')
_QUOTED = re.compile(r'"([^"\s]+)"')
_FORMAT = "exec format error"
# What stands in the message, the cause, what is so, and what to do. The first that matches.
_KINDS = (
    (
        re.compile(r"couldn't parse image name|invalid reference format|InvalidImageName"),
        "ImageNameInvalid",
        "{image} is no name of an image: {why}",
        "correct spec.image (small letters, digits, one ':' before the tag)",
    ),
    (
        re.compile(r"toomanyrequests|429 Too Many Requests|pull rate limit", re.IGNORECASE),
        "ImageRateLimited",
        "the registry's pull rate limit is reached, so {image} can't be pulled now",
        "add a pull secret of an account (docs/pods.md, A private registry), use a mirror, or wait",
    ),
    (
        re.compile(r"no match for platform|no matching manifest|does not match the specified platform"),
        "ImageArchitecture",
        "the image {image} has no variant for the architecture of node {node}",
        "build it for that architecture too, or choose nodes: nodeSelector: {{kubernetes.io/arch: amd64}}",
    ),
    (
        re.compile(
            r"no such host|i/o timeout|connection refused|deadline exceeded|TLS handshake|x509|no route to host|"
            r"server misbehaving|network is unreachable|RegistryUnavailable"
        ),
        "RegistryUnreachable",
        "node {node} can't reach the registry {registry}: {why}",
        "check the registry's name in spec.image, and the node's DNS, proxy and certificates",
    ),
    (
        re.compile(
            r"insufficient_scope|pull access denied|unauthorized|401 Unauthorized|403 Forbidden|denied:|"
            r"authorization failed|failed to authorize|no basic auth credentials",
            re.IGNORECASE,
        ),
        "ImageUnauthorized",
        "the registry {registry} doesn't let the nodes pull {image}: it wants a login, or has no such repository",
        "add a pull secret (docs/pods.md, A private registry), and check the repository's name",
    ),
    (
        re.compile(r"not found|manifest unknown|name unknown|404", re.IGNORECASE),
        "ImageNotFound",
        "there is no image {image}",
        "check name and tag in spec.image letter by letter, and whether it was pushed",
    ),
    (
        re.compile(r"ErrImageNeverPull"),
        "ImageNotFound",
        "the image {image} isn't on node {node}, and imagePullPolicy is Never",
        "load it onto the nodes, or leave imagePullPolicy out",
    ),
    (
        re.compile(r"no space left on device", re.IGNORECASE),
        "DiskFull",
        "node {node} has no disk space left for the image {image}",
        "free the node's disk, or choose another node",
    ),
)


def image_findings(situation: Situation) -> Iterator[Finding]:
    """Yields what is wrong with the image of the first container that waits for one."""
    for pod, name, node in waiting_pods(situation):
        for container, status in containers(pod):
            reason, message = waits(status)
            if reason in _REASONS:
                image = text(status, "image") or _named(message)
                yield _pull(situation, f"container {container} of pod {name}", image, node, reason, message)
                return
            ends = [text(mapping(status.get(field)).get("terminated"), "message") for field in ("state", "lastState")]
            if any(_FORMAT in each for each in (message, *ends, situation.logs.get(name, ""))):
                yield _format(situation, name, node, text(status, "image"))
                return
    if situation.failed_reason in ("ImagePull", "InvalidImageName"):
        message = situation.shown_message
        image = _named(message) or text(situation.job.raw, "spec", "image")
        yield _pull(situation, "the operator", image, "of the pod", situation.failed_reason, message)


def _pull(situation: Situation, who: str, image: str, node: str, reason: str, message: str) -> Finding:
    evidence = (f"{who}: {reason}: {message}" if message else f"{who}: {reason}",)
    full = _full(image, message)
    registry = full.partition("/")[0] if "." in full.partition("/")[0] else "docker.io"
    why = " ".join(message.split()).rpartition(": ")[2].rstrip(".")
    for pattern, cause, clause, remedy in _KINDS:
        if pattern.search(f"{reason} {message}"):
            shown = clause.format(image=full, node=node, registry=registry, why=why)
            return Finding(cause, shown, evidence, (Step(remedy.format()), _look(situation, image)))
    clause = f"the image {full} can't be pulled: {why or reason}"
    return Finding("ImagePull", clause, evidence, (_look(situation, image),))


def _format(situation: Situation, pod: str, node: str, image: str) -> Finding:
    clause = f"the image {image} was built for another processor architecture than node {node} has ({_FORMAT})"
    steps = (
        Step("build the image for the node's architecture, or choose nodes: nodeSelector: {kubernetes.io/arch: amd64}"),
        Step("the nodes' architectures", "kubectl get nodes -L kubernetes.io/arch"),
    )
    return Finding("ImageArchitecture", clause, (f"the log of pod {pod}: {_FORMAT}",), steps)


def _full(image: str, message: str) -> str:
    """Returns the image's whole name, as the runtime resolves it."""
    named = [each for each in _QUOTED.findall(message) if image and each.endswith(image)]
    return max([image, *named], key=len) or "?"


def _named(message: str) -> str:
    found = _QUOTED.search(message) or _IMAGE.search(message)
    return found[1] if found else ""


def _look(situation: Situation, image: str) -> Step:
    return Step("try it where you have a container engine", f"docker manifest inspect {image}")

"""Explains why pods that have a node don't train.

The cause can be the node, a volume, an image, a container, or ranks that don't start.

The patterns match messages of the kubelet, the attach-detach controller, containerd, CRI-O and registries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainmaster.client.diagnosis.situation import Finding, Situation, Step
from trainmaster.client.job import worker_index
from trainmaster.client.metrics import WorkerState
from trainmaster.client.objects import (
    Object,
    at,
    condition,
    containers,
    has_condition,
    items,
    joined,
    name_of,
    short,
    text,
)
from trainmaster.client.view import plural
from trainmaster_operator.api.times import duration, since
from trainmaster_operator.wire.values import mapping

_ABSENT = re.compile(r'(secret|configmap) "([^"]+)" not found', re.IGNORECASE)
_KEY = re.compile(r"couldn't find key (\S+) in (Secret|ConfigMap) [^/\s]+/(\S+)")
_PROGRAM = re.compile(r'exec: "([^"]+)": (.+?)(?:: unknown)?$', re.DOTALL)
_NVIDIA = re.compile(r"nvidia-container-cli: ([^\n]+?)(?:: unknown)?$", re.MULTILINE)
# Reasons of pods that a kubelet refused (kubernetes: pkg/kubelet/lifecycle, pkg/kubelet/cm).
_REFUSED = ("UnexpectedAdmissionError", "OutOf", "NodeAffinity", "TopologyAffinityError")
# Seconds after a pod's grace period until it counts as stuck.
STUCK_SECONDS = 60.0
_VOLUME = re.compile(r'(?:volume "|unmounted volumes=\[)([^"\]]+)["\]]')
_CREATE = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_PULL = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "ImageInspectError", "InvalidImageName"}
    | {"RegistryUnavailable", "SignatureValidationFailed"}
)
# The beginning of an error that the kubelet got from the container runtime.
_RPC = re.compile(r"^.*rpc error: (?:code = \w+ desc = )?", re.DOTALL)
_IMAGE = re.compile(r'(?:image|pull) "?([^"\s]+?)"?(?:[:,]? |$)')
_QUOTED = re.compile(r'"([^"\s]+)"')
_FORMAT = "exec format error"
# The operator's message about an init container that kept failing (reconciling/policies/startup.py).
_INIT = re.compile(
    r"init container (?P<container>\S+) of pod (?P<pod>\S+) ended with exit code (?P<code>\d+)(?:: (?P<output>.+))?",
    re.DOTALL,
)
# Each entry is a pattern for a message about an image (case is ignored), the cause, the clause and the remedy. The
# first match is used.
_IMAGES: tuple[tuple[str, str, str, str], ...] = (
    (r"couldn't parse image name|invalid reference format|InvalidImageName", "ImageNameInvalid",
     "{image} is no valid image name: {why}", "correct spec.image (small letters, digits, one ':' before the tag)"),
    (r"toomanyrequests|429 Too Many Requests|pull rate limit", "ImageRateLimited",
     "the registry's pull rate limit is reached, so {image} can't be pulled now",
     "add an account's pull secret (docs/pods.md, A private registry), use a mirror, or wait"),
    (r"no match for platform|no matching manifest|does not match the specified platform", "ImageArchitecture",
     "the image {image} has no variant for the architecture of node {node}",
     "build it for that architecture too, or choose nodes by spec.podTemplate.spec.nodeSelector (kubernetes.io/arch)"),
    (_FORMAT, "ImageArchitecture",
     "the image {image} was built for another processor architecture than node {node} has (exec format error)",
     "build it for that architecture too, or choose nodes by spec.podTemplate.spec.nodeSelector (kubernetes.io/arch)"),
    (r"no such host|i/o timeout|connection refused|deadline exceeded|TLS handshake|x509|no route to host|"
     r"server misbehaving|network is unreachable|RegistryUnavailable", "RegistryUnreachable",
     "node {node} can't reach the registry {registry}: {why}",
     "check the registry's name in spec.image, and the node's DNS, proxy and certificates"),
    (r"insufficient_scope|pull access denied|unauthorized|401 Unauthorized|403 Forbidden|denied:|"
     r"authorization failed|failed to authorize|no basic auth credentials", "ImageUnauthorized",
     "the registry {registry} doesn't let the nodes pull {image}: it requires a login, or has no such repository",
     "add a pull secret (docs/pods.md, A private registry), and check the repository's name"),
    (r"not found|manifest unknown|name unknown|404", "ImageNotFound", "there is no image {image}",
     "check name and tag in spec.image letter by letter, and whether it was pushed"),
    (r"ErrImageNeverPull", "ImageNotFound", "the image {image} isn't on node {node}, and spec.imagePullPolicy is Never",
     "load it onto the nodes, or leave spec.imagePullPolicy out"),
    (r"no space left on device", "DiskFull", "node {node} has no disk space left for the image {image}",
     "free the node's disk, or choose another node"),
)  # fmt: skip
# Ranks usually start soon after their pods, but on a slow processor or disk, torch may need this long (seconds).
ORDINARY_SECONDS = 60.0


def waiting_pods(situation: Situation) -> Iterator[tuple[Object, str, str]]:
    """While the job starts, yields each pod that has a node but no running worker container, its name and its node."""
    if not situation.is_starting:
        return
    for pod in situation.pods:
        node = text(pod, "spec", "nodeName")
        running = any("running" in mapping(status.get("state")) for name, status in containers(pod) if name == "worker")
        if node and not running:
            yield pod, name_of(pod), node


def _waiting(status: Object) -> tuple[str, str]:
    return text(status, "state", "waiting", "reason"), text(status, "state", "waiting", "message")


def _describe(situation: Situation, pod: str) -> Step:
    if any(name_of(one) == pod for one in situation.pods):
        return Step("the kubelet's messages", f"kubectl describe pod {pod} {situation.where}")
    return Step("its events", f"kubectl dtj events {situation.job.name} {situation.where}")


def node_findings(situation: Situation) -> Iterator[Finding]:
    """Yields a finding on the first of the job's nodes that isn't ready."""
    for node in () if situation.job.finished else situation.nodes or ():
        name = name_of(node)
        pods = [name_of(pod) for pod in situation.pods if text(pod, "spec", "nodeName") == name]
        ready = condition(node, "Ready")
        if not pods or not ready or has_condition(node, "Ready"):
            continue
        began = text(ready, "lastTransitionTime") or "unknown"
        evidence = (f"node {name}: {text(ready, 'reason')}: {text(ready, 'message')} (since {began})",)
        clause = f"node {name} isn't ready, and {joined(pods)} of the job {'is' if len(pods) == 1 else 'are'} on it"
        steps = (
            Step("check the node; the operator replaces the pods after spec.failurePolicy.nodes.lostAfterSeconds"),
            Step("its state", f"kubectl describe node {name}"),
        )
        yield Finding("NodeNotReady", clause, evidence, steps)
        return


def stuck_findings(situation: Situation) -> Iterator[Finding]:
    """Yields a finding on a pod that doesn't end, or that its kubelet refused, while the job waits for it."""
    for pod in situation.pods if situation.is_starting and not situation.job.finished else ():
        name, node = name_of(pod), text(pod, "spec", "nodeName")
        # The deletion's time is the end of the grace period.
        deleted = text(pod, "metadata", "deletionTimestamp")
        late = since(situation.now.timestamp(), deleted)
        reason, message = text(pod, "status", "reason"), text(pod, "status", "message")
        if late > STUCK_SECONDS:
            where = f" on node {node}" if node else ""
            clause = f"pod {name}{where} still hasn't ended, {duration(late)} after its grace period"
            force = Step(
                "if its node is really off, delete the pod by force (docs/troubleshooting.md, It doesn't go away)"
            )
            yield Finding("PodStuck", clause, (f"deleted at {deleted}",), (force, _describe(situation, name)))
            return
        if text(pod, "status", "phase") == "Failed" and reason.startswith(_REFUSED):
            clause = f"node {node} refused pod {name} ({reason}): {short(message)}"
            look = Step("the node's devices and pods", f"kubectl describe node {node}")
            yield Finding("PodRefused", clause, (f"pod {name}: {reason}: {message}",), (look,))
            return


def volume_findings(situation: Situation) -> Iterator[Finding]:
    """Yields a finding on a volume that can't be attached or mounted, from the events of a waiting pod."""
    for _, name, node in waiting_pods(situation):
        for event in situation.events_about("Pod", name):
            if event.get("reason") in ("FailedAttachVolume", "FailedMount"):
                yield _unusable(situation, name, node, text(event, "reason"), text(event, "message"))
                return


def _unusable(situation: Situation, pod: str, node: str, reason: str, message: str) -> Finding:
    evidence = (f"pod {pod}: {message}",)
    volume = _VOLUME.search(message)
    which = f"the volume {volume[1]}" if volume else "a volume"
    if reason == "FailedMount":
        if absent := _ABSENT.search(message):
            return _absent(situation, absent, evidence, "a volume of its pods needs it")
        clause = f"{which} can't be mounted on node {node}: {short(message.rpartition('Output: ')[2])}"
        check = Step("check the server or the CSI driver, and whether the node reaches it")
        return Finding("VolumeMount", clause, evidence, (check, _describe(situation, pod)))
    look = Step("where it is attached", "kubectl get volumeattachments" + (f" | grep {volume[1]}" if volume else ""))
    if "Multi-Attach" not in message:
        return Finding("VolumeAttach", f"{which} can't be attached to the node: {short(message)}", evidence, (look,))
    clause = f"{which} is still attached to another node, and it can be on one node only"
    wait = "wait until the other pod is gone (six minutes after its node was lost), or use a ReadWriteMany claim"
    return Finding("VolumeAttach", clause, evidence, (Step(wait), look))


def _absent(situation: Situation, found: re.Match[str], evidence: tuple[str, ...], need: str) -> Finding:
    kind = {"secret": "Secret", "configmap": "ConfigMap"}[found[1].lower()]
    step = Step(
        "create it in the job's namespace; the pods then continue by themselves",
        f"kubectl get {kind.lower()}s {situation.where}",
    )
    return Finding("ConfigMissing", f"the {kind} {found[2]} doesn't exist, and {need}", evidence, (step,))


def image_findings(situation: Situation) -> Iterator[Finding]:
    """Yields a finding on the first container that waits for its image."""
    for pod, name, node in waiting_pods(situation):
        for container, status in containers(pod):
            reason, message = _waiting(status)
            if reason in _PULL:
                image = text(status, "image") or _named(message)
                yield _pull(f"container {container} of pod {name}", image, node, reason, message)
                return
            ends = [text(status, field, "terminated", "message") for field in ("state", "lastState")]
            if any(_FORMAT in each for each in (message, *ends, situation.logs.get(name, ""))):
                yield _pull(f"the log of pod {name}", text(status, "image"), node, _FORMAT, "")
                return
    if situation.view.end_reason in ("ImagePull", "InvalidImageName"):
        message = situation.shown_message
        image = _named(message) or text(situation.job.raw, "spec", "image")
        yield _pull("the operator", image, "of the pod", situation.view.end_reason, message)


def _pull(source: str, image: str, node: str, reason: str, message: str) -> Finding:
    evidence = (f"{source}: {reason}: {message}" if message else f"{source}: {reason}",)
    # The longest quoted name is the image's full name as resolved by the container runtime.
    full = max([image, *(one for one in _QUOTED.findall(message) if image and one.endswith(image))], key=len) or "?"
    registry = full.partition("/")[0] if "." in full.partition("/")[0] else "docker.io"
    why = " ".join(message.split()).rpartition(": ")[2].rstrip(".")
    look = Step("try it with a container engine", f"docker manifest inspect {image}")
    for pattern, cause, clause, remedy in _IMAGES:
        if re.search(pattern, f"{reason} {message}", re.IGNORECASE):
            words = clause.format(image=full, node=node, registry=registry, why=why)
            if cause == "DiskFull":
                look = Step("the node's conditions and pods", f"kubectl describe node {node}")
            return Finding(cause, words, evidence, (Step(remedy.format()), look))
    return Finding("ImagePull", f"the image {full} can't be pulled: {why or reason}", evidence, (look,))


def _named(message: str) -> str:
    found = _QUOTED.search(message) or _IMAGE.search(message)
    return found[1] if found else ""


def container_findings(situation: Situation) -> Iterator[Finding]:
    """Yields a finding on the first container that doesn't run, or on ranks that don't start."""
    for pod, name, node in waiting_pods(situation):
        for event in situation.events_about("Pod", name):
            if event.get("reason") == "FailedCreatePodSandBox":
                yield _sandbox(name, node, text(event, "message"))
                return
            if event.get("reason") in ("Scheduled", "Created"):
                break
        for container, status in containers(pod):
            finding = _container(situation, pod, container, status)
            if finding is not None:
                yield finding
                return
    if situation.view.end_reason == "CreateContainer":
        yield _created(situation, "", situation.shown_message, "the operator")
    elif found := _INIT.search(situation.shown_message if situation.view.end_reason == "InitFailed" else ""):
        yield _init_failed(situation, found["pod"], found["container"], int(found["code"]), found["output"] or "")
    yield from _starting(situation)


def _container(situation: Situation, pod: Object, container: str, status: Object) -> Finding | None:
    name = name_of(pod)
    reason, message = _waiting(status)
    where = f"container {container} of pod {name}"
    if reason in _CREATE:
        return _created(situation, name, message or reason, f"{where}: {reason}")
    if not any(text(one, "name") == container for one in items(pod, "status", "initContainerStatuses")):
        return None
    for field in ("state", "lastState"):
        code, last = at(status, field, "terminated", "exitCode"), text(status, field, "terminated", "message").strip()
        if isinstance(code, int) and code != 0:
            return _init_failed(situation, name, container, code, last)
    return None


def _init_failed(situation: Situation, pod: str, container: str, code: int, output: str) -> Finding:
    """Returns the finding on an init container that fails, with its last line of output."""
    log = situation.logs.get(f"{pod}/{container}", "") or output
    lines = [line.strip() for line in log.replace(" | ", "\n").splitlines() if line.strip()]
    clause = f"its init container {container} fails with exit code {code}" + (f": {short(lines[-1])}" if lines else "")
    evidence = (f"container {container} of pod {pod}: exit code {code}", *(f"  {line}" for line in lines[-8:]))
    if any(name_of(one) == pod for one in situation.pods):
        look = Step("its output", f"kubectl logs {pod} -c {container} {situation.where}")
    else:
        look = Step("what was kept of it", f"kubectl dtj evidence {situation.job.name} {situation.where}")
    return Finding("InitFailed", clause, evidence, (Step("correct this init container, or what it needs"), look))


def _created(situation: Situation, pod: str, message: str, where: str) -> Finding:
    evidence = (f"{where}: {message}",)
    if found := _KEY.search(message):
        clause = f"the {found[2]} {found[3]} has no key {found[1]}, which the containers need"
        step = Step("its keys", f"kubectl describe {found[2].lower()} {found[3]} {situation.where}")
        return Finding("ConfigMissing", clause, evidence, (step,))
    if found := _ABSENT.search(message):
        return _absent(situation, found, evidence, "the containers need it")
    if found := _NVIDIA.search(message):
        node = next((text(one, "spec", "nodeName") for one in situation.pods if name_of(one) == pod), "")
        where = f"node {node}" if node else "the node"
        clause = f"the NVIDIA runtime of {where} can't start the container: {short(found[1])}"
        steps = (Step("check the node's driver (nvidia-smi)"), _describe(situation, pod))
        return Finding("NvidiaRuntime", clause, evidence, steps)
    if found := _PROGRAM.search(message):
        clause = f"the program {found[1]} can't be started in the image: {short(found[2])}"
        return Finding("ProgramNotFound", clause, evidence, (Step("check spec.command and the image"),))
    clause = f"the kubelet can't create a container: {short(message)}"
    return Finding("CreateContainer", clause, evidence, (_describe(situation, pod),))


def _sandbox(pod: str, node: str, message: str) -> Finding:
    is_network = "network" in message or "cni" in message.lower()
    what = "set up the pod's network" if is_network else "create the pod's sandbox"
    clause = f"node {node} can't {what}: {short(_RPC.sub('', message))}"
    steps = (
        Step("report it to the nodes' administrator; meanwhile keep the job away from it", f"kubectl cordon {node}"),
        Step("the node's other problems", f"kubectl describe node {node}"),
    )
    return Finding("SandboxFailed", clause, (f"pod {pod}: {message}",), steps)


def _starting(situation: Situation) -> Iterator[Finding]:
    """Yields a finding on what a starting job waits for, or waited for until its startup deadline passed."""
    if situation.job.phase != "Starting" and situation.view.end_reason != "StartupDeadlineExceeded":
        return
    workers = situation.job.status.workers
    waiting = [name for _, name, _ in waiting_pods(situation)]
    for name in waiting:
        event = next(situation.events_about("Pod", name), None)
        if event is not None and event.get("reason") == "Pulling":
            clause = f"pod {name} is pulling its image; large ones take minutes"
            yield Finding("Starting", clause, (f"pod {name}: {text(event, 'message')}",))
            return
    have = "has its" if workers.desired == 1 else "have their"
    up = f"{workers.running} of {plural(workers.desired, 'worker')} {have} ranks up"
    log = Step("the workers' output", f"kubectl dtj logs {situation.job.name} {situation.where}")
    if situation.view.end_reason:
        clause = f"its ranks weren't all up in time: {situation.shown_message}"
        raised = Step("if the image or the volumes are only slow, raise spec.failurePolicy.startupSeconds")
        yield Finding("StartupDeadline", clause, (up,), (log, raised))
    elif waiting:
        clause = f"{up} (waiting: {joined(waiting)}), and nothing looks wrong"
        yield Finding("Starting", clause, (), (log,), is_certain=False)
    else:
        yield _not_up(situation, up, log)


def _not_up(situation: Situation, up: str, log: Step) -> Finding:
    status = situation.job.status
    late = [one for one in situation.worker_states if _is_late(situation, one)]
    pods = {worker_index(pod): pod for pod in situation.pods}
    names = [f"worker {one.worker} (pod {name_of(pods[one.worker])})" for one in late if one.worker in pods]
    awaited = f", and it waits for those of {joined(names)}" if names else ""
    seconds = since(situation.now.timestamp(), status.attempt_start_time)
    if seconds < ORDINARY_SECONDS:
        calm = "" if awaited else ", and nothing looks wrong"
        return Finding("Starting", f"{up}{awaited}{calm}", (), (log,), is_certain=False)
    evidence = [f"attempt {status.attempt} was opened {seconds:.0f} s ago"]
    evidence += [_line(situation, one, text(pods.get(one.worker), "spec", "nodeName")) for one in late]
    steps = [log]
    if names:
        pod = name_of(pods[late[0].worker])
        steps = [
            Step("its agent's messages", f"kubectl logs {pod} -c worker {situation.where} --tail 20"),
            Step("replace that pod", f"kubectl delete pod {pod} {situation.where}"),
        ]
    else:
        awaited = f" {seconds:.0f} s after the attempt was opened, and which workers it waits for isn't known"
        evidence.append("their agents weren't asked: that takes the right to get pods/proxy")
    return Finding("RanksNotUp", f"{up}{awaited}", tuple(evidence), tuple(steps), is_certain=bool(names))


def _is_late(situation: Situation, one: WorkerState) -> bool:
    spec = at(situation.job.raw, "spec")
    if one.state == "Waiting" and any(at(each, "spares") for each in (spec, *items(spec, "workerGroups"))):
        # This worker may be a spare, which runs no ranks.
        return False
    attempt = situation.job.status.attempt
    return one.attempt < attempt or (one.attempt == attempt and one.state in ("Waiting", "Starting"))


def _line(situation: Situation, one: WorkerState, node: str) -> str:
    where = f"worker {one.worker}" + (f" on node {node}" if node else "")
    if one.attempt < situation.job.status.attempt:
        return f"{where}: its agent is still at attempt {one.attempt} ({one.state})"
    return f"{where}: its agent has attempt {one.attempt} and is {one.state}"

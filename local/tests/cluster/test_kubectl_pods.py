"""kubectl 1.32 and 1.37 handle running pods: tables, logs, descriptions, scaling, rollouts and deletions."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable

import pytest

from local.tests.cluster.kubectls import NEW, OLD, Kubectl, program
from trainmaster_local.testing.clusters import Cluster

pytestmark = pytest.mark.usefixtures("pods_run")

IMAGE = "python:3.12"
COUNTING = "import time\nfor n in range(3): print('line', n, flush=True)\ntime.sleep(600)"


@pytest.fixture(params=[NEW, OLD])
def kubectl(request: pytest.FixtureRequest, cluster: Cluster) -> Kubectl:
    return Kubectl(program(request.param), cluster.kubeconfig, cluster.namespace)


def until(check: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Waits for a change that the kubelet or an event causes a moment later."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)


def pod(name: str, *containers: tuple[str, str], **spec: object) -> str:
    """Returns a pod whose containers each run a line of Python."""
    listed = [{"name": n, "image": IMAGE, "command": ["python3", "-u", "-c", code]} for n, code in containers]
    body = {"terminationGracePeriodSeconds": 2, "containers": listed, **spec}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body})


def stateful_set(replicas: int, code: str = COUNTING) -> str:
    container = {"name": "c", "image": IMAGE, "command": ["python3", "-u", "-c", code]}
    template = {
        "metadata": {"labels": {"app": "set"}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
    }
    spec = {
        "serviceName": "set",
        "replicas": replicas,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": "set"}},
        "template": template,
    }
    return json.dumps({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "set"}, "spec": spec})


HANGING_UP = """
import socket
server = socket.create_server(("", 8000))
while True:
    server.accept()[0].close()
"""


def test_a_pod_that_hangs_up_on_the_proxy_is_said_to_be_out_of_reach(kubectl: Kubectl) -> None:
    """Kubernetes answers 503 for anything that keeps a request from its answer (apimachinery,
    util/proxy/transport.go).
    """
    kubectl("apply", "-f", "-", stdin=pod("p", ("c", HANGING_UP)))
    kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=60s")

    def answer() -> str:
        return kubectl.refused("get", "--raw", f"/api/v1/namespaces/{kubectl.namespace}/pods/p:8000/proxy/")

    until(lambda: "connection refused" not in answer(), "it listens")
    assert "error trying to reach service" in answer()
    assert "InternalError" not in answer()


def test_pod_runs_and_is_described(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=pod("p", ("c", COUNTING)))
    kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=60s")
    header, row = kubectl("get", "pods", "-o", "wide").splitlines()
    assert header.split()[:5] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert "NOMINATED NODE" in header
    assert row.split()[:4] == ["p", "1/1", "Running", "0"]
    described = kubectl("describe", "pod", "p")
    assert re.search(r"^Status: +Running$", described, re.M)
    assert re.search(r"^QoS Class: +BestEffort$", described, re.M)
    assert re.search(r"Normal +Scheduled .* Successfully assigned", described)
    assert re.search(r"Normal +Started .*[Cc]ontainer", described)
    node = kubectl("get", "pod", "p", "-o", "jsonpath={.spec.nodeName}")
    assert re.search(rf"^{node} +Ready ", kubectl("get", "nodes"), re.M)
    allocated = kubectl("describe", "node", node)
    assert re.search(rf"^  {kubectl.namespace} +p +", allocated, re.M)
    assert "Scheduled" in kubectl("events", "--for", "pod/p")
    assert re.search(r"Normal +Scheduled +pod/p", kubectl("get", "events"))


def test_logs(kubectl: Kubectl) -> None:
    kubectl(
        "apply",
        "-f",
        "-",
        stdin=pod("p", ("first", COUNTING), ("second", "print('hello'); import time; time.sleep(600)")),
    )
    kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=60s")
    # Without a probe a container is ready as soon as it runs, before its program has printed anything.
    until(lambda: kubectl("logs", "p", "-c", "first") == "line 0\nline 1\nline 2\n", "the first one's lines")
    until(lambda: kubectl("logs", "p", "-c", "second") == "hello\n", "the second one's line")
    assert kubectl("logs", "p", "-c", "first", "--tail=1") == "line 2\n"
    stamped = kubectl("logs", "p", "-c", "second", "--timestamps").strip()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z hello", stamped)
    time.sleep(1.1)
    assert kubectl("logs", "p", "-c", "second", "--since=1s") == ""
    assert kubectl("logs", "p", "-c", "second", "--since=10m") == "hello\n"
    assert "hello\n" in kubectl("logs", "p", "--all-containers")
    assert "line 2" in kubectl("logs", "p", "--all-containers", "--prefix")
    refused = kubectl.refused("logs", "p", "-c", "third")
    assert "container third is not valid for pod p" in refused
    assert "previous terminated container" in kubectl.refused("logs", "p", "-c", "first", "--previous")


def test_logs_follow_until_the_end(kubectl: Kubectl) -> None:
    slow = "import time\nfor n in range(4): print(n, flush=True); time.sleep(0.4)"
    kubectl("apply", "-f", "-", stdin=pod("p", ("c", slow), restartPolicy="Never"))
    until(lambda: kubectl("get", "pod", "p", "-o", "jsonpath={.status.phase}") != "Pending", "it has started")
    assert kubectl("logs", "-f", "p") == "0\n1\n2\n3\n"
    kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/p", "--timeout=60s")
    assert kubectl("get", "pod", "p", "--no-headers").split()[1:3] == ["0/1", "Completed"]


def test_crash_loop_shows_restarts_and_the_previous_log(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=pod("p", ("c", "print('boom'); raise SystemExit(3)")))
    restarts = "jsonpath={.status.containerStatuses[0].restartCount}"
    until(lambda: int(kubectl("get", "pod", "p", "-o", restarts) or 0) >= 2, "two restarts")
    waiting = re.compile(r"p +0/1 +(CrashLoopBackOff|Error) +\d+ \(\d+s ago\) ")
    until(lambda: waiting.match(kubectl("get", "pod", "p", "--no-headers")), "the back-off is shown")
    # While both of the last two have ended, the kubelet keeps only the newest log, and gives that message as the log.
    until(lambda: kubectl("logs", "p", "--previous") == "boom\n", "the log of the run before")
    described = kubectl("describe", "pod", "p")
    assert re.search(r"^    Last State: +Terminated$", described, re.M)
    assert re.search(r"^      Exit Code: +3$", described, re.M)


def test_init_containers_show_in_the_status(kubectl: Kubectl) -> None:
    waiting = {
        "name": "init",
        "image": IMAGE,
        "command": ["sh", "-c", "until grep -q go /podinfo/may; do sleep 0.05; done"],
        "volumeMounts": [{"name": "podinfo", "mountPath": "/podinfo"}],
    }
    items = [{"path": "may", "fieldRef": {"fieldPath": "metadata.annotations['may']"}}]
    volume = {"name": "podinfo", "downwardAPI": {"items": items}}
    kubectl("apply", "-f", "-", stdin=pod("p", ("c", COUNTING), initContainers=[waiting], volumes=[volume]))
    kubectl("wait", "--for=jsonpath={.status.initContainerStatuses[0].state.running}", "pod/p", "--timeout=60s")
    assert kubectl("get", "pod", "p", "--no-headers").split()[1:3] == ["0/1", "Init:0/1"]
    kubectl("annotate", "pod", "p", "may=go")
    kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=60s")


def test_pod_that_fits_nowhere_says_why(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=pod("p", ("c", COUNTING), nodeSelector={"none": "such"}))
    kubectl("wait", "--for=condition=PodScheduled=false", "pod/p", "--timeout=60s")
    assert kubectl("get", "pod", "p", "--no-headers").split()[1:3] == ["0/1", "Pending"]
    until(lambda: "didn't match Pod's node affinity/selector" in kubectl("describe", "pod", "p"), "it is told")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"containers": []}, "spec.containers: Required value"),
        (
            {"containers": [{"name": "c", "image": IMAGE, "resources": {"limits": {"nvidia.com/gpu": "0.5"}}}]},
            'spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: "500m": must be an integer',
        ),
        (
            {"containers": [{"name": "c", "image": IMAGE, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]},
            'spec.containers[0].volumeMounts[0].name: Not found: "v"',
        ),
        (
            {"containers": [{"name": "c", "image": IMAGE}, {"name": "c", "image": IMAGE}]},
            'spec.containers[1].name: Duplicate value: "c"',
        ),
        (
            {"containers": [{"name": "c", "image": IMAGE, "resources": {"limits": {"memory": "lots"}}}]},
            "quantities must match the regular expression",
        ),
        ({"restartPolicy": "Sometimes"}, 'spec.restartPolicy: Unsupported value: "Sometimes"'),
        ({"containerz": []}, 'strict decoding error: unknown field "spec.containerz"'),
    ],
    ids=["no container", "half a GPU", "no volume", "same name", "quantity", "policy", "unknown field"],
)
def test_bad_pod_is_refused(kubectl: Kubectl, change: dict[str, object], sentence: str) -> None:
    assert sentence in kubectl.refused("create", "-f", "-", stdin=pod("p", ("c", COUNTING), **change))


def test_what_a_pod_is_made_of_stays(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=pod("p", ("c", COUNTING), nodeSelector={"none": "such"}))
    refused = kubectl.refused("patch", "pod", "p", "-p", '{"spec":{"hostname":"other"}}')
    assert "pod updates may not change fields other than `spec.containers[*].image`" in refused


def test_stateful_set_scales_and_rolls_out(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=stateful_set(2))
    assert "roll out complete: 2 new pods" in kubectl("rollout", "status", "sts/set", "--timeout=60s")
    assert kubectl("get", "sts", "set", "--no-headers").split()[:2] == ["set", "2/2"]
    assert "2 Running" in kubectl("describe", "sts", "set")
    assert kubectl("get", "sts", "-o", "wide", "--no-headers").split()[3:] == ["c", IMAGE]
    kubectl("scale", "sts", "set", "--replicas=3")
    kubectl("wait", "--for=jsonpath={.status.readyReplicas}=3", "sts/set", "--timeout=60s")
    refused = kubectl.refused("scale", "sts", "set", "--replicas=1", "--current-replicas=7")
    assert "Expected replicas to be 7, was 3" in refused
    kubectl("set", "env", "sts/set", "STAGE=two")
    assert "roll out complete: 3 new pods" in kubectl("rollout", "status", "sts/set", "--timeout=90s")
    stages = kubectl("get", "pods", "-l", "app=set", "-o", "jsonpath={.items[*].spec.containers[0].env[0].value}")
    assert stages.split() == ["two"] * 3
    kubectl("rollout", "restart", "sts/set")
    kubectl("rollout", "status", "sts/set", "--timeout=90s")


def test_deletion_of_an_owner(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=stateful_set(1))
    kubectl("rollout", "status", "sts/set", "--timeout=60s")
    kubectl("delete", "sts", "set", "--cascade=orphan")
    assert kubectl("get", "pods", "-l", "app=set", "-o", "name").split() == ["pod/set-0"]
    kubectl("apply", "-f", "-", stdin=stateful_set(1))
    kubectl("rollout", "status", "sts/set", "--timeout=60s")
    kubectl("delete", "sts", "set", "--cascade=foreground", "--timeout=60s")
    assert kubectl("get", "pods", "-l", "app=set", "-o", "name") == ""


def test_pod_is_deleted_by_force(kubectl: Kubectl) -> None:
    deaf = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)"
    kubectl("apply", "-f", "-", stdin=pod("p", ("c", deaf), terminationGracePeriodSeconds=300))
    kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=60s")
    kubectl("delete", "pod", "p", "--wait=false")
    assert kubectl("get", "pod", "p", "--no-headers").split()[2] == "Terminating"
    kubectl("delete", "pod", "p", "--grace-period=0", "--force", "--timeout=60s")
    assert "not found" in kubectl.refused("get", "pod", "p")


def test_deployment(kubectl: Kubectl) -> None:
    # PID 1 ignores a SIGTERM that it has no handler for, and would take its 30 s.
    ends = "trap exit TERM; sleep 300 & wait"
    kubectl("create", "deployment", "web", f"--image={IMAGE}", "--replicas=2", "--", "sh", "-c", ends)
    assert 'deployment "web" successfully rolled out' in kubectl("rollout", "status", "deploy/web", "--timeout=60s")
    assert kubectl("get", "deploy", "web", "--no-headers").split()[:4] == ["web", "2/2", "2", "2"]
    owned = kubectl("get", "rs", "--no-headers").split()
    assert owned[1:4] == ["2", "2", "2"]
    kubectl("delete", "deploy", "web", "--timeout=60s")
    kubectl("wait", "--for=delete", "pod", "-l", "app=web", "--timeout=60s")


def test_quota_refuses_what_exceeds_it(kubectl: Kubectl) -> None:
    kubectl("create", "quota", "few", "--hard=pods=1,requests.nvidia.com/gpu=1")
    refused = kubectl.refused(
        "create",
        "-f",
        "-",
        stdin=pod("p", ("c", COUNTING)).replace('"image"', '"resources": {"limits": {"nvidia.com/gpu": 2}}, "image"'),
    )
    assert 'pods "p" is forbidden: exceeded quota: few, requested: requests.nvidia.com/gpu=2, used:' in refused
    kubectl("create", "-f", "-", stdin=pod("p", ("c", COUNTING), nodeSelector={"none": "such"}))
    refused = kubectl.refused("create", "-f", "-", stdin=pod("q", ("c", COUNTING)))
    assert refused.endswith("exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1")

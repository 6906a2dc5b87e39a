"""The local cluster's nodes and pods work beyond the recorded scenarios: volumes, lost nodes, faked pods, owners."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any

import pytest

from trainmaster_local.config import NodeConfig, Taint
from trainmaster_local.testing.clusters import Cluster

pytestmark = pytest.mark.usefixtures("pods_run")

Object = dict[str, Any]

POLITE = "import signal,sys,time\nsignal.signal(15, lambda *a: sys.exit(0))\n"


def pod(name: str, program: str, **spec: Any) -> Object:
    """Returns a pod with one Python program that ends at SIGTERM."""
    container = {"name": "c", "image": "python:3.12", "command": ["python3", "-u", "-c", POLITE + program]}
    container |= spec.pop("container", {})
    metadata = {"name": name, "annotations": spec.pop("annotations", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 2, **spec},
    }


def stateful_set(name: str, replicas: int, program: str, **spec: Any) -> Object:
    template = pod(name, program, **spec)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "serviceName": name,
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}, "annotations": template["metadata"]["annotations"]},
                "spec": template["spec"],
            },
        },
    }


def ready(cluster: Cluster, name: str) -> bool:
    statuses = (cluster.get("pod", name).get("status") or {}).get("containerStatuses") or []
    return bool(statuses) and all(status["ready"] for status in statuses)


def test_downward_api_files_follow_a_patch(cluster: Cluster) -> None:
    """`pkg/volume/downwardapi`: a real kubelet takes 0.1 to 0.25 s."""
    program = (
        "seen = None\nfor _ in range(3000):\n"
        "    now = open('/podinfo/note').read()\n"
        "    if now != seen: print(now, time.time()); seen = now\n"
        "    time.sleep(0.01)"
    )
    item = {"path": "note", "fieldRef": {"fieldPath": "metadata.annotations['note']"}}
    cluster.apply(
        pod(
            "reader",
            program,
            annotations={"note": "one"},
            volumes=[{"name": "podinfo", "downwardAPI": {"items": [item]}}],
            container={"volumeMounts": [{"name": "podinfo", "mountPath": "/podinfo"}]},
        )
    )
    cluster.eventually(lambda: "one" in cluster.log("reader"))
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/reader"
    began = time.time()
    status, _ = cluster.request(
        "PATCH", path, {"metadata": {"annotations": {"note": "two"}}}, content_type="application/merge-patch+json"
    )
    assert status == 200
    line = cluster.eventually(lambda: next((x for x in cluster.log("reader").splitlines() if "two" in x), None))
    assert float(line.split()[1]) - began < 10.0


def test_volumes_env_and_paths_are_as_the_manifest_says(cluster: Cluster) -> None:
    """ConfigMaps, Secrets, env sources and `$(NAME)`, subPath: paths in args, env and ConfigMaps refer to the
    mounts.
    """
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "settings"},
            "data": {"config.yaml": "dir: /work/data\n", "LEVEL": "high"},
        },
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"password": "s3cret"}},
        pod(
            "uses",
            "import os\n"
            "print(os.environ['GREETING'], os.environ['LEVEL'], os.environ['PASSWORD'], os.environ['CPUS'])\n"
            "open('/work/data/x', 'w').write('written')\n"
            "where = open('/etc/app/config.yaml').read().split()[1]\n"
            "print(open(where + '/x').read(), os.environ['WHERE'] == where, os.getcwd() == where)\n"
            "print(open('/one').read())\n",
            restartPolicy="Never",
            volumes=[
                {"name": "settings", "configMap": {"name": "settings"}},
                {"name": "data", "emptyDir": {"medium": "Memory"}},
            ],
            container={
                "workingDir": "/work/data",
                "resources": {"limits": {"cpu": "1500m"}},
                "envFrom": [{"configMapRef": {"name": "settings"}}],
                "env": [
                    {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "GREETING", "value": "hello-$(NAME)-$$(NAME)-$(UNKNOWN)"},
                    {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "key", "key": "password"}}},
                    {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                    {"name": "WHERE", "value": "/work/data"},
                ],
                "volumeMounts": [
                    {"name": "settings", "mountPath": "/etc/app"},
                    {"name": "settings", "mountPath": "/one", "subPath": "LEVEL"},
                    {"name": "data", "mountPath": "/work/data"},
                ],
            },
        ),
    )
    cluster.eventually(lambda: cluster.get("pod", "uses")["status"]["phase"] in ("Succeeded", "Failed"))
    assert cluster.log("uses").splitlines() == [
        "hello-uses-$(NAME)-$(UNKNOWN) high s3cret 2",
        "written True True",
        "high",
    ]


def test_a_claim_outlives_its_pods(cluster: Cluster) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    mount = {
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
        "container": {"volumeMounts": [{"name": "v", "mountPath": "/data"}]},
        "restartPolicy": "Never",
    }
    cluster.apply(claim, pod("writer", "open('/data/x', 'w').write('kept')", **json.loads(json.dumps(mount))))
    cluster.eventually(lambda: cluster.get("pod", "writer")["status"]["phase"] == "Succeeded")
    cluster.kubectl("delete", "pod", "writer")
    cluster.apply(pod("reader", "print(open('/data/x').read())", **mount))
    cluster.eventually(lambda: "kept" in cluster.log("reader"))


def test_a_liveness_probe_restarts_its_container(cluster: Cluster) -> None:
    probe = {"httpGet": {"port": 1}, "periodSeconds": 1, "failureThreshold": 1}
    cluster.apply(pod("sick", "time.sleep(600)", container={"livenessProbe": probe}))

    def restarted() -> bool:
        statuses = cluster.get("pod", "sick")["status"].get("containerStatuses") or []
        return any(status["restartCount"] >= 1 for status in statuses)

    cluster.eventually(restarted)

    address = cluster.get("pod", "sick")["status"]["podIP"]

    def told() -> bool:
        messages = [event["message"] for event in cluster.items("events")]
        failed = any(
            message.startswith(f'Liveness probe failed: Get "http://{address}:1/": dial tcp {address}:1:')
            for message in messages
        )
        return failed and "Container c failed liveness probe, will be restarted" in messages

    cluster.eventually(told, what="the probe's failure in the events")


def test_hooks_run_after_a_start_and_before_a_stop(cluster: Cluster) -> None:
    """preStop has the pod's whole grace period, even if something other than a deletion stops the pod."""
    tell = (
        "import signal, sys, time, os\n"
        "def end(*_):\n"
        "    print('seen:', *sorted(os.listdir('/work')), flush=True)\n"
        "    sys.exit(0)\n"
        "signal.signal(15, end)\n"
        "time.sleep(600)\n"
    )
    cluster.apply(
        pod(
            "hooked",
            tell,
            container={
                "volumeMounts": [{"name": "work", "mountPath": "/work"}],
                "lifecycle": {
                    "postStart": {"exec": {"command": ["sh", "-c", "touch /work/after-start"]}},
                    "preStop": {"exec": {"command": ["sh", "-c", "sleep 2.5; touch /work/before-stop"]}},
                },
            },
            volumes=[{"name": "work", "emptyDir": {}}],
            terminationGracePeriodSeconds=30,
            activeDeadlineSeconds=2,
        )
    )
    cluster.eventually(lambda: cluster.get("pod", "hooked")["status"]["phase"] == "Failed", 60)
    cluster.eventually(lambda: "seen: after-start before-stop" in cluster.log("hooked"), what="both in the log")


def test_pods_of_a_lost_node_are_replaced_once_it_is_known_to_be_gone(cluster: Cluster) -> None:
    """`tainteviction`, `podgc`: the pods are Terminating after the toleration; removing the node frees the name."""
    embedded = cluster.embedded
    name = f"{cluster.namespace}-spare"
    taint = Taint("only", cluster.namespace)
    node = NodeConfig(name=name, cpu="4", memory="4Gi", labels={"for": cluster.namespace}, taints=(taint,))
    embedded.call(embedded.cluster.add_node(node))
    tolerations = [
        {"key": "only", "operator": "Exists"},
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0},
    ]
    affinity = {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "preference": {"matchExpressions": [{"key": "for", "operator": "Exists"}]}}
            ]
        }
    }
    made = stateful_set("work", 1, "time.sleep(600)", tolerations=tolerations, affinity=affinity)
    made["spec"]["template"]["spec"]["nodeSelector"] = {"for": cluster.namespace}
    cluster.apply(made)
    cluster.eventually(lambda: ready(cluster, "work-0"))
    first = cluster.get("pod", "work-0")
    assert first["spec"]["nodeName"] == name
    embedded.call(embedded.cluster.lose_node(name))
    cluster.eventually(lambda: cluster.get("pod", "work-0")["metadata"].get("deletionTimestamp"), 60, "eviction")

    def not_ready() -> Object | None:
        found = cluster.get("pod", "work-0")
        states = {entry["type"]: entry["status"] for entry in found["status"]["conditions"]}
        return found if states["Ready"] == "False" else None

    lost = cluster.eventually(not_ready, what="not ready")
    conditions = {entry["type"]: entry for entry in lost["status"]["conditions"]}
    assert conditions["DisruptionTarget"]["reason"] == "DeletionByTaintManager"
    assert lost["metadata"]["uid"] == first["metadata"]["uid"]
    ready_condition = next(e for e in cluster.get("node", name)["status"]["conditions"] if e["type"] == "Ready")
    assert (ready_condition["status"], ready_condition["reason"]) == ("Unknown", "NodeStatusUnknown")
    embedded.call(embedded.cluster.remove_node(name))
    cluster.eventually(
        lambda: cluster.get("pod", "work-0")["metadata"]["uid"] != first["metadata"]["uid"], 60, "a successor"
    )
    message = cluster.eventually(
        lambda: next(
            (
                entry.get("message")
                for entry in cluster.get("pod", "work-0")["status"].get("conditions") or []
                if entry["type"] == "PodScheduled" and entry["status"] == "False"
            ),
            None,
        )
    )
    assert "node(s) didn't match Pod's node affinity/selector" in message


def test_a_lost_node_that_comes_back_ends_what_was_deleted(cluster: Cluster) -> None:
    embedded = cluster.embedded
    name = f"{cluster.namespace}-spare"
    embedded.call(embedded.cluster.add_node(NodeConfig(name=name, labels={"for": cluster.namespace})))
    try:
        cluster.apply(pod("stays", "time.sleep(600)", nodeSelector={"for": cluster.namespace}))
        cluster.eventually(lambda: ready(cluster, "stays"))
        embedded.call(embedded.cluster.lose_node(name, kill=False))
        cluster.kubectl("delete", "pod", "stays", "--wait=false")
        time.sleep(0.5)
        assert cluster.get("pod", "stays")["metadata"]["deletionTimestamp"]
        embedded.call(embedded.cluster.recover_node(name))
        cluster.kubectl("wait", "--for=delete", "pod/stays", "--timeout=60s")
    finally:
        embedded.call(embedded.cluster.remove_node(name))


def test_faked_pods_end_as_their_annotation_says(cluster: Cluster) -> None:
    assert cluster.embedded
    fake = "trainmaster-local/fake"
    cluster.apply(pod("fake", "no program", annotations={fake: "{}"}, restartPolicy="Never"))
    cluster.eventually(lambda: ready(cluster, "fake"))
    script = json.dumps({"exitCode": 3, "message": "scripted"})
    cluster.kubectl("annotate", "pod", "fake", f"{fake}={script}", "--overwrite")
    cluster.eventually(lambda: cluster.get("pod", "fake")["status"]["phase"] == "Failed")
    state = cluster.get("pod", "fake")["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (state["exitCode"], state["message"]) == (3, "scripted")


def test_owned_objects_go_with_their_owner(cluster: Cluster) -> None:
    """The deletions are background, foreground and orphan (`pkg/controller/garbagecollector`)."""
    for name in ("background", "foreground", "orphan"):
        cluster.apply(stateful_set(name, 1, "time.sleep(600)", annotations={"trainmaster-local/fake": "{}"}))
    for name in ("background", "foreground", "orphan"):
        cluster.eventually(partial(ready, cluster, f"{name}-0"))
        cluster.kubectl("delete", "statefulset", name, f"--cascade={name}")
    cluster.eventually(lambda: [p["metadata"]["name"] for p in cluster.items("pods")] == ["orphan-0"])
    left = cluster.items("pods")[0]
    assert not left["metadata"].get("ownerReferences")


def test_ordered_sets_start_one_by_one_and_roll_backwards(cluster: Cluster) -> None:
    made = stateful_set("ordered", 3, "time.sleep(600)", annotations={"trainmaster-local/fake": "{}"})
    made["spec"]["podManagementPolicy"] = "OrderedReady"
    cluster.apply(made)
    cluster.kubectl("rollout", "status", "statefulset/ordered", "--timeout=60s")
    created = sorted(cluster.items("pods"), key=lambda p: int(p["metadata"]["resourceVersion"]))
    before = {p["metadata"]["name"]: p["metadata"]["uid"] for p in created}
    made["spec"]["template"]["metadata"]["labels"]["version"] = "two"
    cluster.apply(made)
    cluster.kubectl("rollout", "status", "statefulset/ordered", "--timeout=60s")
    after = {p["metadata"]["name"]: p["metadata"]["uid"] for p in cluster.items("pods")}
    assert set(before) == set(after) == {"ordered-0", "ordered-1", "ordered-2"}
    assert not set(before.values()) & set(after.values())
    status = cluster.get("statefulset", "ordered")["status"]
    assert status["currentRevision"] == status["updateRevision"]
    assert status["updatedReplicas"] == status["readyReplicas"] == 3


def test_a_deployment_rolls_out_and_back(cluster: Cluster) -> None:
    deployment: Object = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}, "annotations": {"trainmaster-local/fake": "{}"}},
                "spec": {"containers": [{"name": "c", "image": "python:3.12", "env": [{"name": "V", "value": "1"}]}]},
            },
        },
    }
    cluster.apply(deployment)
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    deployment["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"] = "2"
    cluster.apply(deployment)
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    cluster.kubectl("rollout", "undo", "deployment/web")
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    cluster.eventually(lambda: {p["spec"]["containers"][0]["env"][0]["value"] for p in cluster.items("pods")} == {"1"})
    cluster.kubectl("delete", "deployment", "web")
    cluster.eventually(lambda: not cluster.items("pods") and not cluster.items("replicasets"))


def test_a_pod_reaches_the_api_with_its_own_token(cluster: Cluster) -> None:
    cluster.shared.needs_embedded("an image of Python has no kubectl")
    program = (
        "import os, subprocess\n"
        "done = subprocess.run(['kubectl', 'auth', 'whoami', '-o', 'jsonpath={.status.userInfo.username}'],"
        " capture_output=True, text=True)\nprint(done.stdout, done.stderr)\n"
    )
    cluster.apply(pod("client", program, restartPolicy="Never"))
    cluster.eventually(lambda: cluster.get("pod", "client")["status"]["phase"] in ("Succeeded", "Failed"))
    assert f"system:serviceaccount:{cluster.namespace}:default" in cluster.log("client")

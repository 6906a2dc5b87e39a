"""Pods behave as on a real kubelet: the recorded scenarios of local/tests/data/kubernetes-pods.jsonl are replayed.

Each scenario creates the recorded objects, repeats the recorded changes (deletes, scales, makes a ConfigMap), and
watches. The *order of a watcher's views* must be the same: phases, conditions with their reasons and messages,
container states with exit codes, reasons and messages, restart counts, readiness, deletion; and the events with their
words. Times aren't compared; uids, addresses, image ids and the node's name are first replaced on both sides.

States that last long on one kubelet and short on another are compared as a path: consecutive equal views are one. If
the recording ends in the middle of a loop (crash back-off), the replay has to get at least as far.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from local.tests.cluster.conformance.cluster_under_test import skip_unless_recorded
from trainmaster_local.testing.clusters import Cluster

Object = dict[str, Any]

RECORDINGS = Path(__file__).parents[2] / "data" / "kubernetes-pods.jsonl"
SCENARIOS: list[Object] = [json.loads(line) for line in RECORDINGS.read_text().splitlines()]

# A watcher's view, without the parts that differ between two clusters.
View = tuple[Any, ...]


def _plain(text: str, namespace: str) -> str:
    """Returns a message without uids, addresses, the namespace and the DNS server's address."""
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<uid>", text)
    text = re.sub(r"\b\d+\.\d+\.\d+\.\d+(:\d+)?\b", "<address>", text)
    text = text.replace(f"_{namespace}(", "_<namespace>(").replace(f" {namespace}/", " <namespace>/")
    return re.sub(r" to [\w.-]+$", " to <node>", text) if text.startswith("Successfully assigned") else text


def _state(state: Object, namespace: str) -> View:
    if not state:
        return ()
    kind, value = next(iter(state.items()))
    return (kind, value.get("reason", ""), value.get("exitCode"), _plain(value.get("message", ""), namespace))


def _container(status: Object, namespace: str) -> View:
    return (
        status["name"],
        _state(status.get("state") or {}, namespace),
        _state(status.get("lastState") or {}, namespace),
        status["ready"],
        status["restartCount"],
        status.get("started"),
        bool(status.get("containerID")),
        status["image"],
    )


def view(kind: str, pod: Object, namespace: str) -> View:
    """Returns the view of one event of the watch."""
    status, metadata = pod.get("status") or {}, pod["metadata"]
    conditions = tuple(
        (
            entry["type"],
            entry["status"],
            entry.get("reason", ""),
            _plain(entry.get("message", ""), namespace),
            entry.get("observedGeneration"),
        )
        for entry in status.get("conditions") or []
    )
    containers = tuple(
        _container(entry, namespace)
        for key in ("initContainerStatuses", "containerStatuses")
        for entry in status.get(key) or []
    )
    # ADDED or MODIFIED depends only on when the watch began.
    return (
        "gone" if kind == "DELETED" else "there",
        status.get("phase"),
        bool(metadata.get("deletionTimestamp")),
        metadata.get("deletionGracePeriodSeconds"),
        metadata.get("generation"),
        status.get("observedGeneration"),
        bool(status.get("podIP")),
        bool(status.get("hostIP")),
        status.get("qosClass"),
        conditions,
        containers,
    )


def path(changes: list[tuple[str, Object]], namespace: str) -> list[View]:
    """Returns the views of one pod in order, consecutive equal ones once."""
    found: list[View] = []
    for kind, pod in changes:
        seen = view(kind, pod, namespace)
        if not found or found[-1] != seen:
            found.append(seen)
    return found


class Recorder:
    """Watches the namespace's pods from the start of a scenario, on a thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.changes: list[tuple[str, Object]] = []
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._ready = threading.Event()

    def __enter__(self) -> Recorder:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *error: object) -> None:
        """Waits for the watch's own time limit, because another thread can't close a blocked read."""

    def _watch(self) -> None:
        path = f"/api/v1/namespaces/{self._cluster.namespace}/pods?watch=1&resourceVersion=0&timeoutSeconds=60"
        request = urllib.request.Request(self._cluster.server + path, headers=self._cluster.shared.headers)
        try:
            with urllib.request.urlopen(request, context=self._cluster.shared.tls) as response:
                self._ready.set()
                for line in response:
                    change = json.loads(line)
                    self.changes.append((change["type"], change["object"]))
        except OSError:
            return  # the cluster ended first

    def of(self, uid_order: int, name: str) -> list[tuple[str, Object]]:
        """Returns the changes of the nth pod with this name."""
        uids: list[str] = []
        for _, pod in self.changes:
            if pod["metadata"]["name"] == name and pod["metadata"]["uid"] not in uids:
                uids.append(pod["metadata"]["uid"])
        if uid_order >= len(uids):
            return []
        return [change for change in list(self.changes) if change[1]["metadata"]["uid"] == uids[uid_order]]


def _pods_of(scenario: Object) -> Iterator[tuple[str, int, list[tuple[str, Object]]]]:
    """Returns for each recorded pod its name, its number among the pods of that name, and its changes."""
    order: dict[str, list[str]] = {}
    for entry in scenario["watch"]:
        metadata = entry["object"]["metadata"]
        uids = order.setdefault(metadata["name"], [])
        if metadata["uid"] not in uids:
            uids.append(metadata["uid"])
    for name, uids in order.items():
        for index, uid in enumerate(uids):
            changes = [
                (entry["type"], entry["object"])
                for entry in scenario["watch"]
                if entry["object"]["metadata"]["uid"] == uid
            ]
            yield name, index, changes


def _recorded_namespace(scenario: Object) -> str:
    return str(scenario["watch"][0]["object"]["metadata"]["namespace"])


def _create(cluster: Cluster, scenario: Object) -> None:
    for obj in scenario["created"]:
        made = {"apiVersion": "v1", "kind": "Pod", **obj}
        plural = {"Pod": "pods", "StatefulSet": "statefulsets"}[made["kind"]]
        root = "/api/v1" if made["apiVersion"] == "v1" else f"/apis/{made['apiVersion']}"
        status, answer = cluster.request("POST", f"{root}/namespaces/{cluster.namespace}/{plural}", made)
        assert status == 201, answer


def _act(cluster: Cluster, scenario: Object, recorder: Recorder) -> None:
    """Repeats the recorded changes, each when the objects are in the recorded state."""
    pods = f"/api/v1/namespaces/{cluster.namespace}/pods"

    def ready(name: str, order: int = 0) -> bool:
        changes = recorder.of(order, name)
        statuses = (changes[-1][1].get("status") or {}).get("containerStatuses") or [] if changes else []
        return bool(statuses) and all(status["ready"] for status in statuses)

    if "ConfigMap" in scenario["title"]:
        cluster.eventually(lambda: "CreateContainerConfigError" in json.dumps(recorder.changes), 60, "the error")
        cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "later"}, "data": {"A": "1"}})
    for note in scenario["notes"]:
        words = re.match(r"deleted (\S+?)(\?gracePeriodSeconds=0)?( by force)? after", note)
        if words:
            name, forced = words.group(1), bool(words.group(2) or words.group(3))
            cluster.eventually(partial(ready, name), 60, f"{name} ready")
            # The recorded programs had been up for seconds, so their signal handlers were set.
            time.sleep(0.7)
            query = "?gracePeriodSeconds=0" if forced else ""
            status, answer = cluster.request("DELETE", f"{pods}/{name}{query}")
            assert status == 200, answer
            if "StatefulSet" in scenario["title"]:
                cluster.eventually(partial(ready, name, 1), 60, f"{name}'s successor ready")
        if note.startswith("scaled to 0"):
            scale = f"/apis/apps/v1/namespaces/{cluster.namespace}/statefulsets/set/scale"
            status, answer = cluster.request(
                "PATCH", scale, {"spec": {"replicas": 0}}, content_type="application/merge-patch+json"
            )
            assert status == 200, answer


def _reached(wanted: list[View], got: list[View]) -> bool:
    return got[: len(wanted)] == wanted


def _comparable(views: list[View], title: str) -> list[View]:
    """Returns the views that have to be the same."""
    if "image isn't there" in title:
        # The first error is shown until the back-off's, which depends on the kubelet's next sync.
        return views[:6]
    return views


@pytest.mark.usefixtures("pods_run")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario["title"] for scenario in SCENARIOS])
def test_pods_go_through_the_recorded_states(cluster: Cluster, scenario: Object) -> None:
    """The states come from `pkg/kubelet/kuberuntime`, `pkg/kubelet/status` and `pkg/controller/statefulset` in
    Kubernetes 1.36.
    """
    skip_unless_recorded(cluster.request("GET", "/version")[1])
    if cluster.shared.embedded is None and not os.environ.get("TRAINMASTER_TEST_RECORDED_IMAGE"):
        pytest.skip(
            "set TRAINMASTER_TEST_RECORDED_IMAGE=1 where the nodes have the recorder's image, local/python:test"
        )
    namespace = _recorded_namespace(scenario)
    with Recorder(cluster) as recorder:
        _create(cluster, scenario)
        _act(cluster, scenario, recorder)
        for name, order, recorded in _pods_of(scenario):
            wanted = _comparable(path(recorded, namespace), scenario["title"])

            def same(name: str = name, order: int = order, wanted: list[View] = wanted) -> bool:
                got = _comparable(path(recorder.of(order, name), cluster.namespace), scenario["title"])
                if not _reached(wanted, got):
                    step = next((i for i, (a, b) in enumerate(zip(wanted, got, strict=False)) if a != b), len(got))
                    expected = wanted[step] if step < len(wanted) else "nothing more"
                    assert step == len(got), f"{name} step {step}:\n  recorded {expected}\n  seen     {got[step]}"
                    return False
                return True

            _wait_for_path(cluster, same, f"{name} ({order}) to go through {len(wanted)} states")
    _compare_events(cluster, scenario, namespace)


def _wait_for_path(cluster: Cluster, same: Any, what: str) -> None:
    """Fails at once if a state was wrong, and after a while if one didn't come."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if same():
            return
        time.sleep(0.05)
    pytest.fail(f"not within 60 s: {what}")


def _event_key(event: Object, namespace: str) -> tuple[str, str, str, str]:
    about = event.get("about") or f"{event['involvedObject']['kind']}/{event['involvedObject']['name']}"
    return (about, event["type"], event["reason"], _plain(event["message"], namespace))


def _compare_events(cluster: Cluster, scenario: Object, namespace: str) -> None:
    """Checks that exactly the recorded events come, in the order of first occurrence for each object."""
    wanted = list(dict.fromkeys(_event_key(event, namespace) for event in scenario["events"]))

    def events() -> list[tuple[str, str, str, str]]:
        found = cluster.items("events")
        found.sort(key=lambda event: int(event["metadata"]["resourceVersion"]))
        found.sort(key=lambda event: event.get("firstTimestamp") or event.get("eventTime") or "")
        return list(dict.fromkeys(_event_key(event, cluster.namespace) for event in found))

    cluster.eventually(lambda: set(wanted) <= set(events()), 60, f"events {set(wanted) - set(events())}")
    extra = set(events()) - set(wanted)
    assert not extra
    sources = {event["reason"]: event["from"] for event in scenario["events"]}
    for event in cluster.items("events"):
        source = (event.get("source") or {}).get("component") or event.get("reportingComponent")
        assert source == sources[event["reason"]]

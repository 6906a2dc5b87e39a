"""A StatefulSet's next action is the one that `pkg/controller/statefulset/stateful_set_control.go` chooses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainmaster_local.controllers.revisions import revision_hash
from trainmaster_local.controllers.statefulset import Plan, build_pod, ordinal, plan, status

Object = dict[str, Any]

API = [
    json.loads(line) for line in (Path(__file__).parents[2] / "data" / "kubernetes-api.jsonl").read_text().splitlines()
]


def made_set(replicas: int = 3, **spec: Any) -> Object:
    spec = {"podManagementPolicy": "Parallel", "serviceName": "web", **spec}
    metadata = {"name": "web", "namespace": "ns", "uid": "u", "generation": 4}
    return {"metadata": metadata, "spec": {"replicas": replicas, **spec}}


def pod(
    number: int, phase: str = "Running", revision: str = "new", ready: bool = True, terminating: bool = False
) -> Object:
    metadata: Object = {"name": f"web-{number}", "labels": {"controller-revision-hash": revision}}
    if terminating:
        metadata["deletionTimestamp"] = "2026-11-21T00:00:00Z"
    condition = {
        "type": "Ready",
        "status": "True" if ready and phase == "Running" else "False",
        "lastTransitionTime": "2026-11-21T00:00:00Z",
    }
    return {"metadata": metadata, "status": {"phase": phase, "conditions": [condition]}}


def decide(statefulset: Object, *pods: Object, now: float = 4e9) -> Plan:
    return plan(statefulset, pods, "new", now)


def test_parallel_creates_all_at_once_and_ordered_one_by_one() -> None:
    assert decide(made_set()) == Plan(create=(0, 1, 2))
    ordered = made_set(podManagementPolicy="OrderedReady")
    assert decide(ordered) == Plan(create=(0,))
    assert decide(ordered, pod(0, ready=False)) == Plan()
    assert decide(ordered, pod(0)) == Plan(create=(1,))


def test_ordinals_start_where_the_set_says() -> None:
    assert decide(made_set(2, ordinals={"start": 5})) == Plan(create=(5, 6))
    assert decide(made_set(1, ordinals={"start": 5}), pod(4), pod(5), pod(6)).delete == ("web-6", "web-4")


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_pods_that_ended_are_deleted_first(phase: str) -> None:
    assert decide(made_set(2), pod(0), pod(1, phase)) == Plan(delete=("web-1",))


def test_a_terminating_pod_is_never_replaced_before_it_is_gone() -> None:
    assert decide(made_set(1), pod(0, terminating=True)) == Plan()
    assert decide(made_set(1), pod(0, "Failed", terminating=True)) == Plan()


def test_scaling_down_goes_backwards() -> None:
    pods = [pod(number) for number in range(3)]
    assert decide(made_set(0), *pods).delete == ("web-2", "web-1", "web-0")
    ordered = made_set(0, podManagementPolicy="OrderedReady")
    assert decide(ordered, *pods).delete == ("web-2",)
    assert decide(ordered, pod(0), pod(1), pod(2, terminating=True)) == Plan()


def test_rolling_updates_replace_backwards_one_at_a_time() -> None:
    rolling = made_set(3, updateStrategy={"type": "RollingUpdate"})
    old = [pod(number, revision="old") for number in range(3)]
    assert decide(rolling, *old).delete == ("web-2",)
    assert decide(rolling, old[0], old[1], pod(2, ready=False)) == Plan()
    assert decide(rolling, old[0], old[1], pod(2)).delete == ("web-1",)
    parted = made_set(3, updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"partition": 2}})
    assert decide(parted, old[0], old[1], pod(2)) == Plan()


def test_on_delete_leaves_old_pods() -> None:
    assert decide(made_set(1, updateStrategy={"type": "OnDelete"}), pod(0, revision="old")) == Plan()


def test_a_deleted_set_does_nothing() -> None:
    statefulset = made_set()
    statefulset["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
    assert decide(statefulset) == Plan()


def test_availability_waits_for_min_ready_seconds() -> None:
    statefulset = made_set(2, podManagementPolicy="OrderedReady", minReadySeconds=10)
    ready_at = 1795219200.0  # 2026-11-21T00:00:00Z
    assert decide(statefulset, pod(0), now=ready_at + 4) == Plan(available_in=6.0)
    assert decide(statefulset, pod(0), now=ready_at + 10) == Plan(create=(1,))


def test_hashes_are_those_of_a_real_cluster() -> None:
    """The revisions were recorded in local/tests/data/kubernetes-api.jsonl."""
    for title in ("StatefulSet: status", "StatefulSet: status after a template patch under OnDelete"):
        body = next(case for case in API if case["title"] == title)["response"]["body"]
        name = f"s-{revision_hash(body['spec']['template'])}"
        assert name == body["status"]["updateRevision"]


def test_a_pod_has_its_identity() -> None:
    """The recorded pod is `s-3` of a set with ordinals.start 3."""
    recorded = next(case for case in API if case["title"].startswith("StatefulSet's pod with ordinals.start"))
    want = recorded["response"]["body"]
    owner = next(case for case in API if case["title"] == "StatefulSet: status")["response"]["body"]
    got = build_pod(owner, owner["spec"]["template"], owner["status"]["updateRevision"], 3)
    for key in ("name", "generateName", "namespace", "labels", "ownerReferences"):
        assert got["metadata"][key] == want["metadata"][key]
    assert (got["spec"]["hostname"], got["spec"]["subdomain"]) == ("s-3", "s")


def test_status_counts_and_leaves_zeros_out() -> None:
    pods = [pod(0), pod(1, ready=False), pod(2, revision="old", terminating=True)]
    assert status(made_set(3), pods, "old", "new", 0, 4e9) == {
        "observedGeneration": 4,
        "replicas": 3,
        "readyReplicas": 2,
        "updatedReplicas": 2,
        "currentRevision": "old",
        "updateRevision": "new",
        "collisionCount": 0,
        "availableReplicas": 2,
    }


def test_names_that_are_not_the_set_s_have_no_ordinal() -> None:
    assert [ordinal(name, "web") for name in ("web-0", "web-10", "web-01", "web-x", "webs-1")] == [
        0,
        10,
        None,
        None,
        None,
    ]

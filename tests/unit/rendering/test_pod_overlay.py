"""The operator's additions to pods are merged into any podTemplate."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster_operator.rendering.render import Placement, lay_over
from trainmaster_operator.rendering.render import overlay as rendered

POD: dict[str, Any] = {
    "metadata": {"labels": {"app": "mine"}},
    "spec": {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "a", "operator": "Exists"}]},
}
PLACEMENT = Placement(
    node_selector=(("pool", "a100"),),
    tolerations=tuple({"key": key, "operator": "Exists"} for key in ("a", "b")),
    labels=(("kueue.x-k8s.io/podset", "worker"),),
)


def overlay(scheduler: Any = None, placement: Placement | None = None, avoided: tuple[str, ...] = ()) -> Any:
    return rendered("bert", scheduler, placement or Placement(), avoided)


def test_what_kueue_admitted_is_added_and_nothing_is_lost() -> None:
    pod = lay_over(POD, overlay("kueue", PLACEMENT))
    assert pod["metadata"]["labels"] == {"app": "mine", "kueue.x-k8s.io/podset": "worker"}
    assert pod["spec"]["nodeSelector"] == {"disk": "ssd", "pool": "a100"}
    assert [one["key"] for one in pod["spec"]["tolerations"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("scheduler", "path", "value"),
    [
        ("volcano", ("metadata", "annotations", "scheduling.k8s.io/group-name"), "bert"),
        ("coscheduling", ("metadata", "labels", "scheduling.x-k8s.io/pod-group"), "bert"),
        ("kubernetes", ("spec", "schedulingGroup"), {"podGroupName": "bert"}),
    ],
)
def test_a_gangs_pods_name_their_group(scheduler: str, path: tuple[str, ...], value: Any) -> None:
    found: Any = lay_over(POD, overlay(scheduler))
    for name in path:
        found = found[name]
    assert found == value


def test_avoided_nodes_join_the_jobs_own_affinity() -> None:
    own = {"weight": 1, "preference": {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}}
    name = "preferredDuringSchedulingIgnoredDuringExecution"
    pod = {**POD, "spec": {"affinity": {"nodeAffinity": {name: [own]}, "podAffinity": {}}}}
    affinity = lay_over(pod, overlay(avoided=("n1", "n2")))["spec"]["affinity"]
    assert affinity["podAffinity"] == {}
    first, added = affinity["nodeAffinity"][name]
    assert first == own
    assert [field["values"] for field in added["preference"]["matchFields"]] == [["n1"], ["n2"]]


def test_an_empty_overlay_adds_nothing() -> None:
    assert lay_over(POD, overlay()) == POD
    assert overlay() == overlay("kueue") == {}

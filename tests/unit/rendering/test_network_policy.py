"""A job's NetworkPolicy decides who may connect to its pods. The manifests are golden/network-policy*.yaml."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster_operator.api.parsing import parse_spec
from trainmaster_operator.api.v1alpha1 import JobIdentity
from trainmaster_operator.rendering import Manifest, NetworkPeers, Settings, first_assignment, render

JOB = JobIdentity("team", "bert", "3f1d6c1e-0000-4000-8000-000000000000")
PEERS = NetworkPeers("trainmaster-system", (("app", "trainmaster"),), ("monitoring", "observability"))


def children(settings: Settings, **spec: Any) -> tuple[Manifest, ...]:
    parsed = parse_spec({"workers": 2, **spec}, JOB.name)
    return render(JOB, parsed, first_assignment(JOB, parsed), settings=settings)


def policies(peers: NetworkPeers | None, **spec: Any) -> list[dict[str, Any]]:
    found = children(Settings(network_peers=peers), **spec)
    return [dict(child.body) for child in found if child.kind == "NetworkPolicy"]


def test_there_is_none_unless_the_settings_say_so() -> None:
    assert policies(None) == []


def test_it_stands_before_the_first_pod() -> None:
    kinds = [child.kind for child in children(Settings(network_peers=PEERS))]
    assert kinds.index("NetworkPolicy") < kinds.index("StatefulSet")


def test_it_selects_the_pods_of_the_job_and_keeps_them_from_connecting_nowhere() -> None:
    (policy,) = policies(PEERS)
    sets = [child.body for child in children(Settings(network_peers=PEERS)) if child.kind == "StatefulSet"]
    selected = policy["spec"]["podSelector"]["matchLabels"]
    assert all(selected.items() <= one["spec"]["template"]["metadata"]["labels"].items() for one in sets)
    assert policy["spec"]["policyTypes"] == ["Ingress"]


def test_all_ports_are_open_to_the_job_s_own_pods_and_the_agents_one_to_who_else_is_named() -> None:
    (policy,) = policies(PEERS)
    own, operator, metrics = policy["spec"]["ingress"]
    assert own == {"from": [{"podSelector": policy["spec"]["podSelector"]}]}
    # A single item means pods with these labels in that namespace; two items would mean either.
    assert [sorted(peer) for peer in operator["from"]] == [["namespaceSelector", "podSelector"]]
    assert operator["ports"] == metrics["ports"] == [{"port": 8472, "protocol": "TCP"}]
    assert metrics["from"][0]["namespaceSelector"]["matchExpressions"][0]["values"] == ["monitoring", "observability"]


def test_pods_on_their_node_s_network_have_none() -> None:
    assert policies(PEERS, interconnect={"hostNetwork": True}) == []


@pytest.mark.parametrize("text", ['"}]}', "a\nb: c", "{{ 7 }}"])
def test_no_value_changes_its_structure(text: str) -> None:
    (plain,), (policy,) = (
        policies(NetworkPeers("x", (("a", "x"),), ("x",))),
        policies(NetworkPeers(text, (("a", text),), (text,))),
    )
    assert policy["spec"]["ingress"][1]["from"][0]["podSelector"]["matchLabels"] == {"a": text}
    assert str(policy["spec"]).replace(repr(text), "'x'") == str(plain["spec"])

"""The local cluster refuses NetworkPolicies as kube-apiserver 1.36 does (these sentences are its own)."""

from __future__ import annotations

from typing import Any

import pytest

from local.tests.unit.kinds.api import refusal, started

POLICIES = "networkpolicies.networking.k8s.io"


def policy(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"podSelector": {}, **spec}}


def block(cidr: str, *excepted: str) -> dict[str, Any]:
    return {"ingress": [{"from": [{"ipBlock": {"cidr": cidr, "except": list(excepted)}}]}]}


def port(**fields: Any) -> dict[str, Any]:
    return {"egress": [{"ports": [fields]}]}


REFUSED = [
    (
        {"policyTypes": ["Both"]},
        'spec.policyTypes[0]: Unsupported value: "Both": supported values: "Ingress", "Egress"',
    ),
    ({"ingress": [{"from": [{}]}]}, "spec.ingress[0].from[0]: Required value: must specify a peer"),
    (
        {"egress": [{"to": [{"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}]}]},
        "spec.egress[0].to[0]: Forbidden: may not specify both ipBlock and another peer",
    ),
    (
        block("10.0.0.1"),
        'spec.ingress[0].from[0].ipBlock.cidr: Invalid value: "10.0.0.1": '
        "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
    ),
    (
        block("10.0.0.0/16", "10.1.0.0/24"),
        'spec.ingress[0].from[0].ipBlock.except[0]: Invalid value: "10.1.0.0/24": must be a strict subset of `cidr`',
    ),
    (
        block("10.0.0.0/16", "10.0.0.0/16"),
        'spec.ingress[0].from[0].ipBlock.except[0]: Invalid value: "10.0.0.0/16": must be a strict subset of `cidr`',
    ),
    (
        port(port=70000),
        "spec.egress[0].ports[0].port: Invalid value: 70000: must be between 1 and 65535, inclusive",
    ),
    (
        port(port=80, protocol="ICMP"),
        'spec.egress[0].ports[0].protocol: Unsupported value: "ICMP": supported values: "TCP", "UDP", "SCTP"',
    ),
    (
        port(port=80, endPort=70),
        "spec.egress[0].ports[0].endPort: Invalid value: 80: must be greater than or equal to `port`",
    ),
    (
        port(port="http", endPort=70),
        "spec.egress[0].ports[0].endPort: Invalid value: 70: may not be specified when `port` is non-numeric",
    ),
    (
        port(endPort=70),
        "spec.egress[0].ports[0].endPort: Invalid value: 70: may not be specified when `port` is not specified",
    ),
]


@pytest.mark.parametrize(("spec", "problem"), REFUSED, ids=str)
async def test_a_wrong_policy_is_refused(spec: dict[str, Any], problem: str) -> None:
    said = await refusal(await started(), POLICIES, policy(**spec))
    assert said == f'NetworkPolicy.networking.k8s.io "p" is invalid: {problem}'


async def test_directions_and_protocols_have_defaults() -> None:
    api = await started()
    made = await api.create(POLICIES, policy(egress=[{"ports": [{"port": 53}]}]), "default")
    assert made["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert made["spec"]["egress"] == [{"ports": [{"port": 53, "protocol": "TCP"}]}]

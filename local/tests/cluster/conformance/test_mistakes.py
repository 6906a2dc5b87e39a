"""Requests with mistakes get the answers of a Kubernetes 1.36.2: server-side applies (`patches.typed`,
`http.yaml_bodies`), creates, and field validation of built-ins and custom resources.

Each is a separate dry run, so they can come in any order.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from local.tests.cluster.conformance.cluster_under_test import skip_unless_recorded
from trainmaster_local.testing.clusters import SharedCluster

DATA = Path(__file__).parents[2] / "data"
CASES = [json.loads(line) for line in (DATA / "mistakes.jsonl").read_text().splitlines()]
GADGETS = "/apis/example.dev/v1/namespaces/default/gadgets"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

Ask = Callable[..., tuple[int, Any, list[str]]]


@pytest.fixture(scope="module")
def ask(shared_cluster: SharedCluster) -> Iterator[Ask]:
    """Sends a request as the administrator; returns status, decoded body and warnings."""
    address = urlsplit(shared_cluster.server)
    assert address.hostname is not None
    connection = http.client.HTTPSConnection(address.hostname, address.port, context=shared_cluster.tls, timeout=30)

    def send(method: str, path: str, body: str = "", content_type: str = "") -> tuple[int, Any, list[str]]:
        headers = {**shared_cluster.headers, "Accept": "application/json"}
        if content_type:
            headers["Content-Type"] = content_type
        connection.request(method, path, body=body.encode(), headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        decoded = json.loads(text) if text.startswith("{") else text
        return answer.status, decoded, answer.headers.get_all("Warning") or []

    skip_unless_recorded(send("GET", "/version")[1])
    send("POST", DEFINITIONS, (DATA / "gadgets.json").read_text(), "application/json")
    deadline = time.monotonic() + 30
    while send("GET", GADGETS)[0] != 200 and time.monotonic() < deadline:
        time.sleep(0.1)
    yield send
    send("DELETE", f"{DEFINITIONS}/gadgets.example.dev")
    connection.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["title"])
def test_mistakes_are_answered_as_kubernetes_does(ask: Ask, case: dict[str, Any]) -> None:
    status, body, warnings = ask(case["method"], case["path"], case["body"], case["type"])
    answer: dict[str, Any] = {"status": status}
    if isinstance(body, str):
        answer["text"] = body
    elif body["kind"] == "Status":
        answer |= {"reason": body.get("reason", ""), "message": body["message"]}
        causes = body.get("details", {}).get("causes") or []
        answer["causes"] = [[cause.get("reason", ""), cause.get("field", ""), cause["message"]] for cause in causes]
    elif "object" in case:
        answer["object"] = {name: body[name] for name in ("data", "binaryData", "spec", "status") if name in body}
    answer["warnings"] = warnings
    recorded = {name: case[name] for name in ("status", "reason", "message", "text", "object") if name in case}
    if "reason" in case:
        recorded["causes"] = case.get("causes", [])
    recorded["warnings"] = case.get("warnings", [])
    assert in_order(answer) == in_order(recorded)


def in_order(answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer in a fixed order, because kube-apiserver goes through a schema's fields in none (Go's
    maps).
    """
    ordered = {**answer, "warnings": sorted(answer["warnings"])}
    if len(answer.get("causes", ())) > 1:
        ordered |= {
            "causes": sorted(answer["causes"]),
            "message": sorted(re.split(r"[\s,\[\]]+", answer["message"])),
        }
    return ordered

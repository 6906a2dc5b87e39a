"""Recorded requests are replayed against a cluster, and the relevant parts of the answers are compared.

The recording (local/tests/data/kubernetes.md) contains the answers of a Kubernetes 1.36. uids, times, resource versions
and addresses differ from cluster to cluster: requests that contain them get those of this cluster, and answers are
compared without them.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import aiohttp

RECORDING = Path(__file__).parents[2] / "data" / "kubernetes-api.jsonl"

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?Z")
_DURATION = re.compile(r"(\d+s|\d+m(\d+s)?)")
_VOLATILE_TEXT = (
    (re.compile(r"kube-api-access-\w{5}"), "kube-api-access-…"),
    (re.compile(r"\bgen-\w{5}\b"), "gen-…"),
    (re.compile(r"\bs-[0-9a-f]{7,10}\b"), "s-<revision>"),
    (re.compile(r"(too old resource version: \d+) \(\d+\)"), r"\1 (…)"),
    (re.compile(r"current: \d+"), "current: …"),
    # Each version of Go quotes this differently.
    (re.compile(r"invalid character '[^']*'"), "invalid character …"),
    # kube-apiserver appends a diff of its internal Go structs.
    (re.compile(r"\n@@ .*", re.DOTALL), ""),
    (_UUID, "<uid>"),
    (_TIME, "<time>"),
)
_VOLATILE_KEYS = frozenset(("resourceVersion", "continue", "resourceVersionHash"))
_VERSION_KEYS = frozenset(
    (
        "minor",
        "emulationMinor",
        "minCompatibilityMinor",
        "gitVersion",
        "gitCommit",
        "buildDate",
        "goVersion",
        "compiler",
        "platform",
    )
)

# The recorder kept one body for these four, changed in place after each request, so the answer shows what was sent.
_LIMITS: dict[str, dict[str, Any]] = {
    "pod: fractional GPU": {"limits": {"nvidia.com/gpu": "1.5"}},
    "pod: GPU request differs from limit": {"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "1"}},
    "pod: GPU request without limit": {"requests": {"nvidia.com/gpu": "1"}},
}


@dataclass
class Case:
    title: str
    method: str
    path: str
    accept: str
    content_type: str | None
    body: Any
    status: int
    answer: Any
    answer_type: str | None
    warnings: list[str]


@dataclass
class Answer:
    status: int
    content_type: str
    body: Any
    warnings: list[str]


def load() -> list[Case]:
    cases = []
    for line in RECORDING.read_text().splitlines():
        entry = json.loads(line)
        request, response = entry["request"], entry["response"]
        body = request.get("body")
        if entry["title"] in _LIMITS:
            body = copy.deepcopy(body)
            body["spec"]["containers"][0]["resources"] = _LIMITS[entry["title"]]
        cases.append(
            Case(
                entry["title"],
                request["method"],
                request["path"],
                request.get("accept", "application/json"),
                request.get("contentType"),
                body,
                response["status"],
                response["body"],
                response.get("contentType"),
                response.get("warnings") or [],
            )
        )
    return cases


@dataclass
class Replay:
    """Runs once through the recording, in order, and keeps the answer to each case."""

    url: str
    # Headers of an administrator's request.
    headers: Mapping[str, str]
    session: aiohttp.ClientSession
    controllers: bool = True
    answers: dict[str, Answer] = field(default_factory=dict)
    _uids: dict[str, str] = field(default_factory=dict)
    _versions: dict[str, str] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _token: str = ""

    async def play(self, case: Case) -> Answer:
        act = _MEANWHILE.get(case.title)
        before = _BEFORE.get(case.title)
        if before is not None:
            await before(self)
        begun = asyncio.Event()
        request = asyncio.create_task(self._send(case, begun))
        if act is not None:
            await begun.wait()
            await act(self)
        answer = await request
        self._learn(case.answer, answer.body)
        self.answers[case.title] = answer
        return answer

    async def _send(self, case: Case, begun: asyncio.Event) -> Answer:
        path = await self._path(case)
        body = case.body
        if body is not None and not isinstance(body, str):
            body = json.dumps(self._translated(body))
        return await self.request(case.method, path, body, case.content_type, case.accept, begun)

    async def request(
        self,
        method: str,
        path: str,
        body: str | None = None,
        content_type: str | None = None,
        accept: str = "application/json",
        begun: asyncio.Event | None = None,
    ) -> Answer:
        """Sends one request. `begun` is set when its answer begins: a watch is open then."""
        # The recorder sent no User-Agent, which makes the field manager `unknown`.
        headers = {**self.headers, "Accept": accept, "User-Agent": ""}
        if content_type:
            headers["Content-Type"] = content_type
        timeout = aiohttp.ClientTimeout(total=30)
        async with self.session.request(
            method, self.url + path, data=body, headers=headers, timeout=timeout
        ) as response:
            if begun is not None:
                begun.set()
            text = await response.text()
            kind = response.headers.get("Content-Type", "")
            return Answer(response.status, kind, _parsed(text, kind), response.headers.getall("Warning", []))

    async def _path(self, case: Case) -> str:
        """Returns the path with this cluster's resource versions and continue token."""
        parts = urlsplit(case.path)
        query = []
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name == "resourceVersion" and 1 < int(value) < 10**9:
                value = await self.version(parts.path)
            if name == "continue" and value != "nonsense":
                value = self._token
            query.append((name, value))
        return urlunsplit(("", "", parts.path, urlencode(query), ""))

    async def version(self, path: str) -> str:
        answer = await self.request("GET", f"{path}?limit=1")
        return str(answer.body["metadata"]["resourceVersion"])

    def _translated(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._translated_field(key, child) for key, child in value.items()}
        if isinstance(value, list):
            return [self._translated(item) for item in value]
        return self._uids.get(value, value) if isinstance(value, str) else value

    def _translated_field(self, key: str, value: Any) -> Any:
        if key == "resourceVersion" and isinstance(value, str):
            return self._versions.get(value, value)
        return self._translated(value)

    def _learn(self, recorded: Any, actual: Any) -> None:
        """Pairs the recording's uids and resource versions with this cluster's."""
        if isinstance(recorded, dict) and isinstance(actual, dict):
            for key, value in recorded.items():
                if key not in actual:
                    continue
                if key == "uid":
                    self._uids[value] = actual[key]
                elif key == "resourceVersion":
                    self._versions[value] = actual[key]
                elif key == "continue" and actual[key]:
                    self._token = actual[key]
                else:
                    self._learn(value, actual[key])
        elif isinstance(recorded, list) and isinstance(actual, list):
            for left, right in zip(recorded, actual, strict=False):
                self._learn(left, right)


def _parsed(text: str, content_type: str) -> Any:
    if not content_type.startswith("application/json"):
        return text
    try:
        body = json.loads(text) if text else []
    except ValueError:
        # A watch has one event per line; /version is one object on several lines.
        return [json.loads(line) for line in text.splitlines() if line]
    return [body] if isinstance(body, dict) and body.keys() == {"type", "object"} else body


async def _change_w1(replay: Replay) -> None:
    """Repeats the recorder's requests while its two watches ran: create w1, patch its size, move its label,
    delete it.
    """
    path = "/apis/example.dev/v1/namespaces/rec/widgets"
    widget = {
        "apiVersion": "example.dev/v1",
        "kind": "Widget",
        "metadata": {"name": "w1", "labels": {"app": "a"}},
        "spec": {"size": 1},
    }
    merge = "application/merge-patch+json"
    await replay.request("POST", path, json.dumps(widget), "application/json")
    await replay.request("PATCH", f"{path}/w1", json.dumps({"spec": {"size": 2}}), merge)
    await replay.request("PATCH", f"{path}/w1", json.dumps({"metadata": {"labels": {"app": "b"}}}), merge)
    await replay.request("DELETE", f"{path}/w1")


async def _wait(replay: Replay, path: str, ready: Callable[[Any], bool], seconds: float = 60) -> None:
    """Waits until the object at `path` is as it was when the recorder asked; the answer is compared in any case."""
    for _ in range(int(seconds * 10)):
        answer = await replay.request("GET", path)
        if ready(answer.body):
            return
        await asyncio.sleep(0.1)


def _condition(kind: str) -> Callable[[Any], bool]:
    def ready(body: Any) -> bool:
        conditions = body.get("status", {}).get("conditions") or []
        return any(condition["type"] == kind for condition in conditions)

    return ready


_REC = "/api/v1/namespaces/rec"
_SETS = "/apis/apps/v1/namespaces/rec/statefulsets"
_BEFORE: dict[str, Callable[[Replay], Awaitable[None]]] = {
    "the CRD once established": lambda replay: _wait(
        replay, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.dev", _condition("Established")
    ),
    "pod: the scheduler's condition without nodes": lambda replay: _wait(
        replay, f"{_REC}/pods/p", _condition("PodScheduled")
    ),
    "StatefulSet's pod with ordinals.start: labels, hostname, subdomain, owner": lambda replay: _wait(
        replay, f"{_REC}/pods/s-3", _condition("PodScheduled")
    ),
    "table of pods": lambda replay: _wait(replay, f"{_REC}/pods/s-4", _condition("PodScheduled")),
    "StatefulSet: status": lambda replay: _wait(
        replay, f"{_SETS}/s", lambda body: body.get("status", {}).get("observedGeneration") == 1
    ),
    "StatefulSet: status after a template patch under OnDelete": lambda replay: _wait(
        replay, f"{_SETS}/s", lambda body: body.get("status", {}).get("observedGeneration") == 2
    ),
    "it is collected within seconds": lambda replay: _wait(
        replay, f"{_REC}/configmaps/own", lambda body: body.get("code") == 404
    ),
}


async def _hold_namespace(replay: Replay) -> None:
    """Keeps the namespace terminating for as long as the recorder's pods did."""
    held = {"metadata": {"name": "hold", "finalizers": ["example.dev/hold"]}}
    await replay.request("POST", f"{_REC}/configmaps", json.dumps(held), "application/json")


async def _release_namespace(replay: Replay) -> None:
    patch = json.dumps({"metadata": {"finalizers": None}})
    await replay.request("PATCH", f"{_REC}/configmaps/hold", patch, "application/merge-patch+json")


_BEFORE["delete a namespace"] = _hold_namespace
_BEFORE["delete the CRD"] = _release_namespace
_MEANWHILE: dict[str, Callable[[Replay], Awaitable[None]]] = {
    "watch from a list: added, modified, modified, deleted; ends at the timeout": _change_w1,
    "watch by label: leaving the selector is DELETED": _change_w1,
}


def normal(value: Any, key: str = "") -> Any:
    """Returns a value without the parts that differ from cluster to cluster."""
    if isinstance(value, dict):
        return _normal_object(value)
    if isinstance(value, list):
        items = [normal(item) for item in value]
        if key == "managedFields":
            # They are ordered by time, to the second.
            items.sort(key=lambda item: json.dumps(item, sort_keys=True))
        if key == "cells":
            items = ["<age>" if isinstance(item, str) and _DURATION.fullmatch(item) else item for item in items]
        return items
    if isinstance(value, str):
        if key in _VOLATILE_KEYS:
            return "<version>" if value else ""
        if key in _VERSION_KEYS:
            return "<version>"
        for pattern, replacement in _VOLATILE_TEXT:
            value = pattern.sub(replacement, value)
    return value


def _normal_object(value: dict[str, Any]) -> dict[str, Any]:
    result = {}
    for name, child in value.items():
        for pattern, replacement in _VOLATILE_TEXT:
            name = pattern.sub(replacement, name)
        result[name] = normal(child, name)
    sources = result.get("sources")
    if isinstance(sources, list):
        # The recorder's cluster put a second CA bundle into every pod.
        result["sources"] = [s for s in sources if s.get("configMap", {}).get("name") != "openshift-service-ca.crt"]
    causes = (result.get("details") or {}).get("causes") if result.get("kind") == "Status" else None
    if causes and len(causes) > 1:
        # kube-apiserver goes through a schema's fields in no fixed order (Go's maps), so its errors have none either.
        result["details"]["causes"] = sorted(causes, key=lambda cause: json.dumps(cause, sort_keys=True))
        result["message"] = sorted(re.split(r"[\s,\[\]]+", result["message"]))
    return result


def differences(recorded: Any, actual: Any, path: str = "") -> list[str]:
    """Returns the differences of two normal values, one line each."""
    if isinstance(recorded, dict) and isinstance(actual, dict):
        found = []
        for name in sorted(recorded.keys() | actual.keys()):
            here = f"{path}.{name}" if path else name
            if name not in actual:
                found.append(f"{here}: missing, Kubernetes has {_short(recorded[name])}")
            elif name not in recorded:
                found.append(f"{here}: {_short(actual[name])}, Kubernetes has none")
            else:
                found += differences(recorded[name], actual[name], here)
        return found
    if isinstance(recorded, list) and isinstance(actual, list):
        found = []
        if len(recorded) != len(actual):
            found.append(f"{path}: {len(actual)} items, Kubernetes has {len(recorded)}: {_short(actual)}")
        for index, (left, right) in enumerate(zip(recorded, actual, strict=False)):
            found += differences(left, right, f"{path}[{index}]")
        return found
    if recorded != actual or type(recorded) is not type(actual):
        return [f"{path}: {_short(actual)}, Kubernetes has {_short(recorded)}"]
    return []


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 300 else text[:300] + "…"


def compare(case: Case, answer: Answer) -> list[str]:
    """Returns how the relevant parts of a case's answer differ from Kubernetes'."""
    found = []
    if answer.status != case.status:
        found.append(f"status {answer.status}, Kubernetes has {case.status}: {_short(answer.body)}")
    expected_type = (case.answer_type or "").replace(" ", "")
    if expected_type and answer.content_type.replace(" ", "").lower() != expected_type.lower():
        found.append(f"content type {answer.content_type!r}, Kubernetes has {case.answer_type!r}")
    if sorted(answer.warnings) != sorted(case.warnings):
        found.append(f"warnings {answer.warnings}, Kubernetes has {case.warnings}")
    recorded, actual = normal(case.answer), normal(answer.body)
    if case.title == "aggregated discovery":
        return found + _compare_discovery(recorded, actual)
    if case.title == "list: first page":
        found += _compare_token(answer.body)
    return found + differences(recorded, actual)


def _compare_token(body: Any) -> list[str]:
    """Compares a continue token, which is opaque, but must be there."""
    token = body.get("metadata", {}).get("continue", "")
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    return [] if b"meta.k8s.io" in raw else [f"continue token {token!r}"]


def _compare_discovery(recorded: Any, actual: Any) -> list[str]:
    """Checks that every served resource is described as Kubernetes describes it, and that the widgets are among
    them.
    """
    served = {
        (group["metadata"]["name"], version["version"], resource["resource"]): resource
        for group in actual["items"]
        for version in group["versions"]
        for resource in version["resources"]
    }
    found = [] if ("example.dev", "v1", "widgets") in served else ["widgets.example.dev isn't there"]
    for group in recorded["items"]:
        for version in group["versions"]:
            for resource in version["resources"]:
                key = (group["metadata"]["name"], version["version"], resource["resource"])
                if key in served:
                    found += differences(resource, served[key], "/".join(key))
    return found

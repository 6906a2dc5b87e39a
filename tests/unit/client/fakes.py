"""Fakes a transport that answers from a script, for tests of the SDK and of commands built on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainmaster.client.errors import JobNotFound

Answer = Callable[[], Any]


def job(name: str = "reviews", *, version: str = "1", **status: Any) -> dict[str, Any]:
    """Returns a DistributedTrainingJob as the API server returns it."""
    return {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "resourceVersion": version,
            "creationTimestamp": "2026-11-21T04:00:00Z",
        },
        "spec": {"workers": 2},
        "status": status,
    }


def pod(worker: int, *, name: str = "reviews", **status: Any) -> dict[str, Any]:
    """Returns one worker's pod."""
    return {
        "metadata": {
            "name": f"{name}-{worker}",
            "labels": {"apps.kubernetes.io/pod-index": str(worker), "trainmaster.dev/job-name": name},
            "creationTimestamp": "2026-11-21T04:00:01Z",
        },
        "spec": {"nodeName": "node-a"},
        "status": {"phase": "Running", **status},
    }


def event(kind: str, changed: Mapping[str, Any]) -> bytes:
    """Returns a line of a watch."""
    return json.dumps({"type": kind, "object": changed}).encode()


# The console looks here for signs of life of an operator.
OF_THE_OPERATOR = ("/leases/trainmaster-operator", "/apis/apps/v1/deployments")


@dataclass
class FakeTransport:
    """Answers requests by `METHOD path` and streams by path. `asked` lists the requests.

    An operator's objects exist only if `answers` contains them.
    """

    answers: dict[str, Any] = field(default_factory=dict)
    streams: dict[str, list[Any]] = field(default_factory=dict)
    asked: list[tuple[str, str, Mapping[str, str], Any]] = field(default_factory=list)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Any:
        if path.endswith(OF_THE_OPERATOR) and f"{method} {path}" not in self.answers:
            raise JobNotFound("not found")
        self.asked.append((method, path, dict(query or {}), body))
        answer = self.answers[f"{method} {path}"]
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def lines(self, path: str, *, query: Mapping[str, str], read_seconds: float | None) -> Iterator[bytes]:
        self.asked.append(("STREAM", path, dict(query), None))
        batches = self.streams.get(path, [])
        batch = batches.pop(0) if batches else []
        if isinstance(batch, Exception):
            raise batch
        yield from batch

    def beginning(self, path: str, *, limit: int, seconds: float) -> bytes:
        self.asked.append(("BEGINNING", path, {}, None))
        answer = self.answers[f"GET {path}"]
        if isinstance(answer, Exception):
            raise answer
        return bytes(answer)[:limit]

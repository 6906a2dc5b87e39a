"""Fakes a cluster whose kubelet has containers' logs, with the times of their lines, as `pods/log` returns them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.unit.cli.dtj_command import PODS
from tests.unit.client.fakes import FakeTransport
from trainmaster.client import InvalidRequest, JobNotFound

BEGINNING = datetime(2026, 11, 21, 4, 0, 0, tzinfo=UTC).timestamp()


def stamped(seconds: float, text: str) -> bytes:
    """Returns a line with its time as the kubelet writes it, so many seconds after BEGINNING."""
    time = datetime.fromtimestamp(BEGINNING + seconds, UTC)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S.%f')}000Z {text}".encode()


@dataclass
class FakeKubelet(FakeTransport):
    """Holds the lines of each pod's containers in order, as (seconds, text), by pod or by pod@uid.

    The latest list of pods decides which container is running. A followed log ends at once, like a broken connection.
    `growing` has the lines that are added to a log each time that it is read.
    """

    containers: dict[str, list[list[tuple[float, str]]]] = field(default_factory=dict)
    growing: dict[str, list[list[tuple[float, str]]]] = field(default_factory=dict)
    refusals: dict[str, list[Exception]] = field(default_factory=dict)
    listed: Any = None

    def request(self, method: str, path: str, **rest: Any) -> Any:
        answer = super().request(method, path, **rest)
        if path == PODS:
            self.listed = answer
        return answer

    def lines(self, path: str, *, query: Mapping[str, str], read_seconds: float | None) -> Iterator[bytes]:
        if not path.startswith(PODS):
            yield from super().lines(path, query=query, read_seconds=read_seconds)
            return
        self.asked.append(("STREAM", path, dict(query), None))
        pod = path.removeprefix(f"{PODS}/").removesuffix("/log")
        if refusals := self.refusals.get(pod):
            raise refusals.pop(0)
        known = [each for each in self.listed["items"] if each["metadata"]["name"] == pod]
        if not known:
            raise JobNotFound(f'pods "{pod}" not found')
        restarts = known[0]["status"]["containerStatuses"][0]["restartCount"]
        at = restarts - 1 if query.get("previous") else restarts
        containers = self.containers.get(f"{pod}@{known[0]['metadata'].get('uid')}", self.containers.get(pod, []))
        if not 0 <= at < len(containers):
            raise InvalidRequest("container not found")
        log = containers[at]
        since = query.get("sinceTime")
        first = datetime.fromisoformat(since).timestamp() - BEGINNING if since else 0.0
        wanted = [(seconds, text) for seconds, text in log if seconds >= first]
        if "tailLines" in query:
            tail = int(query["tailLines"])
            wanted = wanted[-tail:] if tail else []
        if self.growing.get(pod):
            log += self.growing[pod].pop(0)
        for seconds, text in wanted:
            yield stamped(seconds, text)

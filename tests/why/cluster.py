"""A transport answers from a situation's objects as an API server does; it refuses everything but GET."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.why.situations import Expected
from trainmaster.client import JobNotFound, NotAllowed

_PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/(?P<version>[^/]+))(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[a-z]+)"
    r"(?:/(?P<name>[^/]+))?(?P<rest>/.*)?"
)
_KINDS = {"distributedtrainingjobs": "DistributedTrainingJob", "statefulsets": "StatefulSet"}


class WriteAttempted(Exception):
    """A request was something other than a GET."""


@dataclass
class ClusterOfObjects:
    """Serves a situation; `asked` contains every requested path."""

    expected: Expected
    asked: list[str] = field(default_factory=list)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Any:
        if method != "GET" or body is not None:
            raise WriteAttempted(f"{method} {path}")
        self.asked.append(path)
        found = _PATH.fullmatch(path)
        assert found is not None, path
        plural, name = found["plural"], found["name"]
        if plural in self.expected.forbidden:
            raise NotAllowed(
                f'{plural} is forbidden: User "alice" cannot list resource "{plural}" at the cluster scope'
            )
        if found["rest"]:
            raise JobNotFound("404 page not found")
        here = [item for item in self.expected.objects if self._fits(item, found, query or {})]
        if name is None:
            return {"kind": "List", "metadata": {}, "items": here}
        item = next((item for item in here if item["metadata"]["name"] == name), None)
        if item is None:
            raise JobNotFound(f'{plural} "{name}" not found')
        return item

    def lines(self, path: str, *, query: Mapping[str, str], read_seconds: float | None) -> Iterator[bytes]:
        return (line.encode() for line in self._text(path, self.expected.logs).splitlines())

    def beginning(self, path: str, *, limit: int, seconds: float) -> bytes:
        return self._text(path, self.expected.metrics).encode()[:limit]

    def _text(self, path: str, texts: Mapping[str, str]) -> str:
        self.asked.append(path)
        found = _PATH.fullmatch(path)
        assert found is not None, path
        pod = (found["name"] or "").partition(":")[0]
        if pod not in texts:
            raise JobNotFound(f'pods "{pod}" not found')
        return texts[pod]

    def _fits(self, item: Mapping[str, Any], path: re.Match[str], query: Mapping[str, str]) -> bool:
        plural = path["plural"]
        version = f"{path['group']}/{path['version']}" if path["group"] else "v1"
        kind = str(item["kind"])
        if item.get("apiVersion") != version or f"{kind.lower()}s" != plural:
            return False
        if path["namespace"] and item["metadata"].get("namespace") != path["namespace"]:
            return False
        labels = item["metadata"].get("labels") or {}
        if "labelSelector" in query:
            key, _, value = query["labelSelector"].partition("=")
            if labels.get(key) != value:
                return False
        selector = query.get("fieldSelector", "")
        if selector.startswith("involvedObject.name="):
            return bool(item["involvedObject"]["name"] == selector.partition("=")[2])
        return True

"""Records Kubernetes Events as client-go's recorder does: a repeated event raises a count instead of creating another.

`record` never waits and never fails its caller; a task of the recorder writes in order.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from trainmaster_local.apiserver.api import Api, ApiError
from trainmaster_local.apiserver.writing.writer import Options

logger = logging.getLogger(__name__)

Object = Mapping[str, Any]

_KEPT = 4096  # client-go's correlator remembers the same number.


def _rfc3339(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(int(seconds), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _micro(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def reference(obj: Object, field_path: str = "") -> dict[str, Any]:
    """Returns an event's reference to its object."""
    metadata = obj["metadata"]
    made = {
        "kind": obj["kind"],
        "namespace": metadata.get("namespace", ""),
        "name": metadata["name"],
        "uid": metadata.get("uid", ""),
        "apiVersion": obj["apiVersion"],
        "resourceVersion": metadata.get("resourceVersion", ""),
    }
    if field_path:
        made["fieldPath"] = field_path
    return {key: value for key, value in made.items() if value}


class EventRecorder:
    """The recorder writes the events of one component; those of a `host` carry its name.

    With `series` they have the newer form of events.k8s.io, as kube-scheduler's do: times in microseconds, no count.
    """

    def __init__(self, api: Api, component: str, host: str = "", series: bool = False) -> None:
        self._api = api
        self._component = component
        self._host = host
        self._series = series
        self._queue: asyncio.Queue[tuple[dict[str, Any], str, str, str, float]] = asyncio.Queue()
        self._known: OrderedDict[tuple[str, ...], tuple[str, int]] = OrderedDict()
        self._options = Options(manager=component)

    def record(self, obj: Object, kind: str, reason: str, message: str, field_path: str = "") -> None:
        """Records an event; `kind` is Normal or Warning."""
        self._queue.put_nowait((reference(obj, field_path), kind, reason, message, time.time()))

    async def run(self) -> None:
        """Writes the recorded events until it is cancelled."""
        while True:
            about, kind, reason, message, at = await self._queue.get()
            try:
                await self._write(about, kind, reason, message, at)
            except ApiError as error:
                # A terminating namespace accepts no more events.
                logger.debug("event %s of %s: %s", reason, about.get("name"), error)

    async def _write(self, about: dict[str, Any], kind: str, reason: str, message: str, at: float) -> None:
        namespace = about.get("namespace") or "default"
        key = (about.get("uid", ""), about["name"], about.get("fieldPath", ""), kind, reason, message)
        known = self._known.get(key)
        if known is not None and not self._series and self._api.peek("events", known[0], namespace) is not None:
            name, count = known[0], known[1] + 1
            patch = {"count": count, "lastTimestamp": _rfc3339(at)}
            await self._api.patch("events", name, patch, namespace, options=self._options)
        else:
            name, count = f"{about['name']}.{time.time_ns():x}", 1
            await self._api.create("events", self._event(name, namespace, about, kind, reason, message, at), namespace,
                                   options=self._options)  # fmt: skip
        self._known[key] = (name, count)
        self._known.move_to_end(key)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)

    def _event(
        self, name: str, namespace: str, about: Object, kind: str, reason: str, message: str, at: float
    ) -> dict[str, Any]:
        event: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": dict(about),
            "reason": reason,
            "message": message,
            "type": kind,
            "reportingComponent": self._component,
            "reportingInstance": self._host,
        }
        if self._series:
            instance = f"{self._component}-{self._host or 'local'}"
            event |= {"eventTime": _micro(at), "action": "Scheduling" if kind == "Warning" else "Binding",
                      "reportingInstance": instance, "source": {}}  # fmt: skip
        else:
            source = {"component": self._component, **({"host": self._host} if self._host else {})}
            event |= {"source": source, "firstTimestamp": _rfc3339(at), "lastTimestamp": _rfc3339(at),
                      "eventTime": None, "count": 1}  # fmt: skip
        return event

"""Lists the fields that the operator reads. Answers are trimmed to these fields while they are decoded.

An object's author decides its size, so only the listed fields are ever in memory (`api.trimming`). The tests' cluster
trims like the real client.

A real API server also accepts objects that are 10,000 levels deep, on which Python's decoder would fail, and with it
the whole page or watch. So a deep field is cut to fewer levels (still more than a valid job can have), and the job is
refused.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp

from trainmaster_operator.api.json_codec import decode_shallow
from trainmaster_operator.api.limits import MAX_BYTES, MAX_OTHER_BYTES
from trainmaster_operator.api.printable import one_line
from trainmaster_operator.api.trimming import PIECE, Each, Shape, Trimmer, Whole
from trainmaster_operator.api.v1alpha1 import JobSpec
from trainmaster_operator.wire.limits import MAX_ASSIGNMENT_BYTES
from trainmaster_operator.wire.names import ASSIGNMENT_ANNOTATION, HASH_ANNOTATION, JOB_NAME_LABEL, TOUCHED_ANNOTATION

Fields = Mapping[str, Shape]

# A job whose spec is larger than this (in bytes of JSON) is read and decided on in a thread. Rendering the slowest spec
# of 8 KiB takes 35 ms. Usual specs have 1 to 3 KiB, and a thread would cost each of their passes 0.1 ms.
LARGE_SPEC_BYTES = 8 * 1024
# Limit on the bytes of a status. The operator's largest status, for 1,024 workers, has about 100 KiB.
MAX_STATUS_BYTES = 256 * 1024

# Limit on the bytes of a job that is sent to a history without being shortened.
MAX_RECORDED_BYTES = 256 * 1024

_TEXT, _SOME = Whole(), Whole(64 * 1024)
_ASSIGNMENT = {ASSIGNMENT_ANNOTATION: Whole(MAX_ASSIGNMENT_BYTES)}
_IDENTITY: Fields = dict.fromkeys(
    ("namespace", "name", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"), _TEXT
)
_CONDITIONS = Each(dict.fromkeys(("type", "status", "reason", "message", "lastTransitionTime"), _SOME), most=64)


def _object(metadata: Fields, **fields: Shape) -> Fields:
    owners = Each(dict.fromkeys(("apiVersion", "kind", "name", "uid", "controller"), _TEXT), most=64)
    metadata = {**_IDENTITY, "ownerReferences": owners, **metadata}
    return {"apiVersion": _TEXT, "kind": _TEXT, "metadata": metadata, **fields}


def _child(**fields: Shape) -> Fields:
    writers = Each(dict.fromkeys(("manager", "operation", "subresource"), _TEXT), most=256)
    annotations = {HASH_ANNOTATION: _TEXT}
    labels = {JOB_NAME_LABEL: _TEXT}
    return _object({"labels": labels, "annotations": annotations, "managedFields": writers}, **fields)


def _named(*names: str) -> Fields:
    return dict.fromkeys(names, _SOME)


_END = _named("exitCode", "reason", "message", "startedAt", "finishedAt")
_CONTAINERS = Each(
    {
        **_named("name", "ready", "restartCount"),
        "state": {"waiting": _named("reason", "message"), "running": _named("startedAt"), "terminated": _END},
        "lastState": {"terminated": _END},
    },
    most=256,
)
POD = _object(
    {"labels": {JOB_NAME_LABEL: _TEXT}, "annotations": {**_ASSIGNMENT, TOUCHED_ANNOTATION: _TEXT}},
    spec=_named("nodeName"),
    status={
        **_named("phase", "podIP", "reason", "message"),
        "conditions": _CONDITIONS,
        "containerStatuses": _CONTAINERS,
        "initContainerStatuses": _CONTAINERS,
    },
)
# The fields of a pod that `trainmaster-operator keys prune` reads.
POD_ENVIRONMENT = _object({}, spec={"containers": Each({"env": Each(_named("name", "value"))})})
CHILD = _child()
STATEFUL_SET = _child(
    spec={
        "replicas": _TEXT,
        "template": {
            "metadata": {"annotations": _ASSIGNMENT},
            "spec": {"volumes": Each({"name": _TEXT, "configMap": _named("name")})},
        },
    }
)
_UPDATES = Each(_named("name", "nodeSelector", "tolerations", "labels", "annotations"), most=64)
WORKLOAD = _child(
    spec={"active": _TEXT, "podSets": Each(_named("name", "count"), most=64)},
    status={
        # Conditions of other clients are written back unchanged, together with ours.
        "conditions": _SOME,
        "admission": {"podSetAssignments": Each(_named("name", "count", "flavors"), most=64)},
        "admissionChecks": Each({"podSetUpdates": _UPDATES}, most=64),
    },
)
EVENT: Fields = {
    "involvedObject": _named("uid", "fieldPath"),
    "series": _named("lastObservedTime"),
    **_named("message", "lastTimestamp", "eventTime"),
}
NODE: Fields = {
    "metadata": {"labels": _SOME},
    "spec": {"taints": Each(_named("key", "timeAdded"))},
    "status": {"conditions": _CONDITIONS},
}


def job(spec_bytes: int) -> Fields:
    """Returns the shape of a job with a spec of at most `spec_bytes`; a larger spec is left out, which is recorded."""
    conditions = {"conditions": Whole(MAX_STATUS_BYTES)}
    return _object(
        {"labels": Whole(16 * 1024), "annotations": Whole(16 * 1024)},
        spec=Whole(spec_bytes, marked=True),
        status=Whole(MAX_STATUS_BYTES, marked=True, beyond=conditions),
    )


# The shape of a job whose spec is read separately. A field that is too large for any valid job isn't decoded.
LARGE_JOB = _object(
    {},
    spec={
        field.alias or name: Whole(MAX_BYTES.get(field.alias or name, MAX_OTHER_BYTES), marked=True)
        for name, field in JobSpec.model_fields.items()
    },
)


def listed(kept: Fields) -> Fields:
    """Returns the shape of a page of a list of such objects."""
    metadata = _named("resourceVersion", "continue")
    return {"apiVersion": _TEXT, "kind": _TEXT, "metadata": metadata, "items": Each(kept, most=1_000_000)}


def watched(kept: Fields) -> Fields:
    """Returns the shape of a watch's event. The object may be a Status, so an error's fields are included."""
    return {"type": _TEXT, "object": {**_named("code", "reason", "message"), **kept}}


def metadata_of(kept: Fields) -> Fields:
    """Returns the shape of only an object's metadata."""
    return {"metadata": kept["metadata"]}


logger = logging.getLogger(__name__)


async def decoded(content: aiohttp.StreamReader, kept: Fields | None) -> Any:
    """Returns an answer's document, trimmed to `kept`; None keeps everything. Raises ValueError if it isn't JSON."""
    if kept is None:
        raw = await content.read()
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            # Decode in a thread, which releases the interpreter, because megabytes of brackets would block all jobs.
            return await asyncio.to_thread(decode_shallow, raw)
    trimmer, pieces = Trimmer(kept), 0
    found: list[Any] = []
    async for piece in content.iter_chunked(PIECE):
        pieces += 1
        # A large answer is decoded in a thread, which releases the interpreter.
        found += trimmer.feed(piece) if pieces == 1 else await asyncio.to_thread(trimmer.feed, piece)
    found += trimmer.end() if pieces < 2 else await asyncio.to_thread(trimmer.end)
    document = found[0] if found else ValueError("it is empty")
    if isinstance(document, ValueError):
        raise document
    return document


def response_class(kept_at: Callable[[str], Fields | None]) -> type[aiohttp.ClientResponse]:
    """Returns the response class of kopf's session. `kept_at` returns the fields to keep at a path.

    kopf reads a list by `json`, and a watch by `content.iter_chunked`.
    """

    class TrimmedResponse(aiohttp.ClientResponse):
        async def start(self, connection: Any) -> aiohttp.ClientResponse:
            started = await super().start(connection)
            kept = kept_at(self.url.path)
            if self.status == 200 and kept is not None and self.url.query.get("watch") == "true":
                self.content = _Lines(self.content, kept)  # type: ignore[assignment]
            return started

        async def json(self, **options: Any) -> Any:
            kept = kept_at(self.url.path)
            if self.status != 200 or kept is None:
                return await super().json(**options)
            return await decoded(self.content, listed(kept))

    return TrimmedResponse


class _Lines:
    """Yields a watch's content in complete lines, which `json.loads` can decode."""

    def __init__(self, content: aiohttp.StreamReader, kept: Fields) -> None:
        self._content = content
        self._kept = kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        del size
        trimmer = Trimmer(watched(self._kept))
        async for piece in self._content.iter_chunked(PIECE):
            for document in trimmer.feed(piece):
                yield _line(document)
            await asyncio.sleep(0)
        for document in trimmer.end():
            yield _line(document)


def _line(document: Any) -> bytes:
    if isinstance(document, ValueError):
        # Skip the line, because kopf would end the watch. The next sweep reads the object.
        logger.warning("A line of a watch can't be decoded: %s", one_line(str(document)[:300]))
        return b""
    return json.dumps(document).encode() + b"\n"

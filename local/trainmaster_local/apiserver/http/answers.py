"""Encodes answers (objects, lists and watch events) as bytes, in the form that the client accepts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import web

from trainmaster_local.apiserver.apimachinery import deep
from trainmaster_local.apiserver.apimachinery.errors import ApiError
from trainmaster_local.apiserver.http.codec import Form
from trainmaster_local.apiserver.printing.tables import partial, table
from trainmaster_local.apiserver.resources import Object, ResourceType
from trainmaster_local.apiserver.storage.listing import ListResult
from trainmaster_local.apiserver.storage.store import Revision
from trainmaster_local.apiserver.storage.watching import WatchEvent

JSON_TYPE = "application/json"


def json_response(
    value: Any, status: int = 200, *, headers: Mapping[str, str] | None = None, content_type: str = JSON_TYPE
) -> web.Response:
    body = value if isinstance(value, bytes) else deep.dumps(value)
    answer = web.Response(body=body, status=status, headers=headers)
    answer.headers["Content-Type"] = content_type
    return answer


def error_response(error: ApiError) -> web.Response:
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after is not None else None
    answer = json_response(error.status, error.code, headers=headers)
    warning_headers(answer, error.warnings)
    return answer


def warning_headers(answer: web.StreamResponse, warnings: Iterable[str]) -> None:
    """Adds one Warning header for each warning (RFC 7234, code 299)."""
    for warning in dict.fromkeys(warnings):
        quoted = warning.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
        answer.headers.add("Warning", f'299 - "{quoted}"')


def object_body(type_: ResourceType, form: Form, obj: Object, now: float, include: str) -> Any:
    """Returns one object in its form."""
    if form.as_ == "Table":
        metadata = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
        return table(type_, [obj], metadata, now, include)
    if form.as_ == "PartialObjectMetadata":
        return partial(obj)
    return obj


def list_body(type_: ResourceType, form: Form, page: ListResult, now: float, include: str) -> bytes:
    """Returns a page in its form, built from already encoded objects if the form allows it."""
    metadata: dict[str, Any] = {"resourceVersion": str(page.version)}
    if type_.custom and not form.as_:
        metadata = {"continue": page.continue_token, **metadata}
    elif page.continue_token:
        metadata["continue"] = page.continue_token
    if page.remaining is not None:
        metadata["remainingItemCount"] = page.remaining
    if form.as_ == "Table":
        return deep.dumps(table(type_, page.items, metadata, now, include))
    if form.as_ == "PartialObjectMetadataList":
        items = [partial(obj) for obj in page.items]
        kind = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
        return deep.dumps({**kind, "metadata": metadata, "items": items})
    head = deep.dumps({"kind": type_.kind_of_list, "apiVersion": type_.api_version, "metadata": metadata})
    encoded = [item_json(type_, revision) for revision in page.revisions]
    return b"".join((head[:-1], b',"items":[', b",".join(encoded), b"]}"))


def item_json(type_: ResourceType, revision: Revision) -> bytes:
    """Returns an item of a list: built-ins omit kind and apiVersion there, custom resources don't."""
    if type_.custom:
        return revision.json
    prefix = deep.dumps({"kind": type_.kind, "apiVersion": type_.api_version})[:-1] + b","
    encoded = revision.json
    if encoded.startswith(prefix):
        return b"{" + encoded[len(prefix) :]
    return deep.dumps({key: value for key, value in revision.object.items() if key not in ("kind", "apiVersion")})


def event_json(type_: ResourceType, form: Form, event: WatchEvent, now: float, include: str, *, header: bool) -> bytes:
    """Returns a line of a watch."""
    if form.as_ == "Table":
        if event.type == "BOOKMARK":
            metadata = event.object["metadata"]
            body = deep.dumps({**table(type_, [], metadata, now, header=header), "metadata": metadata})
        else:
            version = {"resourceVersion": str(event.revision.version)}
            body = deep.dumps(table(type_, [event.object], version, now, include, header=header))
    elif form.as_.startswith("PartialObjectMetadata"):
        body = deep.dumps(partial(event.object))
    else:
        body = event.revision.json
    return b"".join((b'{"type":"', event.type.encode(), b'","object":', body, b"}\n"))

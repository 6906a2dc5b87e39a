"""Serves lists in pages: continue tokens, resource versions (k8s.io/apiserver `pkg/storage/continue.go`)."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from dataclasses import dataclass

from trainmaster_local.apiserver.apimachinery.errors import ApiError, bad_request, expired, too_large_resource_version
from trainmaster_local.apiserver.apimachinery.selectors import FieldSelector, LabelSelector, parse_fields, parse_labels
from trainmaster_local.apiserver.plans import Plan
from trainmaster_local.apiserver.resources import Object
from trainmaster_local.apiserver.storage.store import Revision, Storage

_TOKEN_VERSION = "meta.k8s.io/v1"
_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


@dataclass(frozen=True)
class ListResult:
    """This is a page of a list. `remaining` is the number of objects after it, None if unknown or zero."""

    revisions: list[Revision]
    version: int
    continue_token: str = ""
    remaining: int | None = None

    @property
    def items(self) -> list[Object]:
        return [revision.object for revision in self.revisions]


def matcher(plan: Plan, labels: str, fields: str) -> Callable[[Object], bool] | None:
    """Returns the filter of both selectors, None if they match everything. Raises 400 for an invalid selector."""
    by_label: LabelSelector = parse_labels(labels)
    by_field: FieldSelector = parse_fields(fields, plan.selectable)
    if not by_label and not by_field:
        return None

    def matches(obj: Object) -> bool:
        if by_label and not by_label.matches(obj["metadata"].get("labels") or {}):
            return False
        return not by_field or by_field.matches(lambda field: plan.field_value(obj, field))

    return matches


def parse_version(text: str) -> int:
    """Returns a resourceVersion as a number; 0 for the empty string."""
    if not text:
        return 0
    if not text.isdecimal():
        raise bad_request(
            f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        )
    return int(text)


def encode_token(version: int, start: str) -> str:
    """Returns the token of a page that ended with the key `start` (`/name` or `/namespace/name`)."""
    text = json.dumps({"v": _TOKEN_VERSION, "rv": version, "start": start + "\0"}, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def decode_token(token: str) -> tuple[int, str]:
    """Returns the version and key of a continue token. Raises 400 for an invalid one."""
    prefix = "invalid continue token: continue key is not valid: "
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    except (binascii.Error, ValueError) as error:
        raise bad_request(f"{prefix}illegal base64 data at input byte {len(token)}") from error
    try:
        value = json.loads(raw)
    except UnicodeDecodeError as error:
        raise bad_request(
            f"{prefix}invalid character '\\x{raw[error.start]:02x}' looking for beginning of value"
        ) from error
    except json.JSONDecodeError as error:
        character = raw[error.pos : error.pos + 1].decode("latin-1")
        raise bad_request(f"{prefix}invalid character '{character}' looking for beginning of value") from error
    if not isinstance(value, dict) or value.get("v") != _TOKEN_VERSION:
        raise bad_request(f'{prefix}server does not recognize this encoded version ""')
    start = str(value.get("start", ""))
    if not start.startswith("/") or not isinstance(value.get("rv"), int):
        raise bad_request(f"{prefix}encoded start resourceVersion or key is not valid")
    return value["rv"], start.removesuffix("\0")


def key_of(obj: Object, namespace: str) -> str:
    """Returns the key of an object below the list's prefix."""
    metadata = obj["metadata"]
    if namespace or not metadata.get("namespace"):
        return f"/{metadata['name']}"
    return f"/{metadata['namespace']}/{metadata['name']}"


def _order(key: str) -> tuple[str, ...]:
    return tuple(key.split("/"))


def list_page(
    storage: Storage,
    plan: Plan,
    namespace: str,
    matches: Callable[[Object], bool] | None,
    *,
    limit: int,
    token: str,
    version: str,
    match: str,
) -> ListResult:
    """Returns one page. Raises 410 if the token's or the exact version is compacted, 504 for a future version."""
    asked = parse_version(version)
    if asked > storage.version:
        raise too_large_resource_version(asked, storage.version)
    start = ""
    at = storage.version
    if token:
        at, start = decode_token(token)
    elif match == "Exact" and asked:
        at = asked
    try:
        revisions = storage.items_at(plan.resource, namespace, at)
    except ApiError as error:
        if token:
            raise expired(_TOO_OLD) from error
        raise
    if start:
        after = _order(start)
        revisions = [revision for revision in revisions if _order(key_of(revision.object, namespace)) > after]
    if matches is not None:
        revisions = [revision for revision in revisions if matches(revision.object)]
    if not limit or len(revisions) <= limit:
        return ListResult(revisions, at)
    page = revisions[:limit]
    remaining = len(revisions) - limit if matches is None else None
    return ListResult(page, at, encode_token(at, key_of(page[-1].object, namespace)), remaining)

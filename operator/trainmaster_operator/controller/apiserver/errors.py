"""Errors of requests to the API server form one class tree. The client translates each error once.

`Unreachable`, `Deposed` and `Unusable` mean that there is no usable answer. `Refused` means that the same request will
be refused again. Requests with any other error may succeed later. Kubernetes defines the codes and the Status object
(apimachinery `pkg/api/errors/errors.go`).

This module also rewrites the API server's messages about an object that doesn't fit its type. A create of such an
object is answered with 400, and a server-side apply with **500**, because structured-merge-diff's errors reach the
handler as plain errors (k8s.io/apimachinery, pkg/util/managedfields/internal/structuredmerge.go). Both are refusals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainmaster_operator.api.problems import EXPECTED
from trainmaster_operator.wire.values import loads, mapping, text

# Limits in characters on the message and the reason of a Status.
MAX_MESSAGE, MAX_REASON = 2_000, 64
# metav1.StatusReasonInvalid: only a changed object can succeed. This reason is also used if the object doesn't fit its
# type.
INVALID = "Invalid"
# Prefixes before the details in the messages for a create and an apply.
_PREFIXES = (
    re.compile(r'\w+ in version "[^"]*" cannot be handled as a \w+: (?:strict decoding error: )?'),
    re.compile(r"failed to create typed patch object \([^)]*\): "),
    re.compile(
        r"failed to convert new object \([^)]*\) to proper version: "
        r"(?:unable to convert unstructured object to [^:]*: )?(?:strict decoding error: )?"
    ),
)
_EXPRESSION = re.compile(r",? ?regex used for validation is '[^']*'")
_UNDECLARED = re.compile(r"\.?(\S+): field not declared in schema")
_UNKNOWN = re.compile(r'unknown field "([^"]+)"')
_MISTYPED = re.compile(r"\.?(\S+): expected (\w+)(?: \(.*\))?, got (.*)", re.DOTALL)
_UNMARSHALLED = re.compile(r"json: cannot unmarshal (\w+)(?: (\S+))? into Go struct field \w+\.(\S+) of type (\S+)")
_SHOWN = re.compile(r"&(?:value\.valueUnstructured)?\{(?:Value:)?(.*)\}", re.DOTALL)
_NO_MAPPINGS = re.compile(r"\.?(\S+): element \d+: associative list with keys may not have non-map elements")
_QUANTITY = re.compile(
    r"quantities must match the regular expression|unable to parse (?:quantity's suffix|numeric part)"
)
# For each type name of structured-merge-diff or Go, the message about a value that doesn't have that type.
_TYPES = {
    "string": "string_type",
    **dict.fromkeys(("boolean", "bool"), "bool_type"),
    **dict.fromkeys(("numeric", "int32", "int64"), "int_type"),
    "float64": "float_type",
    "list": "list_type",
    "map": "dict_type",
}
_UNREAD_QUANTITY = "a quantity in it can't be read; use a number with an optional suffix, such as 16, 500m or 128Gi"
_NOT_KNOWN = "unknown field; this Kubernetes has none of that name"
_KINDS = {"number": "a number", "string": "text", "bool": "true or false", "object": "a mapping", "array": "a list"}


class ClusterError(Exception):
    """An API request failed. `str()` describes the request and the answer."""

    def __init__(
        self, request: str, message: str, *, status: int = 0, reason: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(f"{request}: {message}")
        self.request = request
        # The API server's own message.
        self.message = message
        # The HTTP status, or 0 if there was no answer.
        self.status = status
        # metav1.Status.reason: AlreadyExists, Forbidden, ...
        self.reason = reason
        # Seconds to wait, as requested by the server.
        self.retry_after = retry_after


class Unreachable(ClusterError):
    """The connection failed, or no answer came in time, so the cluster's state is unknown."""


class Deposed(ClusterError):
    """The lease has expired, so another operator may lead, and nothing was sent."""


class Silent(Unreachable):
    """The other side accepted the connection and then sent nothing for too long."""


class Untrusted(Unreachable):
    """The other side's certificate can't be verified."""


class Unusable(ClusterError):
    """The answer has an unrequested form (a redirect, an encoding); it is neither followed nor unpacked."""


class Unauthorized(ClusterError):
    """401: the API server doesn't accept the credentials."""


class NotFound(ClusterError):
    """404: the object, its namespace, or the whole resource type doesn't exist."""


class Conflict(ClusterError):
    """409: the resourceVersion, the uid or a field's owner has changed. Read the object and decide again."""


class AlreadyExists(Conflict):
    """409: an object with this name already exists."""


class Refused(ClusterError):
    """The API server refused the request, and will refuse the same request again."""


class Invalid(Refused):
    """400, 413, 415, 422: the object doesn't fit the schema, a rule or a webhook."""


class Forbidden(Refused):
    """403: a missing permission, a quota, a terminating namespace or a webhook forbids the request."""


class TooManyRequests(ClusterError):
    """429: the API server is overloaded; wait `retry_after` seconds."""


class Unavailable(ClusterError):
    """5xx: the API server, or a proxy in front of it, failed; wait `retry_after` seconds if given."""


def is_unserved(error: NotFound) -> bool:
    """Returns whether the resource type is missing, rather than one object of it.

    For a missing type, a real API server answers with plain text (k8s.io/apiserver, endpoints/handlers: "404 page not
    found"), and an aggregated API server answers with a Status that names no object.
    """
    return not error.reason or "could not find the requested resource" in error.message


def from_response(request: str, status: int, headers: Mapping[str, str], body: bytes | str) -> ClusterError:
    """Returns the error for an answer, whose body is a metav1.Status, or any text from a proxy or a pod."""
    if 300 <= status < 400:
        where = headers.get("Location", "")[:100]
        return Unusable(request, f"a redirect to {where!r} (HTTP {status}), and none is followed", status=status)
    try:
        document = mapping(loads(body))
    except ValueError:
        document = {}
    message = text(document.get("message"), MAX_MESSAGE).strip()
    if not message:
        whole = body if isinstance(body, str) else body.decode(errors="replace")
        message = whole.strip()[:300] or f"HTTP {status}"
    reason = text(document.get("reason"), MAX_REASON)
    if status in (400, 500) and (sentence := refusal(message)) is not None:
        return Invalid(request, sentence, status=status, reason=INVALID)
    # Messages from Kubernetes' validation contain regular expressions, which don't help users.
    message = _EXPRESSION.sub("", message).replace("(e.g. ", "(such as ").replace(",  or ", ", or ")
    kind = _CLASSES.get(status, Unavailable if status >= 500 else ClusterError)
    if kind is Conflict and reason == "AlreadyExists":
        kind = AlreadyExists
    return kind(request, message, status=status, reason=reason, retry_after=_retry_after(headers, document))


_CLASSES: dict[int, type[ClusterError]] = {
    **dict.fromkeys((400, 405, 406, 413, 415, 422), Invalid),
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    429: TooManyRequests,
}


def _retry_after(headers: Mapping[str, str], document: Mapping[str, Any]) -> float | None:
    for candidate in (headers.get("Retry-After"), mapping(document.get("details")).get("retryAfterSeconds")):
        try:
            seconds = float(candidate) if isinstance(candidate, str | int | float) else 0.0
        except (ValueError, OverflowError):
            # The value is an HTTP date, which no Kubernetes component sends, or not a valid number of seconds.
            continue
        if seconds > 0:
            return min(seconds, 60.0)
    return None


def refusal(message: str) -> str | None:
    """Returns a readable form of the message if it reports that the object doesn't fit its type, else None."""
    for prefix in _PREFIXES:
        found = prefix.match(message)
        if found is not None:
            return "; ".join(_sentences(message[found.end() :]))
    return None


def _sentences(details: str) -> Iterator[str]:
    unknown = _UNKNOWN.findall(details)
    if unknown:
        # A strict decoder lists unknown fields.
        yield from (f"{field}: {_NOT_KNOWN}" for field in unknown)
        return
    lines = details.splitlines()
    for line in lines[1:] if lines[:1] == ["errors:"] else lines:
        yield _sentence(line.strip())


def _sentence(line: str) -> str:
    if found := _UNDECLARED.fullmatch(line):
        return f"{found[1]}: {_NOT_KNOWN}"
    if found := _MISTYPED.fullmatch(line):
        return f"{found[1]}: {_shown(found[3])} is not {_expected(found[2])}"
    if found := _UNMARSHALLED.search(line):
        kind, value, field, expected = found.groups()
        return f"{field}: {value or _KINDS.get(kind, kind)} is not {_expected(expected)}"
    if found := _NO_MAPPINGS.fullmatch(line):
        return f"{found[1]}: has an item that is not {_expected('map')}"
    return _UNREAD_QUANTITY if _QUANTITY.search(line) else line.removeprefix(".")


def _expected(name: str) -> str:
    return "; ".join(EXPECTED["list_type" if name.startswith("[]") else _TYPES.get(name, "dict_type")])


def _shown(value: str) -> str:
    """Converts a value from Go's notation to the form that messages show."""
    found = _SHOWN.fullmatch(value)
    if found is None:
        return _KINDS.get(value, value)
    inner = found[1]
    return "a mapping" if inner.startswith("map[") else "a list" if inner.startswith("[") else inner

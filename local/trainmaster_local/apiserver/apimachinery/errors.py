"""The errors of the API, each a Kubernetes `Status`, and the field errors of validation.

One exception type, `ApiError`, leaves the API; its `status` is the body of the HTTP answer. The wording follows
k8s.io/apimachinery `pkg/api/errors/errors.go` and `pkg/util/validation/field/errors.go`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NOT_HERE = "the local cluster doesn't have it"
"""The detail of a refusal if Kubernetes has a feature that the local cluster lacks (docs/local-cluster.md)."""


def go_value(value: Any) -> str:
    """Returns a value as Go's field errors print it: strings quoted, objects and lists as compact JSON, null as
    `null`."""
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class FieldError:
    """A field error is one problem of one field. Use the constructors; `reason` is the cause's reason in the Status."""

    field: str
    reason: str
    message: str

    @staticmethod
    def invalid(field: str, value: Any, detail: str) -> FieldError:
        return FieldError(field, "FieldValueInvalid", f"Invalid value: {go_value(value)}: {detail}")

    @staticmethod
    def type_invalid(field: str, value: Any, detail: str) -> FieldError:
        return FieldError(field, "FieldValueTypeInvalid", f"Invalid value: {go_value(value)}: {detail}")

    @staticmethod
    def required(field: str, detail: str = "") -> FieldError:
        return FieldError(field, "FieldValueRequired", "Required value" + (f": {detail}" if detail else ""))

    @staticmethod
    def forbidden(field: str, detail: str = "") -> FieldError:
        return FieldError(field, "FieldValueForbidden", "Forbidden" + (f": {detail}" if detail else ""))

    @staticmethod
    def not_supported(field: str, value: Any, supported: Iterable[str]) -> FieldError:
        choices = ", ".join(go_value(choice) for choice in supported)
        message = f"Unsupported value: {go_value(value)}" + (f": supported values: {choices}" if choices else "")
        return FieldError(field, "FieldValueNotSupported", message)

    @staticmethod
    def duplicate(field: str, value: Any) -> FieldError:
        return FieldError(field, "FieldValueDuplicate", f"Duplicate value: {go_value(value)}")

    @staticmethod
    def not_found(field: str, value: Any) -> FieldError:
        return FieldError(field, "FieldValueNotFound", f"Not found: {go_value(value)}")

    @staticmethod
    def too_long(field: str, limit: int) -> FieldError:
        return FieldError(field, "FieldValueTooLong", f"Too long: may not be more than {limit} bytes")

    @staticmethod
    def too_many(field: str, count: int, limit: int) -> FieldError:
        return FieldError(field, "FieldValueTooMany", f"Too many: {count}: must have at most {limit} items")

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"

    def cause(self) -> dict[str, str]:
        return {"reason": self.reason, "message": self.message, "field": self.field}


class ApiError(Exception):
    """Reports a failed request.

    `code` is the HTTP status, `reason` is Kubernetes' reason, and `status` is the Status object.
    Every method of `api.Api` raises it. The functions of this module create it: `not_found`, `conflict`, `invalid`, ...
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.warnings: tuple[str, ...] = ()
        self.status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
        }
        if reason:
            self.status["reason"] = reason
        if details is not None:
            self.status["details"] = dict(details)
            if retry_after is not None:
                self.status["details"]["retryAfterSeconds"] = retry_after
        elif retry_after is not None:
            self.status["details"] = {"retryAfterSeconds": retry_after}
        self.status["code"] = code


class Undecodable(ApiError):
    """This 400 reports a body that isn't an object of its type."""

    def __init__(self, kind: str, version: str, problem: str) -> None:
        message = f'{kind} in version "{version}" cannot be handled as a {kind}: {problem}'
        super().__init__(400, "BadRequest", message)
        self.problem = problem


def qualified(group: str, name: str) -> str:
    """Returns `statefulsets.apps`, or just `pods` in the legacy group."""
    return f"{name}.{group}" if group else name


def _details(group: str, kind: str, name: str) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if name:
        details["name"] = name
    if group:
        details["group"] = group
    if kind:
        details["kind"] = kind
    return details


def not_found(group: str, plural: str, name: str) -> ApiError:
    message = f'{qualified(group, plural)} "{name}" not found'
    return ApiError(404, "NotFound", message, details=_details(group, plural, name))


def no_such_resource() -> ApiError:
    """Returns the 404 of a path whose resource isn't served."""
    return ApiError(404, "NotFound", "the server could not find the requested resource", details={})


def already_exists(group: str, plural: str, name: str) -> ApiError:
    message = f'{qualified(group, plural)} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, details=_details(group, plural, name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(group: str, kind: str, name: str, problem: str = MODIFIED) -> ApiError:
    message = f'Operation cannot be fulfilled on {qualified(group, kind)} "{name}": {problem}'
    return ApiError(409, "Conflict", message, details=_details(group, kind, name))


def invalid(group: str, kind: str, name: str, errors: Sequence[FieldError]) -> ApiError:
    """Returns a 422. `kind` is the Kind (or the plural, like Kubernetes); the message lists equal errors once."""
    unique = list(dict.fromkeys(str(error) for error in errors))
    listed = unique[0] if len(unique) == 1 else "[" + ", ".join(unique) + "]"
    message = f'{qualified(group, kind)} "{name}" is invalid: {listed}'
    details = _details(group, kind, name)
    details["causes"] = [error.cause() for error in errors]
    return ApiError(422, "Invalid", message, details=details)


def summary(body: str) -> str:
    """Returns the beginning of a body for an error message, in hexadecimal if the body isn't a JSON object."""
    if not body:
        return "<empty>"
    more = " ..." if len(body.encode()) > 30 else ""
    return body[:30] + more if body[0] == "{" else body.encode()[:30].hex() + more


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def forbidden(group: str, plural: str, name: str, problem: str, causes: Sequence[Mapping[str, str]] = ()) -> ApiError:
    subject = f'{qualified(group, plural)} "{name}"' if name else qualified(group, plural)
    details = _details(group, plural, name)
    if causes:
        details["causes"] = [dict(cause) for cause in causes]
    return ApiError(403, "Forbidden", f"{subject} is forbidden: {problem}", details=details)


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def method_not_supported(group: str, plural: str, verb: str) -> ApiError:
    message = f'{verb} is not supported on resources of kind "{qualified(group, plural)}"'
    return ApiError(405, "MethodNotAllowed", message, details=_details(group, plural, ""))


def method_not_allowed() -> ApiError:
    return ApiError(
        405, "MethodNotAllowed", "the server does not allow this method on the requested resource", details={}
    )


def unsupported_media_type(accepted: Sequence[str]) -> ApiError:
    message = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(accepted)
    return ApiError(415, "UnsupportedMediaType", message)


def not_acceptable(accepted: Sequence[str]) -> ApiError:
    message = "only the following media types are accepted: " + ", ".join(accepted)
    return ApiError(406, "NotAcceptable", message)


def expired(message: str) -> ApiError:
    return ApiError(410, "Expired", message)


def too_many_requests(message: str, retry_after: int, causes: Sequence[Mapping[str, str]] = ()) -> ApiError:
    """Returns a 429, which answers evictions that a disruption budget refuses, and requests to a busy server.

    `retry_after` is in seconds.
    """
    details = {"causes": [dict(cause) for cause in causes]} if causes else {}
    return ApiError(429, "TooManyRequests", message, details=details, retry_after=retry_after)


def too_large_resource_version(asked: int, current: int) -> ApiError:
    details = {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]}
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    return ApiError(504, "Timeout", message, details=details, retry_after=1)


def internal(message: str) -> ApiError:
    details = {"causes": [{"message": message}]}
    return ApiError(500, "InternalError", f"Internal error occurred: {message}", details=details)


def success(group: str, plural: str, name: str, uid: str) -> dict[str, Any]:
    """Returns the Status that answers a deletion."""
    details = _details(group, plural, name)
    if uid:
        details["uid"] = uid
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}

"""`apiserver.errors` turns each answer of the API server into one error of the tree, with the server's own message."""

from __future__ import annotations

import json

import pytest

from trainmaster_operator.controller.apiserver import errors
from trainmaster_operator.controller.apiserver.errors import refusal


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (400, "BadRequest", errors.Invalid),
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.ClusterError),
        (413, "RequestEntityTooLarge", errors.Invalid),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.Unavailable),
        (503, "ServiceUnavailable", errors.Unavailable),
    ],
)
def test_translation(status: int, reason: str, kind: type[errors.ClusterError]) -> None:
    body = json.dumps({"kind": "Status", "reason": reason, "message": "because"})
    error = errors.from_response("PATCH /x", status, {}, body)
    assert type(error) is kind
    assert str(error) == "PATCH /x: because"
    assert (error.status, error.reason) == (status, reason)


def test_retry_after_comes_from_the_header_or_the_status() -> None:
    body = json.dumps({"details": {"retryAfterSeconds": 7}})
    assert errors.from_response("GET /x", 429, {"Retry-After": "3"}, body).retry_after == 3
    assert errors.from_response("GET /x", 500, {}, body).retry_after == 7
    assert errors.from_response("GET /x", 503, {"Retry-After": "Fri, 01 Jan 2027 00:00:00 GMT"}, "").retry_after is None
    assert errors.from_response("GET /x", 429, {"Retry-After": "86400"}, "").retry_after == 60


def test_what_a_proxy_answers_is_shown_as_it_is_and_bounded() -> None:
    error = errors.from_response("GET /x", 502, {}, "<html>Bad gateway</html>" + "x" * 1000)
    assert isinstance(error, errors.Unavailable)
    assert error.message.startswith("<html>Bad gateway</html>")
    assert len(error.message) == 300


@pytest.mark.parametrize(
    "body",
    [
        "[" * 100_000,
        '{"message":' + "[" * 900 + "]" * 900 + "}",
        '{"message": 7, "reason": ["AlreadyExists"]}',
        '{"details": {"retryAfterSeconds": {}}}',
        '{"details": {"retryAfterSeconds": [7]}}',
        '{"details": {"retryAfterSeconds": 1%s}}' % ("0" * 400),
        '{"details": {"retryAfterSeconds": NaN}}',
        b"\xff\xfe\x00",
    ],
)
def test_any_body_is_an_error_of_the_tree(body: str | bytes) -> None:
    """Through the API server's proxy, the body may come from a pod."""
    error = errors.from_response("GET /x", 503, {}, body)
    assert type(error) is errors.Unavailable
    assert error.retry_after is None
    assert error.reason == ""


def test_what_is_kept_of_a_status_is_bounded() -> None:
    error = errors.from_response("GET /x", 500, {}, json.dumps({"message": "x" * 10_000, "reason": "y" * 10_000}))
    assert (len(error.message), len(error.reason)) == (errors.MAX_MESSAGE, errors.MAX_REASON)


PATCH = "failed to create typed patch object (default/s; apps/v1, Kind=StatefulSet): "
CONVERT = (
    "failed to convert new object (default/s; apps/v1, Kind=StatefulSet) to proper version: "
    "unable to convert unstructured object to apps/v1, Kind=StatefulSet: "
)
CREATE = 'StatefulSet in version "v1" cannot be handled as a StatefulSet: '
WORKER = 'spec.template.spec.containers[name="worker"]'
NOT_KNOWN = "unknown field; this Kubernetes has none of that name"
FIELD = "into Go struct field"
EXPRESSION = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
QUANTITY = "a quantity in it can't be read; use a number with an optional suffix, such as 16, 500m or 128Gi"

APPLIES = {
    f'{PATCH}.{WORKER}.env[name="A"].value: expected string, got &value.valueUnstructured{{Value:4}}': (
        f'{WORKER}.env[name="A"].value: 4 is not text; write it in quotes'
    ),
    f"{PATCH}.{WORKER}.enviroment: field not declared in schema": (f"{WORKER}.enviroment: {NOT_KNOWN}"),
    f"{PATCH}.spec.template.spec.tolerations: expected list, got &{{map[key:x]}}": (
        "spec.template.spec.tolerations: a mapping is not a list; write its items in brackets or one a line after '-'"
    ),
    f"{PATCH}.spec.template.spec.affinity.nodeAffinity: expected map, got &{{[]}}": (
        "spec.template.spec.affinity.nodeAffinity: a list is not a mapping; give its fields"
    ),
    f'{PATCH}.{WORKER}.ports[containerPort="80",protocol="TCP"].containerPort: '
    "expected numeric (int or float), got string": (
        f'{WORKER}.ports[containerPort="80",protocol="TCP"].containerPort: text is not a whole number; write it '
        "without quotes and without a fraction"
    ),
    f"{PATCH}.{WORKER}.securityContext.privileged: expected boolean, got &{{true}}": (
        f"{WORKER}.securityContext.privileged: true is not true or false; write one of them without quotes"
    ),
    f'{PATCH}.{WORKER}.env: duplicate entries for key [name="A"]': (
        f'{WORKER}.env: duplicate entries for key [name="A"]'
    ),
    f"{PATCH}.spec.template.spec.imagePullSecrets: element 0: associative list with keys may not have non-map "
    "elements": ("spec.template.spec.imagePullSecrets: has an item that is not a mapping; give its fields"),
    f"{PATCH}errors:\n  .spec.a: field not declared in schema\n  .spec.nodeSelector.a: expected string, got "
    "&value.valueUnstructured{Value:3}": (
        f"spec.a: {NOT_KNOWN}; spec.nodeSelector.a: 3 is not text; write it in quotes"
    ),
    f"{CONVERT}{EXPRESSION}": QUANTITY,
    f"{CONVERT}unable to parse quantity's suffix": QUANTITY,
    f"{CONVERT}cannot convert float64 to int64": "cannot convert float64 to int64",
}
CREATES = {
    f'{CREATE}strict decoding error: unknown field "spec.template.spec.a", unknown field "spec.template.spec.b"': (
        f"spec.template.spec.a: {NOT_KNOWN}; spec.template.spec.b: {NOT_KNOWN}"
    ),
    f"{CREATE}json: cannot unmarshal number {FIELD} EnvVar.spec.template.spec.containers.env.value of type "
    "string": "spec.template.spec.containers.env.value: a number is not text; write it in quotes",
    f"{CREATE}json: cannot unmarshal object {FIELD} PodSpec.spec.template.spec.tolerations of type []v1.Toleration": (
        "spec.template.spec.tolerations: a mapping is not a list; write its items in brackets or one a line after '-'"
    ),
    f"{CREATE}json: cannot unmarshal number 30.5 {FIELD} PodSpec.spec.template.spec.priority of type int32": (
        "spec.template.spec.priority: 30.5 is not a whole number; write it without quotes and without a fraction"
    ),
    f"{CREATE}json: cannot unmarshal string {FIELD} PodSpec.spec.template.spec.imagePullSecrets of type "
    "v1.LocalObjectReference": "spec.template.spec.imagePullSecrets: text is not a mapping; give its fields",
    f"{CREATE}{EXPRESSION}": QUANTITY,
}


@pytest.mark.parametrize(
    ("status", "message", "sentence"),
    [(500, *one) for one in APPLIES.items()] + [(400, *one) for one in CREATES.items()],
)
def test_an_object_that_doesnt_fit_its_type_is_refused_with_a_sentence(
    status: int, message: str, sentence: str
) -> None:
    reason = {400: "BadRequest"}.get(status)
    body = json.dumps({"kind": "Status", "message": message, "reason": reason, "code": status})
    error = errors.from_response("PATCH /x", status, {}, body)
    assert type(error) is errors.Invalid
    assert (error.message, error.reason, error.status) == (sentence, errors.INVALID, status)


@pytest.mark.parametrize(
    "message",
    [
        "etcdserver: request timed out",
        "failed to create typed live object (default/s; apps/v1, Kind=StatefulSet): .spec.a: field not declared",
        "Internal error occurred: failed calling webhook: field not declared in schema",
        "",
    ],
)
def test_a_failure_of_the_server_is_tried_again(message: str) -> None:
    assert refusal(message) is None
    body = json.dumps({"kind": "Status", "message": message})
    assert type(errors.from_response("PATCH /x", 500, {}, body)) is errors.Unavailable


def test_no_regular_expression_is_shown() -> None:
    message = (
        'StatefulSet.apps "s" is invalid: spec.x: Invalid value: "W": a lowercase RFC 1123 label must consist of lower '
        "case alphanumeric characters (e.g. 'my-name',  or '123-abc', regex used for validation is "
        "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
    )
    error = errors.from_response("POST /x", 422, {}, json.dumps({"message": message, "reason": "Invalid"}))
    assert error.message == (
        'StatefulSet.apps "s" is invalid: spec.x: Invalid value: "W": a lowercase RFC 1123 label must consist of lower '
        "case alphanumeric characters (such as 'my-name', or '123-abc')"
    )

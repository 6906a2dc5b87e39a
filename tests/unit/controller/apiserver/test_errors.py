"""`apiserver.errors`: each answer of the API server is one error of the tree, with the server's own message."""

from __future__ import annotations

import json

import pytest

from trainmaster_operator.controller.apiserver import errors


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (400, "BadRequest", errors.Invalid),
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.Gone),
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
    """Through the API server's proxy it may be a pod's."""
    error = errors.from_response("GET /x", 503, {}, body)
    assert type(error) is errors.Unavailable
    assert error.retry_after is None
    assert error.reason == ""


def test_what_is_kept_of_a_status_is_bounded() -> None:
    error = errors.from_response("GET /x", 500, {}, json.dumps({"message": "x" * 10_000, "reason": "y" * 10_000}))
    assert (len(error.message), len(error.reason)) == (errors.MAX_MESSAGE, errors.MAX_REASON)

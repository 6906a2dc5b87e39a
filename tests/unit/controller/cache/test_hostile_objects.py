"""`cache.views` and `cache.store` read any object and any line of a leader's stream, or refuse it by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.signer import KEYS
from tests.unit.api.test_hostile_messages import as_text
from tests.unit.controller import builders as b
from tests.unit.hostile_json import JSON, damaged, nested
from tests.unit.wire.test_hostile_messages import ASSIGNMENT, PROGRESS, REPORT
from trainmaster_operator.controller.apiserver.cluster import CHILDREN
from trainmaster_operator.controller.apiserver.errors import ClusterError, from_response
from trainmaster_operator.controller.cache.views import (
    child_view,
    container_view,
    event_time,
    label,
    owner_uid,
    parse_seconds,
    parse_termination_message,
    parse_time,
    pod_view,
    workload_view,
)
from trainmaster_operator.wire.limits import MAX_LINE_BYTES
from trainmaster_operator.wire.names import ASSIGNMENT_ANNOTATION, JOB_NAME_LABEL
from trainmaster_operator.wire.stream import LineBuffer, parse_line
from trainmaster_operator.wire.values import ProtocolError

TIME = "2026-11-22T10:00:00Z"
CONTAINER: dict[str, Any] = {
    "name": "worker",
    "ready": True,
    "restartCount": 2,
    "state": {"terminated": {"exitCode": 1, "reason": "Error", "message": json.dumps(REPORT), "finishedAt": TIME}},
    "lastState": {"terminated": {"exitCode": 137, "startedAt": TIME, "message": "{"}},
}
POD: dict[str, Any] = {
    "metadata": {
        "name": "bert-0",
        "namespace": "ml",
        "uid": "u",
        "creationTimestamp": TIME,
        "labels": {**b.labels(), "apps.kubernetes.io/pod-index": "0"},
        "annotations": {ASSIGNMENT_ANNOTATION: json.dumps(ASSIGNMENT), "trainmaster.dev/touched": "1.5"},
        "ownerReferences": b.owner(),
    },
    "spec": {"nodeName": "n"},
    "status": {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": TIME}],
        "containerStatuses": [CONTAINER],
        "initContainerStatuses": [CONTAINER],
    },
}
SET: dict[str, Any] = {
    "metadata": {**POD["metadata"], "name": "bert"},
    "spec": {"replicas": 2, "template": {"metadata": POD["metadata"]}},
}
WORKLOAD: dict[str, Any] = {
    "metadata": POD["metadata"],
    "spec": {"active": True, "podSets": [{"name": "worker", "count": 2}]},
    "status": {
        "conditions": [{"type": "Admitted", "status": "True"}, {"type": "Evicted", "status": "True", "reason": "x"}],
        "admission": {"podSetAssignments": [{"name": "worker", "count": 2, "flavors": {"cpu": "spot"}}]},
        "admissionChecks": [
            {"podSetUpdates": [{"name": "worker", "labels": {"a": "b"}, "tolerations": [{"key": "x"}]}]}
        ],
    },
}
EVENT: dict[str, Any] = {"series": {"lastObservedTime": TIME}, "lastTimestamp": TIME, "eventTime": TIME}
LINES: list[dict[str, Any]] = [
    {"type": "hello", "leader": 0, "uid": "u", "attempt": 3, "workers": [{"worker": 0, "uid": "u", "seen": 3}]},
    {"type": "report", "seq": 17, "report": REPORT},
    {"type": "progress", "attempt": 3, "worker": 1, "ranks": {"5": PROGRESS}},
    {"type": "evidence", "attempt": 3, "worker": 1, "ranks": {"5": {"step": 1, "text": "x"}}},
    {"type": "worker", "worker": 1, "uid": "u", "seen": 3, "connected": False},
]
STATUS: dict[str, Any] = {"kind": "Status", "reason": "Conflict", "message": "m", "details": {"retryAfterSeconds": 3}}


@given(damaged(POD))
def test_a_pod_is_read_or_is_no_worker(raw: Any) -> None:
    view = pod_view(raw if isinstance(raw, dict) else {"metadata": raw, "status": raw}, KEYS)
    assert view is None or (view.worker < 2**31 and isinstance(view.name, str))


@given(damaged(CONTAINER))
def test_a_containers_status_is_read(raw: Any) -> None:
    if isinstance(raw, dict):
        assert container_view(raw).restarts >= 0


@pytest.mark.parametrize("kind", sorted(CHILDREN))
@given(raw=damaged(SET) | damaged(WORKLOAD))
def test_a_child_is_read(kind: str, raw: Any) -> None:
    if isinstance(raw, dict):
        view = child_view(kind, raw, KEYS)
        assert view.replicas is None or view.replicas >= 0


@given(damaged(WORKLOAD))
def test_a_workload_is_read(raw: Any) -> None:
    if isinstance(raw, dict):
        assert isinstance(workload_view(raw).message, str)


@given(damaged(EVENT), JSON)
def test_times_are_read(raw: Any, value: Any) -> None:
    if isinstance(raw, dict):
        assert event_time(raw) > -1e12
    assert parse_time(value) is None or isinstance(value, str)
    assert parse_seconds(value) is None or isinstance(value, str)


@given(JSON, damaged(POD["metadata"]))
def test_owners_and_labels_are_read(value: Any, metadata: Any) -> None:
    for raw in (metadata, {"labels": value, "ownerReferences": value}):
        if isinstance(raw, dict):
            assert isinstance(label(raw, JOB_NAME_LABEL), str)
            assert owner_uid(raw) is None or isinstance(owner_uid(raw), str)


@given(damaged(REPORT).map(as_text) | st.text(st.characters()))
def test_a_termination_message_is_a_report_or_none(text: str | None) -> None:
    report = parse_termination_message(text or "")
    assert report is None or report.attempt >= 0


@pytest.mark.parametrize(
    "message",
    [
        '{"state":"Failed","worker":1,"attempt":' + "9" * 400 + "}",
        '{"state":"Failed","worker":1,"attempt":1,"at":' + "9" * 400 + "}",
        '{"state":"Failed","worker":1,"attempt":1,"at":' + "9" * 4_000 + "}",
        '{"state":"Failed","worker":1,"attempt":Infinity}',
        '{"state":["Failed"],"worker":1,"attempt":1}',
        '{"a":' + "[" * 1_100 + "]" * 1_100 + "}",
    ],
)
def test_a_termination_message_that_broke_the_operator_is_no_report(message: str) -> None:
    container = {**CONTAINER, "state": {"terminated": {"exitCode": 1, "message": message}}}
    view = container_view(container)
    assert view.end is not None
    assert view.end.report is None


@given(st.integers(100, 599), st.binary() | damaged(STATUS).map(as_text) | st.text(st.characters()))
def test_an_error_of_the_api_server_is_an_error_of_ours(status: int, body: Any) -> None:
    error = from_response("GET /x", status, {"Retry-After": "1e999"}, body or b"")
    assert isinstance(error, ClusterError)
    assert error.retry_after is None or 0 < error.retry_after <= 60


@pytest.mark.parametrize("good", LINES, ids=[line["type"] for line in LINES])
@given(data=st.data())
def test_a_line_of_a_stream_is_parsed_or_refused(good: dict[str, Any], data: st.DataObject) -> None:
    text = as_text(data.draw(damaged(good)))
    try:
        parse_line((text or "").encode())
    except ProtocolError:
        return


@given(st.lists(st.binary(max_size=300) | st.sampled_from([b"\n" * 50, b"x" * MAX_LINE_BYTES, b'{"a":1}\n'])))
def test_any_bytes_of_a_stream_are_lines_or_refused(chunks: list[bytes]) -> None:
    buffer = LineBuffer()
    try:
        for chunk in chunks:
            for line in buffer.feed(chunk):
                assert len(line) <= MAX_LINE_BYTES
                try:
                    parse_line(line)
                except ProtocolError:
                    continue
    except ProtocolError:
        return


def test_odd_objects_are_no_workers_of_ours() -> None:
    def renamed(name: str, labels: Any) -> dict[str, Any]:
        return {**POD, "metadata": {**POD["metadata"], "name": name, "labels": labels}}

    assert pod_view(renamed("bert-" + "9" * 400, []), KEYS) is None
    assert pod_view(renamed("bert-٣", {}), KEYS) is None
    assert pod_view(renamed("bert-x", {"apps.kubernetes.io/pod-index": nested(1_100)}), KEYS) is None
    assert pod_view({**POD, "status": "Running", "spec": ["x"]}, KEYS) is not None
    statuses = {"containerStatuses": [1, "x", {"name": "worker", "restartCount": float("inf")}], "conditions": {"a": 1}}
    view = pod_view({**POD, "status": statuses}, KEYS)
    assert view is not None
    assert view.worker_container is not None
    assert view.worker_container.restarts == 0

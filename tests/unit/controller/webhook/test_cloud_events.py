"""`webhook.cloud_events`: what is said of a status; and the address that it is sent to."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.reconciling.builders import UID, job, running
from trainmaster.api.options import InvalidSetting
from trainmaster.api.v1alpha1 import Condition, Failure, JobStatus
from trainmaster.controller.settings import parse_webhook
from trainmaster.controller.webhook.cloud_events import FAILURE, PHASE, events_of

AT = "2026-11-21T04:01:00Z"
OOM = Failure(attempt=1, reason="OOMKilled", message="CUDA out of memory", worker=1, exit_code=137, failed_at=AT)


def events(old: JobStatus, new: JobStatus) -> list[Any]:
    return list(events_of(job(old), old, new))


def ended(phase: str, reason: str) -> Condition:
    return Condition(type=phase, status="True", reason=reason, message="gave up", last_transition_time=AT)


def test_a_new_phase_is_one_event_by_the_specification() -> None:
    (event,) = events(running(phase="Starting"), running())
    assert event == {
        "specversion": "1.0",
        "id": f"{UID}/1/phase/Running/2026-11-20T00:00:00Z",
        "source": "/apis/trainmaster.dev/v1alpha1/namespaces/ml/distributedtrainingjobs/bert",
        "type": PHASE,
        "subject": "ml/bert",
        "time": "2026-11-20T00:00:00Z",
        "datacontenttype": "application/json",
        "data": {
            **{"namespace": "ml", "name": "bert", "uid": UID, "phase": "Running", "reason": "Running", "message": ""},
            **{"attempt": 1, "restarts": 0, "disruptions": 0},
        },
    }


def test_a_status_that_says_nothing_new_is_no_event() -> None:
    assert events(running(), running(replicas=2)) == []
    failed = running(phase="Restarting", failures=[OOM])
    assert events(failed, failed.model_copy(update={"restarts": 1})) == []


def test_a_failure_comes_before_the_phase_that_follows_from_it() -> None:
    failure, phase = events(running(), running(phase="Restarting", restarts=1, failures=[OOM]))
    assert (failure["type"], phase["type"]) == (FAILURE, PHASE)
    assert (failure["id"], failure["time"]) == (f"{UID}/1/failure/OOMKilled/{AT}", AT)
    assert failure["data"]["reason"] == "OOMKilled" and failure["data"]["restarts"] == 1
    assert failure["data"]["failure"]["exitCode"] == 137 and failure["data"]["failure"]["worker"] == 1
    assert "failure" not in phase["data"]


def test_the_end_has_its_own_condition_and_the_failure_that_led_to_it() -> None:
    new = running(phase="Failed", failures=[OOM]).model_copy(update={"conditions": [ended("Failed", "MaxRestarts")]})
    phase = events(running(failures=[OOM]), new)[-1]
    assert (phase["data"]["reason"], phase["data"]["message"], phase["time"]) == ("MaxRestarts", "gave up", AT)
    assert phase["data"]["failure"]["reason"] == "OOMKilled"


def test_a_cause_that_may_still_be_corrected_is_not_told_and_a_corrected_one_is() -> None:
    provisional = OOM.model_copy(update={"provisional": True})
    assert events(running(), running(failures=[provisional])) == []
    (settled,) = events(running(failures=[provisional]), running(failures=[OOM]))
    (corrected,) = events(running(failures=[OOM]), running(failures=[OOM.model_copy(update={"reason": "NodeLost"})]))
    assert settled["id"] != corrected["id"]


def test_ids_follow_from_what_happened_and_differ_where_it_does() -> None:
    once = events(running(), running(phase="Restarting", failures=[OOM]))
    again = events(running(), running(phase="Restarting", failures=[OOM]))
    assert [event["id"] for event in once] == [event["id"] for event in again]
    times = [
        Condition(type="Suspended", status="True", reason="Suspended", last_transition_time=f"2026-11-2{day}T00:00:00Z")
        for day in (1, 2)
    ]
    suspended = [running(phase="Suspended").model_copy(update={"conditions": [time]}) for time in times]
    assert len({events(running(), status)[0]["id"] for status in suspended}) == 2, "the same attempt, twice"


def test_the_address_of_a_webhook_has_a_scheme_and_a_host_and_no_password() -> None:
    assert parse_webhook("https://hooks.example.com:8443/a?b=c") == "https://hooks.example.com:8443/a?b=c"
    assert parse_webhook("http://[::1]/") == "http://[::1]/"
    assert parse_webhook("") is None is parse_webhook(None)
    for url in (
        "hooks.example.com",
        "ftp://x/",
        "https://",
        "https://h:99999/",
        "https://a b/",
        "https://[x/",
        "https://h\n/",
    ):
        with pytest.raises(InvalidSetting, match="use https://host/path"):
            parse_webhook(url)
    with pytest.raises(InvalidSetting, match="--webhook-headers-file") as error:
        parse_webhook("https://ada:secret@h/")
    assert "secret" not in str(error.value)

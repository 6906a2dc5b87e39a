"""The Python SDK sends the right requests to the API server, and survives broken watches."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.client.fakes import FakeTransport, event, job, pod
from trainmaster.client import JobClient, JobNotFound, NotAllowed, WaitTimeout

JOBS = "/apis/trainmaster.dev/v1alpha1/namespaces/default/distributedtrainingjobs"
PODS = "/api/v1/namespaces/default/pods"
KEPT = "/api/v1/namespaces/default/configmaps/reviews-logs"


def client(transport: FakeTransport) -> JobClient:
    return JobClient("default", transport=transport)


def test_submit_asks_for_strict_validation_so_that_a_misspelled_field_is_never_dropped() -> None:
    transport = FakeTransport({f"POST {JOBS}": job()})
    assert client(transport).submit({"metadata": {"name": "reviews"}, "spec": {"workers": 2}}).phase == "Pending"
    method, _, query, body = transport.asked[0]
    assert (method, query["fieldValidation"]) == ("POST", "Strict")
    assert body["kind"] == "DistributedTrainingJob"


def test_submit_with_replace_applies_on_the_server() -> None:
    transport = FakeTransport({f"PATCH {JOBS}/reviews": job()})
    client(transport).submit({"metadata": {"name": "reviews"}, "spec": {}}, replace=True)
    assert transport.asked[0][2]["force"] == "true"


def test_wait_returns_as_soon_as_the_watch_shows_the_end() -> None:
    transport = FakeTransport(
        {f"GET {JOBS}/reviews": job(phase="Running")},
        {JOBS: [[event("MODIFIED", job(phase="Running")), event("MODIFIED", job(phase="Succeeded", version="9"))]]},
    )
    assert client(transport).wait("reviews").phase == "Succeeded"
    assert transport.asked[1][2]["fieldSelector"] == "metadata.name=reviews"


def test_wait_reads_the_job_again_when_a_watch_ends_or_expires() -> None:
    expired = b'{"type":"ERROR","object":{"kind":"Status","code":410}}'
    transport = FakeTransport(
        {f"GET {JOBS}/reviews": [job(phase="Running"), job(phase="Running"), job(phase="Failed")]},
        {JOBS: [[expired], []]},
    )
    assert client(transport).wait("reviews").phase == "Failed"


def test_wait_ends_with_the_phase_where_the_job_stood() -> None:
    transport = FakeTransport({f"GET {JOBS}/reviews": job(phase="Starting")})
    with pytest.raises(WaitTimeout, match=r"^timed out after 0 s: job reviews is still Starting$") as caught:
        client(transport).wait("reviews", timeout=0)
    assert caught.value.phase == "Starting"


def test_wait_says_when_the_job_is_deleted_meanwhile() -> None:
    transport = FakeTransport({f"GET {JOBS}/reviews": job(phase="Running")}, {JOBS: [[event("DELETED", job())]]})
    with pytest.raises(JobNotFound, match="was deleted while it was waited for"):
        client(transport).wait("reviews")


def test_watch_ends_when_the_job_is_gone() -> None:
    transport = FakeTransport(
        {f"GET {JOBS}/reviews": [job(phase="Running"), JobNotFound("gone")]},
        {JOBS: [[event("MODIFIED", job(phase="Failed"))]]},
    )
    assert [each.phase for each in client(transport).watch("reviews")] == ["Running", "Failed"]


def ending() -> dict[str, Any]:
    """Returns answers for a job that is running, and has ended when it is read again."""
    return {f"GET {JOBS}/reviews": [job(phase="Running"), job(phase="Succeeded")]}


def test_logs_come_from_the_pod_while_there_is_one() -> None:
    transport = FakeTransport(
        {**ending(), f"GET {PODS}": {"items": [pod(1), pod(0)]}, f"GET {KEPT}": NotAllowed("no")},
        {f"{PODS}/reviews-1/log": [[b"a", b"\xffb"]]},
    )
    assert list(client(transport).logs("reviews", 1, tail=5)) == ["a", "�b"]
    assert transport.asked[-1][2] == {"container": "worker", "tailLines": "5", "timestamps": "true"}


def test_logs_begin_with_what_was_kept_of_earlier_pods() -> None:
    def transport() -> FakeTransport:
        kept = {"worker-0.log": "one\n--- attempt 2 ---\ntwo\n", "worker-0.times": '{"times":"1 1 1"}'}
        there = [b"2026-11-21T04:00:01Z --- attempt 2 ---", b"2026-11-21T04:00:02Z two", b"2026-11-21T04:00:03Z three"]
        return FakeTransport(
            {**ending(), f"GET {PODS}": {"items": [pod(0)]}, f"GET {KEPT}": {"data": kept}},
            {f"{PODS}/reviews-0/log": [there]},
        )

    every = ["one", "--- attempt 2 ---", "two", "three"]
    assert list(client(transport()).logs("reviews", 0)) == every
    assert list(client(transport()).logs("reviews", 0, follow=True)) == every
    assert list(client(transport()).logs("reviews", 0, tail=4)) == every
    assert list(client(transport()).logs("reviews", 0, tail=2)) == every[2:]


def test_logs_come_from_what_was_kept_when_the_pod_goes_at_that_moment() -> None:
    transport = FakeTransport(
        {**ending(), f"GET {PODS}": {"items": [pod(0)]}, f"GET {KEPT}": {"data": {"worker-0.log": "one\n"}}},
        {f"{PODS}/reviews-0/log": [JobNotFound('pods "reviews-0" not found')]},
    )
    assert list(client(transport).logs("reviews", 0)) == ["one"]


def test_logs_come_from_what_was_kept_when_the_pods_log_has_just_gone() -> None:
    """The kubelet removes the log before the API server removes the pod, and then returns an empty log."""
    for tail, lines in ((None, ["one", "two"]), (1, ["two"])):
        transport = FakeTransport(
            {**ending(), f"GET {PODS}": {"items": [pod(0)]}, f"GET {KEPT}": {"data": {"worker-0.log": "one\ntwo\n"}}},
            {f"{PODS}/reviews-0/log": [[]]},
        )
        assert list(client(transport).logs("reviews", 0, tail=tail)) == lines


def test_logs_come_from_what_was_kept_when_the_pod_is_gone() -> None:
    kept = {"data": {"worker-0.log": "one\ntwo\nthree\n", "worker-10.log": "", "worker-2.log": ""}}
    transport = FakeTransport({**ending(), f"GET {PODS}": {"items": []}, f"GET {KEPT}": kept})
    jobs = client(transport)
    assert list(jobs.logs("reviews", 0, tail=2)) == ["two", "three"]
    assert list(jobs.logs("reviews", 0, tail=0)) == []
    assert sorted(jobs.kept_logs("reviews")) == [0, 2, 10]
    with pytest.raises(JobNotFound, match="no worker 7, and nothing was kept"):
        list(jobs.logs("reviews", 7))


@pytest.mark.parametrize(
    ("call", "patch"),
    [
        (lambda jobs: jobs.suspend("reviews"), {"spec": {"runPolicy": {"suspend": True}}}),
        (lambda jobs: jobs.resume("reviews"), {"spec": {"runPolicy": {"suspend": False}}}),
        (lambda jobs: jobs.scale("reviews", 3), {"spec": {"workers": 3}}),
    ],
    ids=["suspend", "resume", "scale"],
)
def test_steering_is_a_small_merge_patch(call: object, patch: object) -> None:
    known = job()
    known["spec"]["runPolicy"] = {"suspend": patch == {"spec": {"runPolicy": {"suspend": False}}}}
    transport = FakeTransport({f"GET {JOBS}/reviews": known, f"PATCH {JOBS}/reviews": known})
    assert callable(call)
    call(client(transport))
    assert transport.asked[-1][3] == patch


def test_what_is_no_event_ends_a_watch_and_the_job_is_read_again() -> None:
    for line in (b"<html>", b"[]", b"{}", b'{"type": "MODIFIED"}', b'{"type": "MODIFIED", "object": null}', b"\xff"):
        transport = FakeTransport(
            {f"GET {JOBS}/reviews": [job(phase="Running"), job(phase="Succeeded")]}, {JOBS: [[line]]}
        )
        assert client(transport).wait("reviews").phase == "Succeeded"

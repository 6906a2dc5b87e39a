"""The output of all workers is one stream, and each line says whose it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.unit.client.fakes import FakeTransport, job, pod
from trainmaster.client import JobClient, JobNotFound, NoCluster, all_workers

JOB = "/apis/trainmaster.dev/v1alpha1/namespaces/default/distributedtrainingjobs/reviews"
PODS = "/api/v1/namespaces/default/pods"
KEPT = "/api/v1/namespaces/default/configmaps/reviews-logs"
TWO: dict[str, Any] = {"phase": "Running", "workers": {"desired": 2, "created": 2, "running": 2}}


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_workers, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(all_workers, "SILENT_SECONDS", 0.05)


def lines(*stamped: str) -> list[bytes]:
    """Lines as the kubelet gives them with times, from "SECOND TEXT"."""
    return [
        f"2026-11-21T04:00:{second:>02}Z {text}".encode() for second, _, text in (one.partition(" ") for one in stamped)
    ]


def running(worker: int, restarts: int = 0, **state: Any) -> dict[str, Any]:
    state = state or {"running": {}}
    return pod(worker, containerStatuses=[{"name": "worker", "restartCount": restarts, "state": state}])


class Kubelet(FakeTransport):
    """A kubelet has the log of the container before apart: the containers of a pod are read at once."""

    def lines(self, path: str, *, query: Mapping[str, str], read_seconds: float | None) -> Iterator[bytes]:
        which = f"{path}?previous" if "previous" in query else path
        yield from super().lines(which, query=query, read_seconds=read_seconds)


def served(
    *pods: dict[str, Any], logs: dict[int | str, list[Any]], jobs: Any = None, kept: Any = None
) -> FakeTransport:
    return Kubelet(
        {
            f"GET {JOB}": job(**TWO) if jobs is None else jobs,
            f"GET {PODS}": {"items": list(pods)},
            f"GET {KEPT}": JobNotFound("none") if kept is None else {"data": kept},
        },
        {
            f"{PODS}/reviews-{log}/log" if isinstance(log, int) else f"{PODS}/reviews-{log[0]}/log?previous": batches
            for log, batches in logs.items()
        },
    )


def read(transport: FakeTransport, **options: Any) -> list[str]:
    return list(JobClient("default", transport=transport).logs("reviews", **options))


def test_lines_of_all_workers_come_by_time_with_whose_they_are() -> None:
    transport = served(
        running(0),
        running(1),
        logs={
            0: [lines("1 --- attempt 1 ---", "2 [rank 0]: a", "5 [agent] reports")],
            1: [lines("1 --- attempt 1 ---", "3 [rank 1]: b", "4 Traceback")],
        },
    )
    assert read(transport) == [
        "--- attempt 1 ---",
        "[rank 0]: a",
        "[rank 1]: b",
        "[worker 1] Traceback",
        "[worker 0] [agent] reports",
    ]


def test_the_only_worker_needs_no_label() -> None:
    transport = served(running(0), logs={0: [lines("1 --- attempt 1 ---", "2 hello")]})
    transport.answers[f"GET {JOB}"]["spec"]["workers"] = 1
    transport.answers[f"GET {JOB}"]["status"]["workers"]["desired"] = 1
    assert read(transport) == ["--- attempt 1 ---", "hello"]


def test_the_container_before_is_read_too_and_the_tail_is_of_both() -> None:
    def restarted() -> FakeTransport:
        return served(running(1, restarts=1), logs={"1 before": [lines("1 a", "2 raised")], 1: [lines("3 again")]})

    assert read(restarted()) == ["[worker 1] a", "[worker 1] raised", "[worker 1] again"]
    assert read(restarted(), tail=2) == ["[worker 1] raised", "[worker 1] again"]
    assert read(restarted(), tail=0) == []


def test_what_was_kept_is_merged_when_the_pods_are_gone_and_for_the_one_that_goes_meanwhile() -> None:
    kept = {
        **{"worker-0.log": "a\nc\n", "worker-0.times": '{"times": "1 2"}'},
        **{"worker-1.log": "b\n"},
    }
    gone = served(logs={}, kept=kept, jobs=job(**TWO | {"phase": "Failed"}))
    assert sorted(read(gone)) == ["[worker 0] a", "[worker 0] c", "[worker 1] b"]
    assert sorted(read(gone, tail=1)) == ["[worker 0] c", "[worker 1] b"]
    meanwhile = served(running(0), running(1), logs={0: [lines("1 x")], 1: [JobNotFound("gone")]}, kept=kept)
    assert sorted(read(meanwhile)) == ["[worker 0] a", "[worker 0] c", "[worker 0] x", "[worker 1] b"]


def test_no_job_is_an_error_and_one_that_has_printed_nothing_is_none() -> None:
    waiting = running(0, waiting={"reason": "ContainerCreating"})
    assert read(served(waiting, logs={})) == []
    with pytest.raises(JobNotFound):
        read(served(logs={}, jobs=JobNotFound("gone")))


def test_what_ends_the_reading_of_a_log_is_raised() -> None:
    with pytest.raises(NoCluster, match="kubelet"):
        read(served(running(0), running(1), logs={0: [lines("1 x")], 1: [NoCluster("no kubelet")]}))


def test_a_log_is_followed_from_its_last_line_when_it_breaks_off_and_through_the_next_container() -> None:
    """The first container's log breaks off within second 2 and is read again from there; then another one runs."""
    transport = served(
        logs={
            0: [lines("1 a", "2 b"), lines("2 b", "2 c"), lines("4 e")],
            "0 before": [lines("2 b", "2 c", "3 d")],
        },
        jobs=[job(**TWO)] * 4 + [job(**TWO | {"phase": "Succeeded"})],
    )
    transport.answers[f"GET {PODS}"] = [
        {"items": [running(0, waiting={})]},
        *[{"items": [running(0)]}] * 2,
        {"items": [running(0, restarts=1)]},
    ]
    assert read(transport, follow=True) == [f"[worker 0] {text}" for text in "abcde"]
    asked = [query for _, path, query, _ in transport.asked if path.endswith("/log")]
    assert [query.get("sinceTime") for query in asked[:2]] == [None, "2026-11-21T04:00:02Z"]


def test_following_ends_with_the_job_and_with_what_was_kept_of_workers_that_were_not_seen() -> None:
    transport = served(
        logs={},
        jobs=[job(**TWO), job(**TWO), job(**TWO | {"phase": "Failed"})],
        kept={"worker-0.log": "raised\n"},
    )
    assert read(transport, follow=True) == ["[worker 0] raised"]


def test_a_job_that_is_deleted_meanwhile_is_said() -> None:
    transport = served(logs={}, jobs=[job(**TWO), JobNotFound("gone")])
    with pytest.raises(JobNotFound, match=r"^Job reviews was deleted while its output was followed\.$"):
        read(transport, follow=True)


def test_whoever_stops_reading_stops_the_readers() -> None:
    transport = served(running(0), running(1), logs={0: [lines("1 x", "2 y")], 1: [lines("1 z")]})
    following = JobClient("default", transport=transport).logs("reviews", follow=True)
    assert next(following) == "[worker 0] x"
    following.close()  # type: ignore[attr-defined]
    assert list(following) == []

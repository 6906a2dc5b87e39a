"""A job's output is one stream; each line names its author, and rank, attempt and time can be selected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.unit.client.fakes import FakeTransport, job, pod
from trainmaster.client import JobClient, JobNotFound, NoCluster, TrainingJob, log_reader
from trainmaster.client.log_reader import Filter, Selection
from trainmaster.client.time_order import WorkerLine

JOB = "/apis/trainmaster.dev/v1alpha1/namespaces/default/distributedtrainingjobs/reviews"
PODS = "/api/v1/namespaces/default/pods"
KEPT = "/api/v1/namespaces/default/configmaps/reviews-logs"
TWO: dict[str, Any] = {"phase": "Running", "workers": {"desired": 2, "created": 2, "running": 2}}


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(log_reader, "SILENT_SECONDS", 0.05)


def lines(*stamped: str) -> list[bytes]:
    """Returns lines with times as the kubelet returns them, from "SECOND TEXT"."""
    return [
        f"2026-11-21T04:00:{second:>02}Z {text}".encode() for second, _, text in (one.partition(" ") for one in stamped)
    ]


def running(worker: int, restarts: int = 0, **state: Any) -> dict[str, Any]:
    state = state or {"running": {}}
    return pod(worker, containerStatuses=[{"name": "worker", "restartCount": restarts, "state": state}])


class Kubelet(FakeTransport):
    """Fakes a kubelet with a separate log for the previous container, because a pod's containers are read together."""

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
    """The first container's log breaks off in second 2 and is read again from there; then another container runs."""
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


def test_one_worker_has_the_container_before_as_all_have_it() -> None:
    def restarted() -> FakeTransport:
        return served(running(1, restarts=1), logs={"1 before": [lines("1 a", "2 raised")], 1: [lines("3 again")]})

    assert read(restarted(), worker=1) == ["a", "raised", "again"]
    assert read(restarted(), worker=1, tail=2) == ["raised", "again"]


@pytest.mark.parametrize("tail", [None, 5])
@pytest.mark.parametrize("suspended_at_first", [False, True])
def test_what_was_kept_before_a_resume_comes_first_also_with_a_tail(tail: int | None, suspended_at_first: bool) -> None:
    """This also holds for `kubectl dtj logs -f --tail 5`, and the page always asks with a tail."""
    halted = job(**TWO | {"phase": "Suspended"})
    transport = served(
        logs={0: [lines("5 --- attempt 2 ---", "6 after")]},
        jobs=[halted, halted, job(**TWO), job(**TWO), job(**TWO | {"phase": "Succeeded"})],
        kept={"worker-0.log": "before\n", "worker-0.times": '{"times": "1"}'},
    )
    there = {"items": [running(0)]}
    transport.answers[f"GET {PODS}"] = [{"items": []}, {"items": []}, there] if suspended_at_first else [there]
    assert read(transport, follow=True, tail=tail) == ["[worker 0] before", "--- attempt 2 ---", "[worker 0] after"]


T0 = 1_763_697_600.0
LOG = (
    "[agent]: attempt 1 starts cold",
    "[rank 0]: one",
    "[rank 1]: --- attempt 9 ---",
    "[worker 0]: torchrun says",
    "--- attempt 2 ---",
    "[rank 0]: two",
    "[rank 10]: two",
)


def kept(selection: Selection, log: tuple[str, ...] = LOG, at: float = T0, **status: Any) -> list[str]:
    lines = (WorkerLine(at + number, 0, text) for number, text in enumerate(log))
    return [line.text for line in filter(Filter(selection, TrainingJob.of(job(**status))), lines)]


def test_a_rank_has_the_lines_that_begin_with_it() -> None:
    assert kept(Selection(ranks=frozenset([0]))) == ["[rank 0]: one", "[rank 0]: two"]
    assert kept(Selection(ranks=frozenset([1, 10]))) == ["[rank 1]: --- attempt 9 ---", "[rank 10]: two"]


def test_an_attempt_goes_from_its_separator_to_the_next_one_and_no_rank_can_forge_one() -> None:
    assert kept(Selection(attempt=1)) == list(LOG[:4])
    assert kept(Selection(attempt=2)) == list(LOG[4:])
    assert kept(Selection(attempt=9)) == []


def test_a_log_whose_beginning_is_gone_begins_with_the_attempt_that_there_was_at_the_time() -> None:
    failures = [
        {"attempt": attempt, "reason": "Error", "failedAt": f"2026-11-21T0{3 + attempt}:00:00Z"} for attempt in (2, 1)
    ]
    log, late = ("[rank 0]: after",), 1_795_242_600.0  # 2026-11-21T06:30:00Z
    assert kept(Selection(attempt=3), log, late, failures=failures) == list(log)
    assert kept(Selection(attempt=1), log, late, failures=failures) == []
    assert kept(Selection(attempt=2), log, late - 7200, failures=failures) == list(log)


def test_lines_that_are_older_are_left_out_and_lines_without_a_time_are_not() -> None:
    assert kept(Selection(since=T0 + 5)) == list(LOG[5:])
    assert kept(Selection(since=T0), at=-1e9) == []
    assert kept(Selection(since=T0), log=("x",), at=0.0) == ["x"]


@pytest.mark.parametrize(
    ("text", "rank", "label", "separates"),
    [
        ("[rank 12]: text", 12, "[rank 12]: ", None),
        ("[worker 3]: text", None, "[worker 3]: ", None),
        ("[agent]: text", None, "", None),
        ("--- attempt 3 ---", None, "", 3),
        ("--- attempt 3 --- ", None, "", None),
        ("[rank x]: text", None, "", None),
        ("", None, "", None),
    ],
)
def test_a_line_says_whose_it_is(text: str, rank: int | None, label: str, separates: int | None) -> None:
    line = WorkerLine(0, 0, text)
    assert (line.rank, line.label, line.separates) == (rank, label, separates)

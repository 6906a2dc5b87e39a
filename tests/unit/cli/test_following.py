"""`kubectl dtj logs -f`, from one container to the next: waits, restarts, replaced pods, suspend, the end, deletion."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cli.dtj_command import JOBS, PODS, RUNNING, condition, run
from tests.unit.cli.fake_kubelet import FakeKubelet
from tests.unit.client.fakes import job, pod
from trainmaster.cli.connection import Connection
from trainmaster.client import InvalidRequest, JobClient, JobNotFound, NotAllowed

KEPT = "/api/v1/namespaces/default/configmaps/reviews-logs"
ENDED = "Job reviews has ended: Succeeded.\n"
ONE: dict[str, Any] = {**RUNNING, "workers": {"desired": 1, "created": 1, "running": 1}}
UNPLACED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes have room"}


@pytest.fixture
def kubelet(monkeypatch: pytest.MonkeyPatch) -> FakeKubelet:
    fake = FakeKubelet()
    monkeypatch.setattr(Connection, "client", lambda options: JobClient(options.namespace or "default", transport=fake))
    return fake


def single(**status: Any) -> dict[str, Any]:
    """A job of one worker."""
    return {**job(**status), "spec": {"workers": 1}}


def running(worker: int = 0, *, restarts: int = 0, uid: str = "u", **state: Any) -> dict[str, Any]:
    """A pod whose container runs, or is in another state."""
    status = {"name": "worker", "restartCount": restarts, "state": state or {"running": {}}}
    made = pod(worker, containerStatuses=[status])
    made["metadata"]["uid"] = uid
    return made


def pods(*found: dict[str, Any]) -> dict[str, Any]:
    return {"items": list(found)}


def answers(jobs: list[Any], pod_lists: list[Any], kept: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        f"GET {JOBS}/reviews": jobs,
        f"GET {PODS}": pod_lists,
        f"GET {KEPT}": JobNotFound("none") if kept is None else {"data": kept},
    }


def test_it_waits_for_the_first_line_and_says_what_for_once_a_change(kubelet: FakeKubelet) -> None:
    unplaced = pod(0, phase="Pending", conditions=[UNPLACED])
    creating = running(waiting={"reason": "ContainerCreating"})
    kubelet.answers = answers(
        [single(), single(), *[single(**ONE)] * 6, single(phase="Succeeded")],
        [pods(), pods(unplaced), pods(unplaced), pods(creating), pods(running())],
    )
    kubelet.containers = {"reviews-0": [[(1, "hello")]]}
    result = run("logs", "reviews", "-f")
    assert (result.exit_code, result.stdout) == (0, "hello\n")
    assert result.stderr == (
        "Job reviews has no pods: no operator has accepted this job yet; if that lasts: is one running that serves its "
        "namespace?\n"
        "Worker 0 has no output yet: pod reviews-0 is Pending (Unschedulable: 0/3 nodes have room).\n"
        "Worker 0 has no output yet: pod reviews-0 is ContainerCreating.\n" + ENDED
    )


def test_it_goes_on_in_the_next_container_and_in_the_pod_that_replaces_it(kubelet: FakeKubelet) -> None:
    kubelet.answers = answers(
        [*[single(**ONE)] * 8, single(phase="Succeeded")],
        [pods(running()), pods(running(restarts=1)), pods(running(restarts=1)), pods(running(uid="v"))],
    )
    kubelet.containers = {"reviews-0": [[(1, "zero"), (2, "one")], [(3, "two")]], "reviews-0@v": [[(4, "three")]]}
    result = run("logs", "reviews", "-f", "--tail", "1")
    assert result.stdout.splitlines() == ["one", "two", "three"], "a tail is of what was there before"


def test_a_container_that_ran_between_two_looks_is_read_too(kubelet: FakeKubelet) -> None:
    kubelet.answers = answers(
        [*[single(**ONE)] * 4, single(phase="Succeeded")],
        [pods(running()), pods(running(restarts=2))],
    )
    kubelet.containers = {"reviews-0": [[(1, "one")], [(2, "two")], [(3, "three")]]}
    assert run("logs", "reviews", "-f").stdout.splitlines() == ["one", "two", "three"]


def test_the_last_lines_of_a_container_that_ended_between_two_looks_come_too(kubelet: FakeKubelet) -> None:
    kubelet.answers = answers(
        [*[single(**ONE)] * 4, single(phase="Succeeded")],
        [pods(running()), pods(running(restarts=1))],
    )
    kubelet.containers = {"reviews-0": [[(1, "one")], [(2, "three")]]}
    kubelet.growing = {"reviews-0": [[(1.5, "two")]]}
    assert run("logs", "reviews", "-f").stdout.splitlines() == ["one", "two", "three"]


def test_a_log_that_breaks_off_is_read_on_where_it_was(kubelet: FakeKubelet) -> None:
    kubelet.answers = answers([*[single(**ONE)] * 3, single(phase="Succeeded")], [pods(running())])
    kubelet.containers = {"reviews-0": [[(1.5, "one"), (1.6, "two"), (1.6, "two")]]}
    kubelet.growing = {"reviews-0": [[(1.6, "three")], [(1.7, "four")]]}
    assert run("logs", "reviews", "-f").stdout == "one\ntwo\ntwo\nthree\nfour\n"


def test_it_waits_while_the_job_is_suspended_whose_kept_output_comes_first(kubelet: FakeKubelet) -> None:
    reason = condition("Running", "False", "Suspended", "runPolicy.suspend is true; set it to false to go on")
    halted = single(**{**ONE, "phase": "Suspended", "conditions": [reason]})
    kubelet.answers = answers(
        [*[halted] * 3, *[single(**ONE)] * 3, single(phase="Succeeded")],
        [pods(), pods(), pods(running())],
        {"worker-0.log": "before\n"},
    )
    kubelet.containers = {"reviews-0": [[(1, "--- attempt 2 ---"), (2, "after")]]}
    result = run("logs", "reviews", "-f")
    assert result.stdout == "before\n--- attempt 2 ---\nafter\n"
    resume = "to let it go on: kubectl dtj resume reviews -n default"
    assert result.stderr == (f"Job reviews has no pods: Suspended: runPolicy.suspend is true; {resume}\n{ENDED}")


def test_what_nobody_could_read_before_the_end_comes_from_what_was_kept(kubelet: FakeKubelet) -> None:
    kubelet.answers = answers(
        [single(**ONE), single(phase="Succeeded")], [pods(pod(0, phase="Pending")), pods()], {"worker-0.log": "fast\n"}
    )
    result = run("logs", "reviews", "-f")
    assert (result.exit_code, result.stdout) == (0, "fast\n")


def test_the_log_of_a_pod_that_outlives_its_job_isnt_waited_for(kubelet: FakeKubelet) -> None:
    kubelet.answers = answers([single(**ONE), single(phase="Succeeded")], [pods(running())])
    kubelet.containers = {"reviews-0": [[(1, "x")]]}
    assert run("logs", "reviews", "-f").exit_code == 0


@pytest.mark.parametrize(
    "then",
    [JobNotFound("gone"), {**single(**ONE), "metadata": {**job()["metadata"], "uid": "another"}}],
    ids=["deleted", "made again"],
)
def test_a_deleted_job_ends_it_with_1(kubelet: FakeKubelet, then: Any) -> None:
    kubelet.answers = answers([single(**ONE), single(**ONE), then], [pods(running())])
    result = run("logs", "reviews", "-f")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: Job reviews was deleted while its output was followed")


def test_all_workers_are_read_and_named(kubelet: FakeKubelet) -> None:
    kubelet.answers = answers(
        [job(**RUNNING), job(**RUNNING), single(phase="Succeeded")], [pods(running(0), running(1))]
    )
    kubelet.containers = {f"reviews-{worker}": [[(1 + worker, "x"), (3 + worker, "y")]] for worker in (0, 1)}
    assert run("logs", "reviews", "-f").stdout.splitlines() == [
        f"[worker {worker}] {text}" for text in "xy" for worker in (0, 1)
    ]


def test_many_workers_without_output_are_counted(kubelet: FakeKubelet) -> None:
    many = pods(*(pod(worker, phase="Pending") for worker in range(12)))
    kubelet.answers = answers([job(**RUNNING), single(phase="Succeeded")], [many])
    lines = run("logs", "reviews", "-f").stderr.splitlines()
    assert lines[7:9] == ["Worker 7 has no output yet: pod reviews-7 is Pending.", "... and 4 more workers."]


@pytest.mark.parametrize("follow", [[], ["-f"]])
def test_a_failed_job_without_output_says_what_failed(kubelet: FakeKubelet, follow: list[str]) -> None:
    failed = condition("Failed", "True", "LaunchError", "worker 0 couldn't start its program: no torchrun on the PATH")
    kubelet.answers = answers([job(phase="Failed", attempt=1, conditions=[failed])], [pods()])
    result = run("logs", "reviews", *follow)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith(
        "Job reviews has failed: LaunchError: worker 0 couldn't start its program: no torchrun on the PATH\n"
    )


def test_a_worker_that_has_not_started_says_why(kubelet: FakeKubelet) -> None:
    pulling = running(1, waiting={"reason": "ImagePullBackOff", "message": "Back-off pulling image x"})
    kubelet.answers = answers([job(**RUNNING)], [pods(running(0), pulling)])
    kubelet.containers = {"reviews-0": [[(1, "hello")]]}
    result = run("logs", "reviews")
    assert (result.exit_code, result.stdout) == (0, "[worker 0] hello\n")
    assert result.stderr == (
        "Worker 1 has no output yet: pod reviews-1 is ImagePullBackOff (Back-off pulling image x).\n"
    )


@pytest.mark.parametrize("follow", [[], ["-f"]])
def test_a_worker_that_the_job_cant_have_is_refused_with_those_that_there_are(
    kubelet: FakeKubelet, follow: list[str]
) -> None:
    kubelet.answers = answers([job(**RUNNING)], [pods(running(0), running(1))])
    result = run("logs", "reviews", "--worker", "2", *follow)
    assert (result.exit_code, result.stderr) == (1, "error: Job reviews has no worker 2: it has workers 0 to 1\n")


def test_a_spare_is_one_of_those_that_there_are(kubelet: FakeKubelet) -> None:
    found = job(**{**RUNNING, "workerOrder": [0, 2]})
    found["spec"]["spares"] = 1
    kubelet.answers = answers([found], [pods(running(0), running(1), running(2))])
    kubelet.containers = {"reviews-2": [[(1, "hello")]]}
    assert run("logs", "reviews", "--worker", "2").stdout == "hello\n"
    assert "it has workers 0 to 2" in run("logs", "reviews", "--worker", "3").stderr


def test_who_may_not_read_logs_is_told_so(kubelet: FakeKubelet) -> None:
    kubelet.answers = answers([single(**ONE)], [pods(running())])
    kubelet.refusals = {"reviews-0": [NotAllowed("pods/log is forbidden")]}
    result = run("logs", "reviews", "-f")
    assert (result.exit_code, result.stderr) == (1, "error: pods/log is forbidden\n")


def test_a_container_whose_log_isnt_there_yet_is_asked_again(kubelet: FakeKubelet) -> None:
    kubelet.answers = answers([*[single(**ONE)] * 3, single(phase="Succeeded")], [pods(running())])
    waiting = InvalidRequest('container "worker" in pod "reviews-0" is waiting to start')
    kubelet.refusals = {"reviews-0": [waiting, waiting]}
    kubelet.containers = {"reviews-0": [[(1, "hello")]]}
    assert run("logs", "reviews", "-f").stdout == "hello\n"


def test_output_of_a_suspended_job_is_what_was_kept(kubelet: FakeKubelet) -> None:
    kubelet.answers = answers([single(**{**ONE, "phase": "Suspended"})], [pods()], {"worker-0.log": "before\n"})
    assert run("logs", "reviews").stdout == "before\n"


def test_an_image_that_is_pulled_in_vain_again_and_again_is_said_once(kubelet: FakeKubelet) -> None:
    tries = [running(waiting={"reason": reason}) for reason in ("ErrImagePull", "ImagePullBackOff")]
    kubelet.answers = answers([*[single(**ONE)] * 6, single(phase="Failed")], [pods(tries[at % 2]) for at in range(7)])
    lines = run("logs", "reviews", "-f").stderr.splitlines()
    assert [line.rpartition(" ")[2] for line in lines[:2]] == ["ErrImagePull.", "ImagePullBackOff."]
    assert not any(line.startswith("Worker") for line in lines[2:])

"""`kubectl dtj logs -f` follows one container after the otherthrough waits, restarts, new pods, suspension and end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cli.dtj_command import JOBS, PODS, RUNNING, condition, run
from tests.unit.cli.fake_kubelet import BEGINNING, FakeKubelet
from tests.unit.client.fakes import job, pod
from trainmaster.cli.connection import Connection
from trainmaster.client import InvalidRequest, JobClient, JobNotFound, NotAllowed
from trainmaster_operator.api.kept_logs import KeptLog

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
    """Returns a job of one worker."""
    return {**job(**status), "spec": {"workers": 1}}


def running(worker: int = 0, *, restarts: int = 0, uid: str = "u", **state: Any) -> dict[str, Any]:
    """Returns a pod whose container is running or in the given state."""
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
        "Job reviews has no pods: No operator has accepted this job yet. If this lasts, `kubectl dtj why reviews -n "
        "default` names the cause, and `kubectl get deployments -A -l app.kubernetes.io/name=trainmaster` lists the "
        "operators; on a laptop, `trainmaster operator run --all-namespaces --no-leader-elect` starts one.\n"
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
    reason = condition("Running", "False", "Suspended", "runPolicy.suspend is true; set it to false to continue")
    halted = single(**{**ONE, "phase": "Suspended", "conditions": [reason]})
    kubelet.answers = answers(
        [*[halted] * 3, *[single(**ONE)] * 3, single(phase="Succeeded")],
        [pods(), pods(), pods(running())],
        {"worker-0.log": "before\n"},
    )
    kubelet.containers = {"reviews-0": [[(1, "--- attempt 2 ---"), (2, "after")]]}
    result = run("logs", "reviews", "-f")
    assert result.stdout == "before\n--- attempt 2 ---\nafter\n"
    resume = "to resume: kubectl dtj resume reviews -n default"
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


SPEC: dict[str, Any] = {"image": "x", "command": ["python", "train.py"], "workers": 2}
GROUPS = [{"name": "a", "workers": 1, "resources": {"gpus": 4}}, {"name": "b", "workers": 2}]


@pytest.mark.parametrize("follow", [[], ["-f"]])
@pytest.mark.parametrize(
    ("spec", "rank", "there"),
    [
        ({}, 2, "ranks 0 to 1"),
        ({"workers": 1}, 1, "rank 0 alone"),
        ({"processesPerWorker": 4}, 8, "ranks 0 to 7"),
        ({"resources": {"gpus": 8}, "spares": 1}, 16, "ranks 0 to 15"),
        ({"elastic": {"minWorkers": 1, "maxWorkers": 4}}, 4, "ranks 0 to 3"),
        ({"workers": None, "workerGroups": GROUPS}, 6, "ranks 0 to 5"),
    ],
)
def test_a_rank_that_the_job_cant_have_is_refused_with_those_that_there_are(
    kubelet: FakeKubelet, spec: dict[str, Any], rank: int, there: str, follow: list[str]
) -> None:
    found = {**job(**{**RUNNING, "workers": {}}), "spec": {**SPEC, **spec}}
    kubelet.answers = answers([*[found] * 4, {**found, "status": {"phase": "Succeeded"}}], [pods()])
    result = run("logs", "reviews", "--rank", str(rank), *follow)
    assert (result.exit_code, result.stderr) == (1, f"error: Job reviews has no rank {rank}: it has {there}\n")
    assert run("logs", "reviews", "--rank", str(rank - 1), *follow).exit_code == 0, "it has no output yet"


def test_a_rank_isnt_refused_where_nobody_knows_how_many_there_are(kubelet: FakeKubelet) -> None:
    """The job was made by another release."""
    kubelet.answers = answers([{**job(**RUNNING), "spec": {"workers": 2, "unheardOf": True}}], [pods(running(0))])
    kubelet.containers = {"reviews-0": [[(1, "[rank 5]: hello")]]}
    assert run("logs", "reviews", "--rank", "5").stdout == "[rank 5]: hello\n"


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


def test_a_job_that_has_ended_is_said_to_have_ended(kubelet: FakeKubelet) -> None:
    kubelet.answers = answers([single(phase="Succeeded")], [pods()], {"worker-0.log": "all of it\n"})
    result = run("logs", "reviews", "-f")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "all of it\n", ENDED)
    assert run("logs", "reviews").stderr == ""


def test_a_job_that_has_ended_without_output_is_said_to_have_ended_once(kubelet: FakeKubelet) -> None:
    kubelet.answers = answers([single(phase="Succeeded")], [pods()])
    assert run("logs", "reviews", "-f").stderr == f"{ENDED}  It printed nothing that was kept.\n"


def kept_of(log: list[tuple[float, str]], *, cut: bool = False) -> dict[str, str]:
    """Returns worker 0's log as the operator keeps it."""
    times = tuple(round((BEGINNING + seconds) * 1_000) for seconds, _ in log)
    return KeptLog(tuple(text for _, text in log), times, cut).to_data(0)


FIRST = [(1.0001, "[rank 0]: one"), (1.0002, "[rank 0]: and")]
SECOND = [(70.0, "--- attempt 2 ---"), (71.0, "[rank 0]: two")]
THIRD = [(80.0, "--- attempt 3 ---"), (81.0, "[rank 0]: three")]


def texts(*logs: list[tuple[float, str]]) -> list[str]:
    return [text for log in logs for _, text in log]


@pytest.mark.parametrize("follow", [[], ["-f"]])
@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ([], texts(FIRST, SECOND)),
        (["--attempt", "1"], texts(FIRST)),
        (["-p"], texts(FIRST)),
        (["--attempt", "2"], texts(SECOND)),
        (["--tail", "3"], texts(FIRST, SECOND)[-3:]),
        (["--tail", "1"], texts(SECOND)[-1:]),
        (["--tail", "0"], []),
        (["--rank", "0"], [*texts(FIRST), SECOND[1][1]]),
    ],
    ids=" ".join,
)
def test_behind_a_resume_comes_what_was_kept_and_then_what_the_new_pod_has(
    kubelet: FakeKubelet, options: list[str], lines: list[str], follow: list[str]
) -> None:
    kubelet.answers = answers([*[single(**ONE)] * 3, single(phase="Succeeded")], [pods(running())], kept_of(FIRST))
    kubelet.containers = {"reviews-0": [SECOND]}
    result = run("logs", "reviews", *options, *follow)
    assert (result.exit_code, result.stdout.splitlines()) == (0, lines)
    assert "Nothing" not in result.stderr


@pytest.mark.parametrize("follow", [[], ["-f"]])
@pytest.mark.parametrize("phase", ["Suspended", "Succeeded"])
@pytest.mark.parametrize(
    ("kept", "there"),
    [
        ([FIRST], [FIRST]),
        ([FIRST, SECOND], [SECOND]),
        ([FIRST, SECOND, THIRD], [SECOND, THIRD]),
        ([FIRST[1:], SECOND], [FIRST, SECOND]),
        ([SECOND], [FIRST, SECOND]),
        ([FIRST, SECOND], [SECOND[1:]]),
    ],
)
def test_kept_output_of_a_pod_that_is_still_there_doesnt_come_twice(
    kubelet: FakeKubelet, kept: list[Any], there: list[Any], phase: str, follow: list[str]
) -> None:
    kubelet.answers = answers(
        [*[single(**{**ONE, "attempt": 3, "phase": phase})] * 3, single(phase="Succeeded")],
        [pods(running())],
        kept_of([line for log in kept for line in log], cut=kept[0][0] != FIRST[0]),
    )
    kubelet.containers = {"reviews-0": [[line for log in there for line in log]]}
    whole = sorted({line for log in (*kept, *there) for line in log})
    result = run("logs", "reviews", *follow)
    assert result.stdout.splitlines() == texts(whole)
    assert "first lines" not in result.stderr


def test_a_clock_that_is_behind_the_last_nodes_loses_nothing(kubelet: FakeKubelet) -> None:
    kubelet.answers = answers([single(**ONE)], [pods(running())], kept_of(FIRST))
    kubelet.containers = {"reviews-0": [[(0.5, "--- attempt 2 ---"), (0.6, "[rank 0]: two")]]}
    assert sorted(run("logs", "reviews").stdout.splitlines()) == sorted(texts(FIRST, SECOND))


def test_what_was_kept_without_times_comes_once_too(kubelet: FakeKubelet) -> None:
    kubelet.answers = answers(
        [single(**{**ONE, "phase": "Suspended"})], [pods(running())], {"worker-0.log": kept_of(FIRST)["worker-0.log"]}
    )
    kubelet.containers = {"reviews-0": [FIRST]}
    assert run("logs", "reviews").stdout.splitlines() == texts(FIRST)


def test_what_was_kept_comes_while_the_new_pod_waits(kubelet: FakeKubelet) -> None:
    waits = running(waiting={"reason": "ContainerCreating"})
    kubelet.answers = answers([single(**ONE)], [pods(waits)], kept_of(FIRST))
    result = run("logs", "reviews")
    assert result.stdout.splitlines() == texts(FIRST)
    assert result.stderr == "Worker 0 has no output yet: pod reviews-0 is ContainerCreating.\n"


@pytest.mark.parametrize(("options", "said"), [([], True), (["--attempt", "1"], True), (["--attempt", "2"], False)])
def test_behind_a_resume_it_is_said_that_first_lines_are_missing(
    kubelet: FakeKubelet, options: list[str], said: bool
) -> None:
    kubelet.answers = answers(
        [single(**{**ONE, "attempt": 3})], [pods(running())], kept_of([*FIRST[1:], *SECOND], cut=True)
    )
    kubelet.containers = {"reviews-0": [THIRD]}
    assert ("The first lines of worker 0 aren't there" in run("logs", "reviews", *options).stderr) is said


def test_what_was_kept_first_isnt_printed_again_when_nobody_could_read_the_rest(kubelet: FakeKubelet) -> None:
    suspended = single(**{**ONE, "phase": "Suspended"})
    kubelet.answers = {
        **answers([*[suspended] * 2, single(phase="Succeeded")], [pods()]),
        f"GET {KEPT}": [{"data": kept_of(FIRST)}, {"data": kept_of([*FIRST[1:], *SECOND], cut=True)}],
    }
    assert run("logs", "reviews", "-f").stdout.splitlines() == texts(FIRST, SECOND)


def test_who_may_not_read_config_maps_sees_what_the_pods_have(kubelet: FakeKubelet) -> None:
    kubelet.answers = {**answers([single(**ONE)], [pods(running())]), f"GET {KEPT}": NotAllowed("forbidden")}
    kubelet.containers = {"reviews-0": [SECOND]}
    result = run("logs", "reviews")
    assert (result.exit_code, result.stdout.splitlines()) == (0, texts(SECOND))

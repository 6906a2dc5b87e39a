"""`kubectl dtj` accepts the names that kubectl prints, explains wrong usage, and shows the logs of the right worker."""

from __future__ import annotations

import pytest

from tests.unit.cli.dtj_command import JOBS, PODS, RUNNING, run
from tests.unit.client.fakes import FakeTransport, job, pod
from trainmaster.client import JobNotFound, NotAllowed


@pytest.mark.parametrize(
    "name", ["dtj/reviews", "distributedtrainingjob.trainmaster.dev/reviews", "DistributedTrainingJob/reviews"]
)
def test_a_name_can_be_given_as_kubectl_prints_it(transport: FakeTransport, name: str) -> None:
    transport.answers = {f"GET {JOBS}/reviews": job(phase="Succeeded")}
    assert run("wait", name).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("logs", "reviews", "--worker", "x"), "Invalid value for --worker: 'x' is no whole number"),
        (("logs", "reviews", "--tail", "-1"), "Invalid value for --tail: '-1' is too small; use at least 0"),
        (("evidence", "reviews", "--attempt", "1.5"), "Invalid value for --attempt: '1.5' is no whole number"),
        (("describe", "reviews"), "No such command 'describe'. Use kubectl describe dtj."),
    ],
)
def test_wrong_usage_has_a_sentence(transport: FakeTransport, arguments: tuple[str, ...], sentence: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[0] == f"error: {sentence}"


@pytest.mark.parametrize("name", ["", "a/b", "..", "A", "a b", "dtj/", "x" * 254, "a\n"])
@pytest.mark.parametrize("command", ["status", "logs", "wait", "suspend", "resume", "evidence"])
def test_what_no_job_can_be_named_is_wrong_usage_and_asks_nothing(
    transport: FakeTransport, command: str, name: str
) -> None:
    result = run(command, name)
    assert result.exit_code == 2
    assert "is no name of a job" in result.output
    assert transport.asked == []


def test_a_missing_job_is_one_sentence_and_exit_code_1(transport: FakeTransport) -> None:
    sentence = 'distributedtrainingjobs.trainmaster.dev "review" not found'
    transport.answers = {f"GET {JOBS}/review": JobNotFound(sentence), f"GET {JOBS}": NotAllowed("may not list")}
    result = run("logs", "review")
    assert (result.exit_code, result.output) == (1, f"error: {sentence}\n")


@pytest.mark.parametrize("command", ["status", "logs", "wait", "suspend", "resume", "evidence"])
def test_a_missing_job_comes_with_the_names_that_are_near(transport: FakeTransport, command: str) -> None:
    transport.answers = {
        f"GET {JOBS}/review": JobNotFound("not found"),
        f"GET {JOBS}": {"items": [job(), job("other")]},
    }
    result = run(command, "review")
    assert result.exit_code == 1
    assert result.stderr == "error: There is no job review in namespace default; did you mean reviews?\n"


def test_logs_of_several_workers_name_each(transport: FakeTransport) -> None:
    transport.answers = {
        f"GET {JOBS}/reviews": job(**RUNNING),
        f"GET {PODS}": {"items": [pod(0), pod(1)]},
        "GET /api/v1/namespaces/default/configmaps/reviews-logs": JobNotFound("none"),
    }
    transport.streams = {f"{PODS}/reviews-{worker}/log": [[f"hello {worker}".encode()]] for worker in (0, 1)}
    assert run("logs", "reviews").output == "[worker 0] hello 0\n[worker 1] hello 1\n"

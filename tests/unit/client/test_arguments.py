"""A wrong argument of a method raises a ClientError of one sentence before any request is sent."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.client.fakes import FakeTransport, job
from trainmaster.client import AsyncJobClient, InvalidRequest, JobClient, TrainingJob, train


def fit(steps: int = 1) -> None:
    print(steps)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda jobs: jobs.submit("job.yaml"),
            "manifest is of type str: give the job as a mapping, such as yaml.safe_",
        ),
        (lambda jobs: jobs.submit(None, replace=True), "manifest is of type NoneType: give the job as a mapping"),
        (lambda jobs: jobs.get(TrainingJob.of(job())), "name is of type TrainingJob: give the name of a job as text"),
        (lambda jobs: jobs.delete(None), "name is of type NoneType: give"),
        (lambda jobs: jobs.wait(3), "name is of type int: give"),
        (lambda jobs: jobs.watch(3), "name is of type int: give"),
        (lambda jobs: jobs.wait("a", timeout="10"), "timeout is of type str: give a number of seconds"),
        (lambda jobs: jobs.wait("a", until="Running"), "until is of type str: give a function of a job"),
        (lambda jobs: jobs.stacks("a", timeout="10"), "timeout is of type str"),
        (lambda jobs: jobs.list(selector={"team": "vision"}), "selector is of type dict: give labels as text"),
        (lambda jobs: next(jobs.watch_all(selector=1)), "selector is of type int"),
        (lambda jobs: jobs.scale("a", "3"), "workers is of type str: give a whole number"),
        (lambda jobs: jobs.scale("a", True), "workers is of type bool: give a whole number"),
        (lambda jobs: jobs.merge("a", [1]), "patch is of type list: give a mapping"),
        (lambda jobs: jobs.logs("a", "0"), "worker is of type str: give a whole number"),
        (lambda jobs: jobs.logs("a", tail=-1), "tail is -1: give a whole number from 0"),
        (lambda jobs: jobs.logs(1), "name is of type int"),
        (lambda jobs: jobs.pod_log(1), "pod is of type int"),
        (lambda jobs: jobs.pods(1), "name is of type int"),
        (lambda jobs: jobs.metrics(None), "name is of type NoneType"),
        (lambda jobs: jobs.kept_logs(1), "name is of type int"),
        (lambda jobs: jobs.evidence(1), "name is of type int"),
        (lambda jobs: train(fit, jobs=jobs, arguments=[1]), "arguments is of type list: give them by name, such as"),
        (lambda jobs: train(fit, jobs=jobs, imports=["torch"]), "imports is of type list: give import statements"),
        (lambda jobs: train(fit, jobs=jobs, spec=[1]), "spec is of type list: give more fields"),
        (lambda jobs: train(fit, jobs=jobs, worker=2), "worker: train has no such option; it has arguments, workers"),
        (lambda jobs: train(fit, jobs="default"), "jobs is of type str: give a JobClient"),
        (lambda jobs: train("fit", jobs=jobs), "str is an object of type str: give a function that def makes"),
        (lambda jobs: JobClient(kubeconfig=1), "kubeconfig is of type int: give the path of a file"),
        (lambda jobs: AsyncJobClient(context=1), "context is of type int: give the name of a context"),
        (lambda jobs: JobClient(1, transport=jobs.transport), "namespace is of type int: give the name of a namespace"),
    ],
)
def test_an_argument_of_another_type_is_a_sentence(call: Callable[[Any], object], sentence: str) -> None:
    transport = FakeTransport()
    with pytest.raises(InvalidRequest, match="^" + re.escape(sentence)):
        call(JobClient("default", transport=transport))
    assert transport.asked == []

"""The examples of docs/sdk.md and of the SDK's docstrings do on a cluster what they show."""

from __future__ import annotations

import doctest
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.cluster.operator_under_test import running_operator, training_job
from trainmaster import local
from trainmaster.client import InvalidRequest, JobClient, JobNotFound, WaitTimeout, functions, train
from trainmaster.local import run_locally
from trainmaster_local.testing.clusters import Cluster

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def jobs(cluster: Cluster, pods_run: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobClient]:
    """Returns a client of a cluster with an operator; KUBECONFIG names it with the test's namespace."""
    document = yaml.safe_load(Path(cluster.kubeconfig).read_text())
    for context in document["contexts"]:
        context["context"]["namespace"] = cluster.namespace
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    monkeypatch.setenv("KUBECONFIG", str(path))
    with running_operator(cluster, tmp_path):
        yield JobClient()


def passes(test: doctest.DocTest) -> None:
    assert test.examples
    said: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    assert not said, "".join(said)


@pytest.mark.torch
@pytest.mark.timeout(400)
def test_the_page_does_what_it_shows(jobs: JobClient) -> None:
    page = ROOT / "docs" / "sdk.md"
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE))
    passes(doctest.DocTestParser().get_doctest(code, {}, "sdk", str(page), 0))


@pytest.mark.torch
@pytest.mark.timeout(300)
@pytest.mark.parametrize("example", [train, run_locally])
def test_a_docstring_does_what_it_shows(jobs: JobClient, example: Any) -> None:
    module = functions if example is train else local
    [test] = doctest.DocTestFinder(recurse=False).find(example, example.__name__, globs=vars(module).copy())
    passes(test)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder in which run_locally makes its own folders, for this test alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def left_over(scratch: Path) -> list[str]:
    """Returns processes of clusters that run_locally has started."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or ())
        if f"{scratch}/trainmaster-run-" in command:
            found.append(command)
    return found


def nothing_is_left(scratch: Path) -> None:
    deadline = time.monotonic() + 30
    while left := left_over(scratch):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def never_ends() -> None:
    import time

    time.sleep(600)


@pytest.mark.timeout(200)
def test_run_locally_leaves_nothing_behind_a_job_that_takes_too_long_or_is_refused(scratch: Path) -> None:
    with pytest.raises(WaitTimeout, match=r"^timed out after 8 s: job never-ends-\w+ is still \w+$"):
        run_locally(never_ends, timeout=8, spec={"launcher": "exec"})
    nothing_is_left(scratch)
    with pytest.raises(InvalidRequest, match="workers"):
        run_locally(never_ends, workers=-1)
    nothing_is_left(scratch)
    failed = run_locally(training_job("fails", "import sys; sys.exit('no data')", workers=1), timeout=100)
    assert not failed.succeeded
    assert failed.job.phase == "Failed"
    assert any("no data" in line for line in failed.logs[0])
    nothing_is_left(scratch)


_NEVER_ENDS = """
import time
from trainmaster.local import run_locally

def never_ends():
    import time
    time.sleep(600)

run_locally(never_ends, spec={"launcher": "exec"})
"""


@pytest.mark.parametrize("begun", ["trainmaster_local.cluster", "operator run"])
def test_an_interrupt_stops_what_run_locally_has_started(scratch: Path, begun: str) -> None:
    program = scratch / "program.py"
    program.write_text(_NEVER_ENDS)
    process = subprocess.Popen(
        [sys.executable, str(program)],
        env={**os.environ, "TMPDIR": str(scratch)},
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background processes ignore SIGINT, and that is inherited through these tests.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 60
    while not any(begun in command for command in left_over(scratch)):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert said.rstrip().endswith("KeyboardInterrupt")
    nothing_is_left(scratch)


_REPORTS = """
import json, os, pathlib, time
for step in range(1, 1000):
    pathlib.Path(os.environ["TRAINMASTER_PROGRESS_FILE"]).write_text(
        json.dumps({"step": step, "totalSteps": 1000, "loss": 0.5, "samplesPerSecond": 80, "stepSeconds": 0.1})
    )
    time.sleep(0.1)
"""


def test_the_metrics_of_each_rank_come_from_the_agents_through_the_api_server(jobs: JobClient) -> None:
    jobs.submit(training_job("measured", _REPORTS))
    jobs.wait("measured", until=lambda job: job.phase == "Running", timeout=60)
    deadline = time.monotonic() + 30
    while True:
        metrics = jobs.metrics("measured")
        known = [each for each in metrics.ranks if each.step is not None]
        if len(known) == 2:
            break
        assert time.monotonic() < deadline, metrics
        time.sleep(0.1)
    assert [(each.worker, each.rank) for each in known] == [(0, 0), (1, 1)]
    assert {(each.total_steps, each.loss, each.samples_per_second) for each in known} == {(1000, 0.5, 80.0)}
    assert metrics.silent == {}


def test_a_refusal_and_a_missing_job_are_one_sentence(jobs: JobClient) -> None:
    missing = "metadata.name: Required value: name or generateName is required"
    with pytest.raises(InvalidRequest, match=rf" is invalid: \[{missing}, spec: Required value\]$"):
        jobs.submit({})
    with pytest.raises(InvalidRequest, match=rf" is invalid: {missing}$"):
        jobs.submit({"spec": training_job("nameless", "")["spec"]})
    for asked in (jobs.get, jobs.delete, jobs.logs):
        with pytest.raises(JobNotFound, match=rf"^There is no job nope in namespace {jobs.namespace}\.$"):
            list(asked("nope") or ())


def test_a_watch_in_a_thread_shows_the_end_of_a_job(jobs: JobClient) -> None:
    """A notebook's live display does this, with the client that the notebook keeps using."""
    seen: list[str] = []
    jobs.submit(training_job("watched", "print('done')", workers=1))
    thread = threading.Thread(target=lambda: seen.extend(job.phase for job in jobs.watch("watched")))
    thread.start()
    assert jobs.wait("watched", timeout=60).phase == "Succeeded"
    jobs.delete("watched")
    thread.join(30)
    assert not thread.is_alive()
    assert "Succeeded" in seen

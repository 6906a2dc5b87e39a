"""A new user's first job, written by `trainmaster init`, loses no step to a fault, and needs only torch."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import yaml

from tests.bare_python import bare_python
from trainmaster.cli.manifests import Project
from trainmaster.client import ClientError, JobClient
from trainmaster.client.code import archive_folder, submit_with_code
from trainmaster.local import running_cluster

STEPS = 200
T = TypeVar("T")


def until(found: Callable[[], T | None], what: str) -> T:
    deadline = time.monotonic() + 240
    while True:
        try:
            if (value := found()) is not None:
                return value
        except ClientError as error:
            what = f"{what}: {error}"
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def printed(jobs: JobClient, pattern: str) -> Callable[[], re.Match[str] | None]:
    return lambda: re.search(pattern, "\n".join(line for worker in range(2) for line in jobs.logs("circles", worker)))


def trained_alone(folder: Path) -> str:
    """Returns the last line of the same script under plain torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    environ = {**os.environ, "STEPS": str(STEPS), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.torch
@pytest.mark.timeout(600)
def test_a_killed_rank_costs_no_step(tmp_path: Path) -> None:
    image, code = bare_python(tmp_path / "image"), tmp_path / "circles"
    code.mkdir()
    project = Project("circles", workers=2, gpus=0, image="pytorch/pytorch:2.13.0")
    (code / "train.py").write_text(project.text("train.py"))
    job = yaml.safe_load(project.text("job.yaml"))
    job["spec"]["command"][0] = str(image)
    variables = [{"name": "STEPS", "value": str(STEPS)}, {"name": "OMP_NUM_THREADS", "value": "1"}]
    job["spec"]["podTemplate"] = {"spec": {"containers": [{"name": "worker", "env": variables}]}}
    with running_cluster(tmp_path / "cluster") as cluster:
        jobs = JobClient(kubeconfig=str(cluster.kubeconfig))
        submit_with_code(jobs, job, archive_folder(code))
        until(printed(jobs, "step 50/200 loss"), "step 50")
        killed = until(printed(jobs, r"rank 1 of 2 is process (\d+)"), "rank 1")
        os.kill(int(killed[1]), signal.SIGKILL)
        ended = jobs.wait("circles", timeout=240)
        last = until(printed(jobs, r"step 200/200 loss \d.*"), "the last step")[0]
    assert ended.status.phase == "Succeeded"
    [failure] = ended.status.failures
    assert failure.recovery is not None and failure.recovery.repeated_steps == 0, failure
    assert last == trained_alone(code)

"""If the job's program isn't in the image, the first advice explains how to upload it."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster.client import TrainingJob
from trainmaster.client.diagnosis import diagnose
from trainmaster.client.diagnosis.situation import Diagnosis, Situation


def asked(said: str, **spec: Any) -> Diagnosis:
    """Returns the diagnosis of a job whose rank 0 ended with these last lines."""
    failure = {"attempt": 1, "reason": "Error", "rank": 0, "worker": 0, "exitCode": 1, "counted": True}
    failure |= {"message": f"worker 0 (rank 0) ended with exit code 1: {said}", "failedAt": "2026-11-25T03:00:00Z"}
    condition = {"type": "Failed", "status": "True", "reason": "MaxRestartsExceeded", "message": "no restart is left"}
    condition["lastTransitionTime"] = "2026-11-25T03:00:00Z"
    raw = {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": "mnist", "namespace": "team"},
        "spec": spec,
        "status": {"phase": "Failed", "attempt": 1, "failures": [failure], "conditions": [condition]},
    }
    return diagnose(Situation(TrainingJob.of(raw)))


OPEN = "python: can't open file '/workspace/train.py': [Errno 2] No such file or directory"
RUN = "FileNotFoundError: [Errno 2] No such file or directory: '/workspace/train.py'"


@pytest.mark.parametrize(
    ("said", "spec", "named"),
    [
        (OPEN, {"command": ["python", "train.py"]}, "/workspace/train.py"),
        (RUN, {"command": ["python"], "args": ["/workspace/train.py", "--lr=1"]}, "/workspace/train.py"),
        ("ModuleNotFoundError: No module named 'nanogpt'", {"command": ["python", "-m", "nanogpt.train"]}, "nanogpt"),
    ],
)
def test_a_job_without_code_has_to_bring_its_program_along(said: str, spec: dict[str, Any], named: str) -> None:
    found = asked(said, **spec)
    assert f"rank 0 doesn't find its own program, {named}, and the job brings no code (spec.code)" in found.sentence
    assert "kubectl dtj submit FILE --code DIR" in found.steps[0].text


@pytest.mark.parametrize(
    "said", ["FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'", "No module named 'torch'"]
)
def test_other_files_have_nothing_to_do_with_code(said: str) -> None:
    found = asked(said, command=["python", "train.py"])
    assert "--code" not in "".join(step.text for step in found.steps)


def test_the_step_for_a_job_with_code_names_where_its_ranks_start() -> None:
    found = asked(OPEN, command=["python", "train.py"], code={"digest": "a" * 64, "configMap": "x"})
    assert "spec.code)" not in found.sentence
    assert found.steps[0].text.startswith("correct spec.command")

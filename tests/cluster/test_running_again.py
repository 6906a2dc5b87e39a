"""A job that is changed, or run again, behaves as docs/pods.md describes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.operator_under_test import install_crd, running_operator
from tests.unit.docs.snippets import blocks
from trainmaster_local.testing.clusters import Cluster

STEPS = 6
TRAINING = {
    "task": {"name": "text", "options": {"context": 16, "layers": 1, "width": 16, "heads": 1}},
    "steps": STEPS,
    "batch": {"size": 4},
    "evaluation": {"samples": 16},
    "checkpoint": {"every_steps": 3},
    "metrics": {"plot": False},
}
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "checkpoints"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}
JOB: dict[str, Any] = {
    "apiVersion": "trainmaster.dev/v1alpha1",
    "kind": "DistributedTrainingJob",
    "metadata": {"name": "tiny"},
    # Without torchrun, which would be another import of torch in each of the runs.
    "spec": {
        "workers": 1,
        "launcher": "exec",
        "checkpoint": {"volume": {"claimName": "checkpoints"}},
        "training": TRAINING,
    },
}


@pytest.fixture
def with_crd(cluster: Cluster) -> Cluster:
    install_crd(cluster)
    return cluster


def written(folder: Path, job: dict[str, Any]) -> str:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return str(path)


def longer(steps: int) -> dict[str, Any]:
    job = copy.deepcopy(JOB)
    job["spec"]["training"]["steps"] = steps
    return job


def test_an_apply_of_a_changed_file_answers_what_the_page_shows(with_crd: Cluster, tmp_path: Path) -> None:
    with_crd.kubectl("apply", "-f", written(tmp_path, JOB))
    refused = with_crd.kubectl("apply", "-f", written(tmp_path, longer(9)), check=False)
    shown = [block.text.strip() for block in blocks("pods.md", "text") if "invalid" in block.text]
    assert [refused.stderr.strip()] == shown


def test_a_client_s_dry_run_finds_nothing_and_the_server_s_does(with_crd: Cluster, tmp_path: Path) -> None:
    job = {**JOB, "spec": {"workers": "two", "trainig": {}}}
    done = with_crd.kubectl("apply", "--dry-run=client", "-f", written(tmp_path, job))
    assert "created (dry run)" in done.stdout
    assert with_crd.kubectl("apply", "--dry-run=server", "-f", written(tmp_path, job), check=False).returncode


def test_a_name_is_generated_by_create_and_refused_by_apply(with_crd: Cluster, tmp_path: Path) -> None:
    path = written(tmp_path, {**JOB, "metadata": {"generateName": "tiny-"}})
    assert "/tiny-" in with_crd.kubectl("create", "-f", path).stdout
    assert "cannot use generate name with apply" in with_crd.kubectl("apply", "-f", path, check=False).stderr


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_a_job_that_is_made_anew_resumes_from_its_claim(cluster: Cluster, pods_run: None, tmp_path: Path) -> None:
    cluster.shared.needs_embedded("the job needs a default StorageClass and the bundled image")

    def log_of(run: dict[str, Any], *command: str) -> str:
        cluster.kubectl(*command, "-f", written(tmp_path, run))
        cluster.eventually(
            lambda: cluster.get("dtj", "tiny").get("status", {}).get("phase") == "Succeeded", 120, "it succeeds"
        )
        return str(cluster.eventually(lambda: cluster.get("configmap", "tiny-logs")["data"]["worker-0.log"], 30))

    with running_operator(cluster, tmp_path):
        cluster.apply(CLAIM)
        first = log_of(JOB, "apply")
        assert "resumed" not in first and f"step 1/{STEPS}" in first
        again = log_of(JOB, "replace", "--force")
        assert f"step {STEPS} of {STEPS}" in again and "resumed from" in again
        assert "step 1/" not in again, "all its steps are done already"
        on = log_of(longer(9), "replace", "--force")
        assert f"step {STEPS} of 9" in on and "step 7/9" in on, "a larger number of steps goes on from there"
        anew = longer(9)
        anew["spec"]["training"]["checkpoint"]["resume"] = False
        cluster.delete("dtj", "tiny")
        assert "step 1/9" in log_of(anew, "apply")

"""The bundled loop runs in a job that stops and changes: the tests check where it continues, and with which samples.

The task, a ConfigMap in the pods, records the samples of every step that a rank takes; the loop writes each step's loss
in full precision. Both are beside the checkpoints, on a claim that outlives the pods.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cluster.scenarios import Scenario, Stage
from trainmaster_local.testing.clusters import Cluster

pytestmark = pytest.mark.torch

TASK = """
import os, time
import torch
from torch import nn

class Task:
    evaluation = None

    def __init__(self, options):
        made = torch.Generator().manual_seed(1)
        self.train = list(enumerate(torch.randn(options["samples"], 4, generator=made)))
        self.slow_attempts, self.calls = options["slow_attempts"], 0
        self.folder, self.rank = os.environ["TRAINMASTER_CHECKPOINT_DIR"], os.environ["RANK"]

    def model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))

    def collate(self, samples):
        return {"index": torch.tensor([i for i, _ in samples]), "x": torch.stack([x for _, x in samples])}

    def count(self, batch):
        return len(batch["index"])

    def loss(self, model, batch):
        attempt = os.environ["TRAINMASTER_ATTEMPT"]
        if torch.is_grad_enabled():
            with open(f"{self.folder}/seen-{attempt}-{self.rank}", "a") as seen:
                print(*batch["index"].tolist(), file=seen)
        # A test that has seen a few steps has time to do something about the others, on a loaded machine too.
        self.calls += 1
        if int(attempt) <= self.slow_attempts:
            time.sleep(0.1 if self.calls <= 8 else 0.5)
        return ((model(batch["x"])[:, 0] - batch["x"].sum(1)) ** 2).sum()

    def measure(self, model, batch):
        return {}

    def results(self, sums):
        return {}
"""
# The claim's content in the end, as one JSON document.
READ = """
import json, pathlib
folder = pathlib.Path("/checkpoints")
lines = [json.loads(line) for line in (folder / "report/metrics.jsonl").read_text().splitlines()]
print(json.dumps({
    "losses": [[line["step"], line["loss"]] for line in lines if line["kind"] == "step"],
    "resumed": [line["step"] for line in lines if line.get("event") == "resumed"],
    "seen": {path.name: path.read_text().splitlines() for path in sorted(folder.glob("seen-*"))},
}))
"""


@contextmanager
def claim(cluster: Cluster, name: str, mode: str = "ReadWriteOnce") -> Iterator[str]:
    spec = {"accessModes": [mode], "resources": {"requests": {"storage": "100Mi"}}}
    metadata = {"name": name}
    cluster.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})
    yield name
    cluster.delete("persistentvolumeclaim", name, wait=False)


@pytest.fixture
def task(stage: Stage) -> Iterator[str]:
    """Makes a ConfigMap with the task's module."""
    name = "task"
    stage.main.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"task.py": TASK}})
    yield name
    stage.main.delete("configmap", name)


def apply(
    scenario: Scenario,
    claim: str,
    task: str,
    workers: int,
    steps: int,
    batch: int,
    slow: int,
    every_steps: int = 1000,
    pod: dict[str, Any] | None = None,
    **spec: Any,
) -> None:
    """Applies the loop as a job without torchrun, because a second process for each worker would be the slowest part of
    the test.
    """
    training = {
        "task": {"name": "task:Task", "options": {"samples": steps * batch, "slow_attempts": slow}},
        "steps": steps,
        "batch": {"size": batch},
        "optimizer": {"lr": 0.01},
        "checkpoint": {"every_steps": every_steps, "memory": {"enabled": True}},
        "metrics": {"every_steps": 1, "path": "/checkpoints/report", "plot": False},
    }
    worker = {
        "name": "worker",
        "env": [{"name": "PYTHONPATH", "value": "/task"}, {"name": "OMP_NUM_THREADS", "value": "1"}],
        "volumeMounts": [{"name": "task", "mountPath": "/task"}],
    }
    manifest = {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": scenario.name},
        "spec": {
            "workers": workers,
            "launcher": "exec",
            "backend": "gloo",
            "checkpoint": {"volume": {"claimName": claim}, "path": "/checkpoints"},
            "training": training,
            "podTemplate": {
                "spec": {
                    "containers": [worker],
                    "volumes": [{"name": "task", "configMap": {"name": task}}],
                    **(pod or {}),
                }
            },
            **spec,
        },
    }
    scenario.cluster.apply(manifest)


def written(cluster: Cluster, claim: str) -> dict[str, Any]:
    """Returns what the job has written to its claim."""
    name = f"read-{claim}"
    container = {
        "name": "read",
        "image": "ghcr.io/trainmaster/trainer:0.1.0",
        "command": ["python3", "-c", READ],
        "volumeMounts": [{"name": "claim", "mountPath": "/checkpoints"}],
    }
    spec = {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "claim", "persistentVolumeClaim": {"claimName": claim}}],
    }
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    cluster.kubectl("wait", "pod", name, "--for=jsonpath={.status.phase}=Succeeded", "--timeout=50s")
    found: dict[str, Any] = json.loads(cluster.kubectl("logs", name).stdout)
    cluster.delete("pod", name, wait=False)
    return found


def steps_taken(scenario: Scenario) -> int:
    """Returns the number of steps, by the console of rank 0, whose pod stays."""
    return max(map(int, re.findall(r"^.*\bstep (\d+)/", scenario.log(f"{scenario.name}-0"), re.MULTILINE)), default=0)


def test_a_suspended_job_goes_on_where_it_stopped_to_the_bit(stage: Stage, task: str) -> None:
    """Two jobs have the same seed. One is suspended in between, and both have the same loss in every step.

    Each has one rank. In the tests below several stop at the same step; tests/trainer/test_resume checks that they
    resume bit for bit.
    """
    cluster, steps = stage.main, 24
    with (
        stage.scenario() as whole,
        stage.scenario() as stopped,
        claim(cluster, "whole") as kept_whole,
        claim(cluster, "stopped") as kept_stopped,
    ):
        apply(stopped, kept_stopped, task, workers=1, steps=steps, batch=8, slow=1)
        stopped.until(lambda: steps_taken(stopped) >= 3, "some steps")
        stopped.patch('{"runPolicy": {"suspend": true}}')
        apply(whole, kept_whole, task, workers=1, steps=steps, batch=8, slow=0)
        stopped.until_phase("Suspended")
        stopped.until(lambda: not stopped.pods(), "pods gone")
        whole.succeeds(attempt=1)
        stopped.patch('{"runPolicy": {"suspend": false}}')
        stopped.succeeds(attempt=2)
        expected, found = written(cluster, kept_whole), written(cluster, kept_stopped)
        assert [step for step, _ in expected["losses"]] == list(range(1, steps + 1))
        assert found["losses"] == expected["losses"], "each step once, with the same loss"
        assert {"seen-1-0", "seen-2-0"} <= set(found["seen"]), "in two attempts"


def test_from_three_workers_to_two_and_back_every_sample_counts(stage: Stage, task: str) -> None:
    """The ranks that stay keep their processes; a step that a rank makes while others come or go may be repeated."""
    cluster, steps, batch = stage.main, 60, 12
    with stage.scenario() as job, claim(cluster, "elastic") as kept:
        elastic = {"minWorkers": 2, "maxWorkers": 3}
        apply(job, kept, task, workers=3, steps=steps, batch=batch, slow=2, elastic=elastic)
        job.until_phase("Running")
        job.until(lambda: steps_taken(job) >= 2, "some steps of three")
        cluster.scale("dtj", job.name, 2)
        job.until_phase("Running", attempt=2)
        assert job.status["absentRanks"] == [2]
        taken = steps_taken(job)
        job.until(lambda: steps_taken(job) > taken + 1, "some steps of two")
        cluster.scale("dtj", job.name, 3)
        job.succeeds(attempt=3)
        assert (job.status["continues"], job.status.get("absentRanks")) == (1, [])
        found = written(cluster, kept)
    assert found["resumed"] == [], "nobody has started again"
    counted(found, steps, batch, changes=2)


def test_a_node_lost_amid_an_epoch_redoes_the_step_in_flight_and_no_other(stage: Stage, task: str) -> None:
    """Three workers become two, which train on in their processes."""
    cluster, steps, batch, every = stage.main, 60, 12, 4
    with (
        stage.nodes(3, gpus=1) as nodes,
        stage.scenario() as job,
        claim(cluster, "shrunk", "ReadWriteMany") as kept,
    ):
        apply(
            job,
            kept,
            task,
            workers=3,
            steps=steps,
            batch=batch,
            slow=1,
            every_steps=every,
            pod={"nodeSelector": {"for": nodes[0]}, "terminationGracePeriodSeconds": 2},
            elastic={"minWorkers": 2, "maxWorkers": 3},
            resources={"gpus": 1},
            failurePolicy={"nodes": {"lostAfterSeconds": 1}},
        )
        job.until(lambda: steps_taken(job) > every + 2, "steps beyond a checkpoint")
        lost = job.nodes()[f"{job.name}-1"]
        cluster.embedded.call(cluster.embedded.cluster.lose_node(lost))
        job.until_phase("Succeeded")
        _, restarts, disruptions = job.accounts
        assert (restarts, disruptions) == (0, 1), job.failures
        assert (job.status["continues"], job.status["absentRanks"]) == (1, [1])
        assert (job.failures[0]["reason"], job.failures[0]["worker"]) == ("NodeLost", 1), job.failures
        found = written(cluster, kept)
    assert found["resumed"] == [], "nobody has started again"
    counted(found, steps, batch, changes=1)


def counted(found: dict[str, Any], steps: int, batch: int, changes: int) -> None:
    """Checks that every sample was used, and none twice except those of interrupted steps and of a rehearsal; `changes`
    is how often the group has changed.
    """
    seen = samples(line.split() for lines in found["seen"].values() for line in lines)
    assert set(seen) == set(range(steps * batch)), "each sample"
    assert seen.total() - len(seen) <= changes * 2 * batch, "the steps in flight, and two passes of a rank that joins"
    made = [step for step, _ in found["losses"]]
    assert made == sorted(set(made)), "no step's line is there twice"
    assert steps - 2 * changes - 1 <= len(made) and made[-1] == steps, "a line is lost where the group changes"


def samples(lines: Iterable[list[str]]) -> Counter[int]:
    return Counter(int(word) for line in lines for word in line)

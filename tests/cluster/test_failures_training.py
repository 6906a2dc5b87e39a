"""The bundled loop under a job that stops and changes: where it goes on, and with which samples.

The task, a ConfigMap in the pods, writes down the samples of every step that a rank takes; the loop writes each step's
loss in full precision. Both lie beside the checkpoints, on a claim that outlives the pods.
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
        attempt, rank = os.environ["TRAINMASTER_ATTEMPT"], os.environ["RANK"]
        self.seconds = 0.0 if int(attempt) > options["slow_attempts"] else 0.1
        self.calls = 0
        self.seen = open(f"{os.environ['TRAINMASTER_CHECKPOINT_DIR']}/seen-{attempt}-{rank}", "a", buffering=1)

    def model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))

    def collate(self, samples):
        return {"index": torch.tensor([i for i, _ in samples]), "x": torch.stack([x for _, x in samples])}

    def count(self, batch):
        return len(batch["index"])

    def loss(self, model, batch):
        if torch.is_grad_enabled():
            print(*batch["index"].tolist(), file=self.seen)
        # A test that has seen a few steps has time to do something about the others, on a loaded machine too.
        self.calls += 1
        time.sleep(self.seconds * (1 if self.calls <= 8 else 5))
        return ((model(batch["x"])[:, 0] - batch["x"].sum(1)) ** 2).sum()

    def measure(self, model, batch):
        return {}

    def results(self, sums):
        return {}
"""
# What the claim holds in the end, as one JSON document.
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
    """A ConfigMap with the task's module."""
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
    """The loop as a job without torchrun: a second process for each worker would be the slowest part of the test."""
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
    """What the job has left on its claim."""
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


def steps_of(seen: dict[str, list[str]]) -> dict[str, list[str]]:
    """Without what is no step: a rank that goes on makes a pass over its next batch first, the rehearsal."""
    return {name: lines if name.startswith("seen-1-") else lines[1:] for name, lines in seen.items()}


def steps_taken(scenario: Scenario) -> int:
    """By the console of rank 0, whose pod stays."""
    return max(map(int, re.findall(r"^.*\bstep (\d+)/", scenario.log(f"{scenario.name}-0"), re.MULTILINE)), default=0)


def test_a_suspended_job_goes_on_where_it_stopped_to_the_bit(stage: Stage, task: str) -> None:
    """Two jobs with the same seed: one is suspended on its way, and both have the same loss in every step.

    One rank each: several stop at the same step in the tests below, and resume to the bit in tests/trainer/test_resume.
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


def test_from_three_workers_to_two_and_back_every_sample_is_seen_once(stage: Stage, task: str) -> None:
    cluster, steps, batch = stage.main, 110, 12
    with stage.scenario() as job, claim(cluster, "elastic") as kept:
        elastic = {"minWorkers": 2, "maxWorkers": 3}
        apply(job, kept, task, workers=3, steps=steps, batch=batch, slow=2, elastic=elastic)
        job.until_phase("Running")
        job.until(lambda: steps_taken(job) >= 2, "some steps of three")
        cluster.scale("dtj", job.name, 2)
        job.until_phase("Running", attempt=2)
        # `Running` is before the first step: what attempt 1 has taken is known by then.
        taken = steps_taken(job)
        job.until(lambda: steps_taken(job) > taken, "some steps of two")
        cluster.scale("dtj", job.name, 3)
        job.succeeds(attempt=3)
        found = written(cluster, kept)
    found["seen"] = steps_of(found["seen"])
    assert sorted(found["seen"]) == [
        f"seen-{attempt}-{rank}" for attempt, ranks in ((1, 3), (2, 2), (3, 3)) for rank in range(ranks)
    ]
    samples = Counter(int(word) for lines in found["seen"].values() for line in lines for word in line.split())
    assert samples == Counter(range(steps * batch)), "each once, over three numbers of ranks"
    assert [step for step, _ in found["losses"]] == list(range(1, steps + 1)), "no step lost, none taken twice"
    for attempt, ranks in ((1, 3), (2, 2), (3, 3)):
        sizes = {len(line.split()) for rank in range(ranks) for line in found["seen"][f"seen-{attempt}-{rank}"]}
        assert sizes == {batch // ranks}, "the global batch is kept"


def test_a_node_lost_amid_an_epoch_redoes_the_steps_since_the_last_state_and_no_others(stage: Stage, task: str) -> None:
    """Three workers become two, which go on from the state that they have in memory: what counts is every sample once,
    in attempt 1 up to that state and in attempt 2 from there; what attempt 1 did beyond it is what attempt 2 begins
    with."""
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
        attempt, restarts, disruptions = job.accounts
        # Where the peers' broken connections are known before the node's loss, an attempt in between never begins.
        assert attempt in (2, 3), job.failures
        assert restarts == 0, job.failures
        assert disruptions == 1, "resizing costs nothing more"
        assert job.status["workerOrder"] == [0, 2]
        assert (job.failures[0]["reason"], job.failures[0]["worker"]) == ("NodeLost", 1), job.failures
        found = written(cluster, kept)
    (resumed,) = found["resumed"]
    assert resumed >= every
    taken = {name: [line.split() for line in lines] for name, lines in steps_of(found["seen"]).items()}
    first = [taken.pop(f"seen-1-{rank}") for rank in range(3)]
    second = [taken.pop(f"seen-{attempt}-{rank}") for rank in range(2)]
    assert not any(taken.values())
    assert min(map(len, first)) > every + 1
    counted = samples(line for lines in first for line in lines[:resumed]) + samples(
        line for lines in second for line in lines
    )
    assert counted == Counter(range(steps * batch)), "each once, over two numbers of ranks"
    whole = min(map(len, first))
    redone = samples(line for lines in first for line in lines[resumed:whole])
    assert redone == samples(line for lines in second for line in lines[: whole - resumed]), "redone in the same order"
    assert whole - resumed < 2, "the step in flight at most"
    losses = found["losses"]
    again = len(losses) - steps
    assert [step for step, _ in losses] == [*range(1, resumed + again + 1), *range(resumed + 1, steps + 1)]
    for step, loss in losses[resumed : resumed + again]:
        assert dict(losses[resumed + again :])[step] == pytest.approx(loss, rel=0.5), step


def samples(lines: Iterable[list[str]]) -> Counter[int]:
    return Counter(int(word) for line in lines for word in line)

"""Progress and hangs of scripts that never heard of Trainmaster, as a person sees them with kubectl."""

from __future__ import annotations

import re
import signal
import sys

import pytest

from tests.cluster.scenarios import Scenario

# No torch, and no progress file: it prints. In attempt 1 it stands still at step 12, and prints on.
PRINTS = """
import os, time
for step in range(1, 41):
    print(f"step {step}/40 loss {1 / step:.3f} ({step * 10} it/s)", flush=True)
    time.sleep(0.1)
    while step == 12 and os.environ["TRAINMASTER_ATTEMPT"] == "1":
        print("waiting for data", flush=True)
        time.sleep(0.2)
"""
PATTERN = r"step (?P<step>\d+)/(?P<totalSteps>\d+) loss (?P<loss>[\d.]+) .(?P<stepsPerSecond>\d+) it/s"


def test_what_a_script_prints_is_shown_and_watched(scenario: Scenario) -> None:
    # The last report before the silence is shown while it lasts, and kubectl has to be started meanwhile.
    hang = {"hang": {"progressSeconds": 20}, "maxRestarts": 2}
    scenario.apply(PRINTS, workers=1, progress={"pattern": PATTERN}, failurePolicy=hang)

    scenario.until(lambda: (scenario.status.get("progress") or {}).get("etaSeconds") == round(28 / 120, 1), "its ETA")
    assert re.search(r" 12 +40 +0[.]083 ", scenario.cluster.kubectl("get", "dtj", scenario.name).stdout)
    scenario.succeeds(attempt=2, restarts=1)
    [failure] = scenario.failures
    assert (failure["reason"], failure["rank"]) == ("Hung", 0)
    assert "at step 12; the limit is failurePolicy.hang.progressSeconds 20 s" in failure["message"]
    assert scenario.status["progress"]["step"] == 40
    assert scenario.status["progress"]["goodput"] > 0


HUGGING_FACE = """
import os, time, torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        points = torch.randn(6, generator=torch.Generator().manual_seed(index))
        return {"points": points, "labels": points[:3].argmax()}

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
    def forward(self, points, labels):
        return {"loss": nn.functional.cross_entropy(self.layer(points), labels)}

class Slow(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        time.sleep(0.1)

arguments = TrainingArguments(
    output_dir="/tmp/" + os.environ["TRAINMASTER_POD_UID"], per_device_train_batch_size=4, use_cpu=True,
    ddp_backend="gloo",
    max_steps=1000 if os.environ["TRAINMASTER_ATTEMPT"] == "1" else 20, logging_steps=1, save_strategy="no")
print(f"rank {os.environ['RANK']} has pid {os.getpid()}", flush=True)
Trainer(model=Classifier(), args=arguments, train_dataset=Points(), callbacks=[Slow()]).train()
"""
SECONDS = 300.0
"""Importing transformers takes a minute on a machine that others use."""


@pytest.mark.torch
@pytest.mark.timeout(900)
def test_hugging_faces_trainer_is_shown_and_watched_without_being_told(scenario: Scenario) -> None:
    scenario.cluster.shared.needs_embedded("the worker's image has no transformers")
    env = [{"name": "OMP_NUM_THREADS", "value": "1"}]
    scenario.apply(
        HUGGING_FACE,
        command=[sys.executable, "-c", HUGGING_FACE],
        failurePolicy={"hang": {"progressSeconds": 10, "firstStepSeconds": 300}},
        podTemplate={"spec": {"containers": [{"name": "worker", "env": env}]}},
    )

    def stepped() -> bool:
        progress = scenario.status.get("progress") or {}
        return bool(progress.get("step") and progress.get("etaSeconds") and progress.get("loss"))

    scenario.until(stepped, "step, loss and ETA", SECONDS)
    assert scenario.status["progress"]["totalSteps"] == 1000
    assert re.search(r" [0-9]+ +1000 ", scenario.cluster.kubectl("get", "dtj", scenario.name).stdout)
    found = re.search(r"rank 1 has pid (\d+)", scenario.log(f"{scenario.name}-1"))
    assert found is not None
    scenario.send(1, int(found[1]), signal.SIGSTOP)
    scenario.until(lambda: scenario.failures, "the hang", SECONDS)
    failure = scenario.failures[0]
    assert (failure["reason"], failure["rank"], failure["worker"]) == ("Hung", 1, 1), failure
    assert failure["message"].endswith("rank 1 is stopped by a signal (state T)"), failure
    scenario.until_phase("Succeeded", seconds=SECONDS)
    assert scenario.status["progress"]["step"] == 20

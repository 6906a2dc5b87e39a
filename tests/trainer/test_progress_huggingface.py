"""Hugging Face's real Trainer runs under real agents without being changed, and they see its progress and its hangs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes.agent.agents import Agent, Job, Stream, until
from trainmaster_operator.agent.process import children

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

SCRIPT = """
import os, sys, time
sys.modules["deepspeed"] = None  # other tests need it installed; accelerate would import it, and use nothing of it
import torch
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
        time.sleep(STEP_SECONDS)

arguments = TrainingArguments(
    output_dir=sys.argv[1], max_steps=STEPS, per_device_train_batch_size=4, use_cpu=True, ddp_backend="gloo",
    logging_steps=1, save_strategy="no", disable_tqdm=QUIET)
Trainer(model=Classifier(), args=arguments, train_dataset=Points(), callbacks=[Slow()]).train()
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path, f"127.126.{os.getpid() % 250}")
    yield made
    made.end()


def start(job: Job, steps: int, step_seconds: float, *, quiet: bool, size: int = 2, **environ: str) -> list[Agent]:
    text = SCRIPT.replace("STEPS", str(steps)).replace("STEP_SECONDS", str(step_seconds)).replace("QUIET", str(quiet))
    path = job.folder / "train.py"
    path.write_text(text.replace(f"{steps}_SECONDS", str(step_seconds)))
    variables = {"OMP_NUM_THREADS": "1", "LOCAL_RANK": "0", "HF_HUB_OFFLINE": "1", **environ}
    agents = [
        job.agent(worker).start(sys.executable, str(path), str(job.folder / "out"), **variables)
        for worker in range(size)
    ]
    job.annotate(job.assignment(1, range(size)))
    return agents


def progress(agent: Agent) -> dict[str, Any]:
    return dict(agent.state().get("progress") or {})


def test_its_reports_are_progress_without_a_line_of_code_and_a_rank_that_stands_still_is_named(job: Job) -> None:
    """The progress bar is off, so that only reports show progress; the first report with a step comes after 5 s."""
    agents = start(job, 4000, 0.2, quiet=True, TRAINMASTER_PROGRESS_TIMEOUT="9", TRAINMASTER_FIRST_STEP_TIMEOUT="120")
    stream = Stream(agents[0])
    seen = until(lambda: progress(agents[0]).get("0", {}).get("step") and progress(agents[0])["0"], 400, "a step")
    assert 1 <= seen["step"] <= 200 and seen["totalSteps"] == 4000
    assert seen["loss"] > 0 and 0 < seen["epoch"] < 1 and seen["etaSeconds"] > 0
    assert seen["gradNorm"] > 0 and 0 < seen["learningRate"] <= 5e-05
    assert "step" not in progress(agents[1]).get("1", {}), "rank 0 alone reports; its peer prints its loss"
    token = agents[0].state_dir / "attempt-1" / "trainer-token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert agents[1].process is not None
    [rank] = children.descendants(agents[1].process.pid)[:1]
    children.send([rank], signal.SIGSTOP)
    failed = stream.until_report("Failed")["report"]
    assert (failed["reason"], failed["worker"], failed["rank"]) == ("Hung", 1, 1), failed
    assert "\nrank 1 is stopped by a signal (state T)" in failed["error"], failed
    stream.close()


def test_its_bar_shows_steps_sooner_than_its_reports(job: Job) -> None:
    [agent] = start(job, 8, 0.05, quiet=False, size=1)
    # A watched agent doesn't make its report by exiting.
    stream = Stream(agent)
    until(lambda: agent.report().get("state") == "Finished", 400, "the end")
    shown = progress(agent)["0"]
    stream.close()
    assert (shown["step"], shown["totalSteps"]) == (8, 8), "though it is over before a report says a step"
    assert shown["loss"] > 0

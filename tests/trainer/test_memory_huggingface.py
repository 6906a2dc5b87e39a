"""Hugging Face's own Trainer resumes from memory as if nothing had happened (`recovery/huggingface`)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainer.faults import FAULTS, Fault, attempt, said, sealed
from tests.trainer.toy import same_bits


class Points(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        points = torch.randn(6, generator=torch.Generator().manual_seed(index))
        return {"points": points, "labels": points[:3].argmax()}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 3))

    def forward(self, points: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.cross_entropy(self.layers(points), labels)}


def run(settings: dict[str, Any], fault: Fault | None) -> dict[str, Any]:
    """Train for ten steps, a little more than two epochs; the Trainer shuffles its data."""
    # Other tests need accelerate installed; importing it would take a second in each rank, and nothing here uses it.
    sys.modules["deepspeed"] = None  # type: ignore[assignment]
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from trainloop.recovery.huggingface import RecoveryCallback

    class Faulty(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if fault and state.global_step == fault[1]:
                FAULTS[fault[0]]()

    torch.manual_seed(0)
    output = settings.get("output") or tempfile.mkdtemp()
    arguments = TrainingArguments(
        output_dir=output,
        max_steps=10,
        per_device_train_batch_size=8,
        use_cpu=not settings.get("gpu"),
        report_to=[],
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
        seed=5,
    )
    trainer = Trainer(model=Classifier(), args=arguments, train_dataset=Points(), callbacks=[Faulty()])
    recovery = RecoveryCallback(trainer)
    checkpoint = recovery.checkpoint()
    trainer.train(resume_from_checkpoint=checkpoint)
    weights = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    logs = [line for line in trainer.state.log_history if "loss" in line]
    reported = [recovery._progress._fields[name] for name in ("loss", "gradNorm", "learningRate")]
    assert reported == [logs[-1][name] for name in ("loss", "grad_norm", "learning_rate")]
    losses = [line["loss"] for line in logs]
    torch.distributed.barrier()
    return {"weights": weights, "losses": losses, "from": checkpoint and Path(checkpoint).name}


@pytest.mark.torch
def test_a_trainer_goes_on_after_a_kill_as_if_there_had_been_none(tmp_path: Path) -> None:
    through = attempt(1, 2, tmp_path / "through", {}, None, run, local_ranks=2)
    for victim in (0, 1):
        memory = tmp_path / f"memory-{victim}"
        first = attempt(1, 2, memory, {}, {victim: ("kill", 3)}, run, local_ranks=2)
        assert first[victim] == "SIGKILL" and sealed(memory) == ["1-3-0-of-1.sealed"], said(memory)
        resumed = attempt(2, 2, memory, {}, None, run, local_ranks=2)
        assert [each["from"] for each in resumed] == ["checkpoint-3"] * 2, said(memory)
        assert resumed[0]["losses"] == through[0]["losses"] and len(resumed[0]["losses"]) == 10
        for one, other in zip(resumed, through, strict=True):
            assert same_bits(one["weights"], other["weights"])
        assert sealed(memory) == []

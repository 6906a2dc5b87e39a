"""The image's examples train: a script with the heartbeat, DeepSpeed's, and custom tasks and hooks."""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.trainer.local_models import save_bert, save_pairs
from tests.trainer.ranks import environment, exit_codes, free_port, run_ranks, start_command
from tests.trainer.toy import config, largest_difference, train
from trainloop.config import Config
from trainloop.errors import ConfigError
from trainloop.report import read_metrics
from trainloop.run import train as run

EXAMPLES = Path(__file__).parents[2] / "images" / "trainer" / "examples"
sys.path.append(str(EXAMPLES))  # in each rank too


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.torch
def test_a_plain_script_reports_its_progress_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    assert "step 60/60" in _run_plain(tmp_path, steps=60)
    reported = [json.loads((tmp_path / f"progress.{rank}").read_text()) for rank in range(2)]
    assert [(line["step"], line["totalSteps"]) for line in reported] == [(60, 60)] * 2
    later = _run_plain(tmp_path, steps=100)
    assert "step 50/" not in later and "step 100/100" in later


def _run_plain(folder: Path, steps: int) -> str:
    port = free_port()
    more = {"STEPS": str(steps)}
    more |= {"TRAINMASTER_CHECKPOINT_DIR": str(folder), "TRAINMASTER_PROGRESS_FILE": str(folder / "progress")}
    outs = [folder / f"out-{rank}" for rank in range(2)]
    ranks = [
        start_command(
            out, _script, **more, **environment(rank, 2, port) | {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
        )
        for rank, out in enumerate(outs)
    ]
    assert exit_codes(ranks) == [0, 0]
    return outs[0].read_text()


def _script() -> None:
    runpy.run_path(str(EXAMPLES / "plain_train.py"), run_name="__main__")


@pytest.mark.parametrize(
    ("total", "most", "ranks", "micro", "accumulation"),
    [(64, 16, 2, 16, 2), (64, 16, 4, 16, 1), (64, 16, 8, 8, 1), (96, 16, 3, 16, 2), (48, 10, 2, 8, 3)],
)
def test_batch_sizes_follow_the_number_of_ranks(
    total: int, most: int, ranks: int, micro: int, accumulation: int
) -> None:
    document = {"train_batch_size": total, "train_micro_batch_size_per_gpu": most, "steps_per_print": 5}
    found = example("deepspeed_train").batch_sizes(document, ranks)
    assert (found["train_micro_batch_size_per_gpu"], found["gradient_accumulation_steps"]) == (micro, accumulation)
    assert micro * accumulation * ranks == found["train_batch_size"] == total
    assert found["steps_per_print"] == 5


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "train_batch_size is None in ds_config.json"),
        ({"train_batch_size": 64}, "train_batch_size is 64: 3 ranks can't share it, use a multiple of 3"),
    ],
)
def test_a_batch_that_cannot_be_shared_out_is_a_sentence(document: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        example("deepspeed_train").batch_sizes(document, 3)


@pytest.mark.torch
def test_deepspeeds_zero_1_over_gloo_takes_ddps_steps() -> None:
    """In single precision they agree up to rounding, because the order of adding differs. Needs `pip install
    deepspeed`.
    """
    pytest.importorskip("deepspeed")
    changes: dict[str, Any] = {
        "task": {"name": "tests.trainer.toy:Toy", "options": {"double": False}},
        "steps": 20,
        "optimizer": {"lr": 0.01, "weight_decay": 0.0, "max_norm": 0.5},
        "schedule": {"kind": "constant", "warmup": 0},
        "precision": {"compute": "fp32"},
    }
    ddp = run_ranks(2, train, config(**changes))[0]["weights"]
    for stage in (0, 1):
        zero = run_ranks(2, _deepspeed, config(**changes), stage, seconds=150)
        assert largest_difference(zero[0], ddp) < 1e-5
        assert largest_difference(zero[0], zero[1]) == 0


def _deepspeed(settings: Config, stage: int) -> dict[str, torch.Tensor]:
    os.environ["DS_ACCELERATOR"] = "cpu"
    document = {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.0, "torch_adam": True}},
        "gradient_clipping": 0.5,
        "zero_optimization": {"stage": stage},
    }
    model = example("deepspeed_train").train(settings, document)
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


SINGLE: dict[str, Any] = {"precision": {"compute": "fp32"}, "schedule": {"kind": "constant", "warmup": 0}}


def _results(folder: Path) -> list[dict[str, Any]]:
    return [line for line in read_metrics(folder / "report" / "metrics.jsonl") if line["kind"] == "evaluation"]


@pytest.mark.torch
def test_a_hugging_face_model_is_a_task_of_25_lines(tmp_path: Path) -> None:
    body = (EXAMPLES / "huggingface.py").read_text().partition("class Pairs")[2].splitlines()
    assert len([line for line in body if line.strip()]) <= 25
    save_bert(tmp_path / "bert")
    save_pairs(tmp_path)
    options = {"model": str(tmp_path / "bert"), "data": str(tmp_path / "train.tsv")}
    changes = {"steps": 30, "batch": {"size": 32}, "optimizer": {"lr": 0.003}, "evaluation": {"every_steps": 10}}
    run_ranks(2, run, config(tmp_path, task={"name": "huggingface:Pairs", "options": options}, **changes, **SINGLE))
    losses = [line["loss"] for line in _results(tmp_path)]
    assert losses[-1] < losses[0]


@pytest.mark.torch
def test_an_average_of_the_weights_is_measured_and_goes_on(tmp_path: Path) -> None:
    changes = {"hooks": ["ema:keep_average"], "evaluation": {"every_steps": 5}, "schedule": SINGLE["schedule"]}
    run_ranks(2, run, config(tmp_path / "through", steps=20, **changes))
    for steps in (10, 20):
        run_ranks(2, run, config(tmp_path / "parts", steps=steps, **changes))
    through, parts = (_results(tmp_path / name)[-1] for name in ("through", "parts"))
    assert through["ema_loss"] == parts["ema_loss"] != through["loss"]


@pytest.mark.torch
def test_a_gan_comes_nearer_to_the_circle(tmp_path: Path) -> None:
    changes = {"steps": 450, "batch": {"size": 64}, "optimizer": {"lr": 0.01}, "evaluation": {"every_steps": 25}}
    changes["metrics"] = {"path": str(tmp_path / "report"), "every_steps": 100, "plot": False}
    run_ranks(2, run, config(tmp_path, **{"task": {"name": "gan:Gan"}, **SINGLE, **changes}))
    first, *_, last = [line["distance"] for line in _results(tmp_path)]
    assert last < first / 2

"""The examples, of the image and of `manifests`, train to the same losses bit for bit, whether their ranks start cold
or warm; only DeepSpeed's isn't tested, because it isn't installed here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.processes.agent.agents import Job

from .both_ways import start, starts

ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "images" / "trainer" / "examples"
CONSTANT = {"kind": "constant", "warmup": 0}
TOY = {
    "task": {"name": "tests.trainer.toy:Toy"},
    "steps": 8,
    "batch": {"size": 8},
    "optimizer": {"lr": 0.05},
    "precision": {"compute": "fp64"},
    "schedule": CONSTANT,
    "evaluation": {"every_steps": 4},
}


def gan(_folder: Path) -> dict[str, Any]:
    return {**TOY, "task": {"name": "gan:Gan"}, "precision": {"compute": "fp32"}}


def hugging_face(folder: Path) -> dict[str, Any]:
    """Returns a model of transformers, and an average that a hook keeps."""
    # Imported here, because it imports torch, which each pytest process would do otherwise.
    from tests.trainer.local_models import save_bert, save_pairs

    save_bert(folder / "bert")
    save_pairs(folder)
    options = {"model": str(folder / "bert"), "data": str(folder / "train.tsv")}
    return {
        **TOY,
        "task": {"name": "huggingface:Pairs", "options": options},
        "precision": {"compute": "fp32"},
        "hooks": ["ema:keep_average"],
    }


def shortened(name: str, steps: int = 6, **changes: Any) -> dict[str, Any]:
    """Returns the settings of an example's job, for a few steps."""
    [job] = [
        document
        for document in yaml.safe_load_all((ROOT / "manifests" / "examples" / f"{name}.yaml").read_text())
        if document["kind"] == "DistributedTrainingJob"
    ]
    short = {"epochs": None, "steps": steps, "evaluation": {"samples": 32}, "checkpoint": {}}
    return {**job["spec"]["training"], **short, **changes}


def reviews(_folder: Path) -> dict[str, Any]:
    return shortened("reviews")


def shakespeare(_folder: Path) -> dict[str, Any]:
    return shortened("shakespeare")


def deepseek_tiny(_folder: Path) -> dict[str, Any]:
    return shortened("deepseek-tiny")


def bert_mrpc(folder: Path) -> dict[str, Any]:
    from tests.trainer.local_models import save_bert, save_pairs

    save_pairs(folder)
    save_bert(folder / "bert")
    task = {"name": "sentence-pairs", "options": {"model": str(folder / "bert"), "data": str(folder)}}
    return shortened("bert-mrpc", task=task, data={"workers": 1})


MORE = (gan, shakespeare, reviews, deepseek_tiny, bert_mrpc)


def train(job: Job, warm: bool, *command: str, **environ: str) -> str:
    """Train with two ranks to the end; returns what the worker printed."""
    worker = int(warm)
    path = f"{EXAMPLES}:{ROOT}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
    agent = start(job, warm, *command, worker=worker, OMP_NUM_THREADS="1", PYTHONPATH=path, **environ)
    agent.annotate(job.assignment(1, workers=(worker,)))
    assert agent.exit_code(200) == 0, agent.output()
    assert starts(agent) == ["attempt 1 starts warm"] * warm
    return agent.output()


@pytest.mark.torch
@pytest.mark.parametrize(
    "settings",
    # The slow ones are the same loop, with tasks that tests/trainer and tests/cluster/test_examples train.
    [hugging_face, *(pytest.param(s, marks=pytest.mark.slow) for s in MORE)],
)
def test_the_loop_computes_the_same(job: Job, settings: Callable[[Path], dict[str, Any]]) -> None:
    document = settings(job.folder)
    found = []
    for warm in (False, True):
        folder = job.folder / f"warm-{warm}"
        folder.mkdir()
        metrics = {"path": str(folder / "report"), "every_steps": 1, "plot": False}
        config = folder / "training.yaml"
        config.write_text(yaml.safe_dump({**document, "metrics": metrics}))
        train(job, warm, "-m", "trainloop", "--config", str(config))
        lines = map(json.loads, (folder / "report" / "metrics.jsonl").read_text().splitlines())
        found.append([(line["step"], line["loss"]) for line in lines if line.get("loss") is not None])
    assert found[0] == found[1] and len(found[0]) >= 6


@pytest.mark.torch
def test_a_plain_script_computes_the_same(job: Job) -> None:
    found = []
    for warm in (False, True):
        folder = job.folder / f"warm-{warm}"
        folder.mkdir()
        output = train(job, warm, str(EXAMPLES / "plain_train.py"), STEPS="60", TRAINMASTER_CHECKPOINT_DIR=str(folder))
        found.append([line.partition(" loss ")[::2] for line in output.splitlines() if "[rank 0]: step " in line])
    assert found[0] == found[1] and found[0]

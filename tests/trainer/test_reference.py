"""The whole loop (`trainer`) equals loops written by hand in plain torch (`reference`), to 1e-12.

Depths, widths, batches, ranks, optimizers and schedules are drawn by a generator with a fixed seed, so that nobody has
chosen them to fit. Each group of ranks trains its runs one after the other, because starting ranks takes longer.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.ranks import RankFailed, run_ranks
from tests.trainer.reference import (
    Run,
    delayed_steps_by_hand,
    local_steps_by_hand,
    scaled_steps_by_hand,
    steps_by_hand,
)
from tests.trainer.toy import reports
from trainloop.config import parse_config
from trainloop.distributed.world import joined
from trainloop.report import read_metrics
from trainloop.trainer import Trainer

pytestmark = pytest.mark.torch

NEAR = 1e-12
RANKS = (1, 2, 4)
#: The strategies of runs with four and with two ranks, whose code is the same: one or two runs of each are enough.
MANY = ["ddp"] * 5 + ["zero1"] * 2 + ["fsdp"] * 3
FEW = ["ddp", "ddp", "zero1", "fsdp"]
Documents = dict[str, dict[str, Any]]


def drawn(ranks: int, strategy: str, draw: random.Random) -> dict[str, Any]:
    """Returns the configuration of a short run in which everything that can vary was drawn."""
    words = draw.random() < 0.5
    model = {"depth": draw.randint(1, 3), "width": draw.choice((3, 7, 8, 13)), "words": words}
    model["experts"] = draw.choice((0, 3))
    optimizer: dict[str, Any] = {"name": draw.choice(("adamw", "adam", "sgd")), "lr": 10 ** draw.uniform(-3, -1)}
    if optimizer["name"] == "sgd":
        optimizer |= {"momentum": draw.choice((0.0, 0.9))}
        optimizer |= {"nesterov": bool(optimizer["momentum"]) and draw.random() < 0.5}
    else:
        optimizer |= {"betas": [0.8, draw.choice((0.9, 0.99))], "eps": 1e-6}
    optimizer |= {"weight_decay": draw.choice((0.0, 0.1)), "max_norm": draw.choice((None, 0.05, 1.0))}
    schedule = {"kind": draw.choice(("constant", "linear", "cosine", "cosine_restarts"))}
    schedule |= {"warmup": draw.choice((0, 2, 0.3)), "minimum": draw.choice((0.0, 0.1))}
    if schedule["kind"] == "cosine_restarts":
        schedule |= {"period": 2, "period_factor": draw.choice((1.0, 1.5)), "decay": 0.7}
    if draw.random() < 0.5:
        schedule |= {"scaling": draw.choice(("linear", "sqrt")), "reference_batch": 8}
    per_rank = draw.randint(1, 3)
    batch = draw.choice(
        (
            {"size": draw.randint(ranks, 13)},
            {"size": draw.randint(ranks, 13), "per_rank": per_rank},
            {"per_rank": per_rank, "accumulation": draw.randint(1, 13 // (per_rank * ranks))},
        )
    )
    given = draw.choice(("Given", "Given", "GivenGroups"))
    return {
        "task": {"name": f"tests.trainer.reference:{given}", "options": {"samples": draw.randint(17, 30), **model}},
        **draw.choice(({"steps": draw.randint(5, 9)}, {"epochs": draw.uniform(2, 3)})),
        "batch": batch,
        "optimizer": optimizer,
        "schedule": schedule,
        "precision": {"compute": "fp64"},
        "blocks": {"activation_checkpointing": draw.choice(("none", "full"))},
        "evaluation": {"batch": draw.randint(1, 9)},
        "parallel": {"strategy": strategy, "bucket_mb": draw.choice((0.0002, 25.0))},
        "seed": {"value": draw.randint(0, 99)},
    }


def table() -> dict[int, Documents]:
    """Returns the runs by their number of ranks."""
    runs: dict[int, Documents] = {}
    for ranks in RANKS:
        draw = random.Random(ranks)
        kinds = MANY if ranks == 4 else FEW if ranks == 2 else ["ddp"] * 5
        runs[ranks] = {f"{kind}-{number}": drawn(ranks, kind, draw) for number, kind in enumerate(kinds)}
        if ranks > 1:
            runs[ranks]["local"] = {**drawn(ranks, "ddp", draw), "communication": {"local_steps": 3}}
            runs[ranks]["delayed"] = {**drawn(ranks, "ddp", draw), "delayed": {"pattern": "entry", "every": 3}}
            for name in ("local", "delayed"):
                runs[ranks][name]["task"]["name"] = "tests.trainer.reference:Given"
        if ranks == 4:
            tensor = runs[ranks]["tensor"] = {**drawn(ranks, "fsdp", draw), "batch": {"size": 8, "per_rank": 3}}
            tensor["parallel"] = {"strategy": "fsdp", "tensor": 2}
            tensor["task"]["options"] |= {"width": 8, "experts": 0}
    return runs


TABLE = table()
BY_HAND = {"local": local_steps_by_hand, "delayed": delayed_steps_by_hand}


def trained(
    documents: Documents, folder: Path, killed_after: int | None = None
) -> dict[str, tuple[dict[str, torch.Tensor], list[float], dict[str, float]]]:
    """Train each of the runs in this rank; returns weights, rates and results. The last rank may be killed after a
    step.
    """
    found = {}
    settings = {
        name: parse_config({"metrics": {"path": str(folder / name), "every_steps": 1, "plot": False}, **document})
        for name, document in documents.items()
    }
    with joined(next(iter(settings.values())).distributed) as world:
        for name, config in settings.items():
            trainer, rates = Trainer(config, world), list[float]()
            trainer.after_step.append(
                lambda trainer, rates=rates: rates.append(trainer.optimizer.param_groups[0]["lr"])
            )
            if killed_after is not None and world.rank == world.size - 1:
                trainer.after_step.append(
                    lambda trainer: trainer.state.step == killed_after and os.kill(os.getpid(), signal.SIGKILL)
                )
            trainer.run()
            found[name] = (
                {name: one.clone() for name, one in trainer.replica.model_state().items()},
                rates,
                trainer.state.results,
            )
    return found


def differences(own: Run, expected: Run) -> Iterator[str]:
    """Yields what differs from the run by hand."""
    if own.rates != pytest.approx(expected.rates, rel=NEAR):
        yield f"rates {own.rates}, not {expected.rates}"
    if expected.losses and own.losses != pytest.approx(expected.losses, rel=NEAR):
        yield f"losses {own.losses}, not {expected.losses}"
    if expected.norms and own.norms != pytest.approx(expected.norms, rel=1e-10):
        yield f"gradient norms {own.norms}, not {expected.norms}"
    if expected.results and own.results != pytest.approx(expected.results, rel=1e-10):
        yield f"results {own.results}, not {expected.results}"
    for rank, (weights, theirs) in enumerate(zip(own.weights, expected.weights, strict=True)):
        assert weights.keys() == theirs.keys()
        apart = {name: float((weights[name] - theirs[name]).abs().max()) for name in weights}
        yield from (f"rank {rank}: {name} by {by:.3g}" for name, by in apart.items() if not by < NEAR)


@pytest.mark.parametrize("ranks", RANKS)
def test_runs_that_were_drawn_equal_the_loops_by_hand(tmp_path: Path, ranks: int) -> None:
    documents, wrong = TABLE[ranks], []
    answers = run_ranks(ranks, trained, documents, tmp_path)
    for name, document in documents.items():
        expected = BY_HAND.get(name, steps_by_hand)(document, ranks)
        lines = [line for line in read_metrics(tmp_path / name / "metrics.jsonl") if line["kind"] == "step"]
        numbers = ([line[key] for line in lines] for key in ("loss", "gradNorm"))
        own = Run([answer[name][0] for answer in answers], *numbers, *answers[-1][name][1:])
        assert len(own.rates) > 3, f"{name} is too short to show anything"
        wrong += [f"{name}, {difference} in {document}" for difference in differences(own, expected)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("number", range(2))
def test_a_run_that_is_killed_twice_and_goes_on_with_other_ranks_equals_the_loop_by_hand(
    tmp_path: Path, number: int
) -> None:
    document = {**drawn(4, "fsdp", random.Random(100 + number)), "batch": {"size": 7, "per_rank": 2}}
    document |= {"checkpoint": {"path": str(tmp_path / "checkpoints"), "every_steps": 2}}
    ways = [(2, "ddp", 3), (4, "fsdp", 5), (1, "ddp", None)] if number else [(4, "zero1", 3), (2, "fsdp", None)]
    for ranks, strategy, killed_after in ways:
        document |= {"parallel": {"strategy": strategy}}
        if killed_after is not None:
            with pytest.raises(RankFailed, match="no answer"):
                run_ranks(ranks, trained, {"run": document}, tmp_path, killed_after)
    [*weights] = [answer["run"][0] for answer in run_ranks(ranks, trained, {"run": document}, tmp_path)]
    expected = steps_by_hand(document, ranks)
    resumed = [
        line["step"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl") if line.get("event") == "resumed"
    ]
    assert resumed == [2, 4][: len(ways) - 1]
    assert list(differences(Run(weights, rates=expected.rates), Run(expected.weights, rates=expected.rates))) == []


def test_fp16_leaves_out_the_steps_that_plain_torch_leaves_out() -> None:
    document = drawn(1, "ddp", random.Random(7))
    document |= {"task": {"name": "tests.trainer.reference:Given", "options": {"samples": 24, "words": True}}}
    document |= {"steps": 30, "precision": {"compute": "fp16", "initial_scale": 2.0**34, "growth_interval": 3}}
    document.pop("epochs", None)
    [(scales, weights)] = run_ranks(1, scaled, document)
    expected, theirs = scaled_steps_by_hand(document)
    assert scales == expected
    assert sum(after < before for before, after in itertools.pairwise([2.0**34, *scales])) > 12
    assert max(float((weights[name] - theirs[name]).abs().max()) for name in theirs) < 1e-5


def scaled(document: dict[str, Any]) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train in this rank; returns the loss scale after each step, and the weights."""
    scales: list[float] = []
    config = parse_config({**document, "metrics": {"path": reports(), "plot": False}})
    with joined(config.distributed) as world:
        trainer = Trainer(config, world)
        trainer.after_step.append(lambda trainer: scales.append(trainer.precision.scaler.get_scale()))
        trainer.run()
        return scales, {name: one.clone() for name, one in trainer.replica.model_state().items()}

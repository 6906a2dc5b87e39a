"""After a recovery, compiled blocks have the same graphs as in an uninterrupted run (`Trainer.rehearse`)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.backends.debugging import aot_eager

from tests.trainer.faults import Fault, attempt, began
from tests.trainer.faults import train as train_until
from tests.trainer.ranks import run_ranks
from tests.trainer.test_block_settings import Network
from tests.trainer.toy import Toy, config, same_bits, train
from trainloop.checkpoints import storage
from trainloop.config import Config

pytestmark = pytest.mark.torch

WIDTH = 200
#: The compilations in this process, in order: the shape of a block's input, with symbols where it varies,
#: and whether gradients are computed.
COMPILED: list[tuple[str, bool]] = []


@torch._dynamo.register_backend
def seen(graph: Any, inputs: Any) -> Any:
    """Compiles with aot_eager, and records the shapes."""
    given = [node.meta["example_value"] for node in graph.graph.nodes if node.op == "placeholder"]
    [hidden] = [one for one in given if isinstance(one, torch.Tensor) and not isinstance(one, torch.nn.Parameter)]
    shape = "varies" if any(not isinstance(size, int) for size in hidden.shape) else str(list(hidden.shape))
    COMPILED.append((shape, torch.is_grad_enabled()))
    return aot_eager(graph, inputs)


class Wide(Toy):
    """Has gradients of 1.2 MiB per block, which go into several of DDP's buckets."""

    def model(self) -> torch.nn.Module:
        return Network(3, width=WIDTH)


def settings(path: Path | None = None, **changes: Any) -> Config:
    """Returns a run whose epochs have two steps of 16 samples and one of 8, with an evaluation on 20 after every second
    step.
    """
    task = {"name": "tests.trainer.test_compiled_recovery:Wide", "options": {"double": False}}
    section = {"task": task, "blocks": {"compile": "seen"}, "steps": 9, "batch": {"size": 16}}
    return config(path, **{**section, "precision": {"compute": "fp32"}, "evaluation": {"every_steps": 2}, **changes})


def observed(settings: Config, steps: int | None = None) -> dict[str, Any]:
    """Train, in a process that has compiled nothing; returns the graphs and the result of `train`."""
    run = train(settings, steps)
    return {**run, "graphs": list(COMPILED)}


def until(settings: Config, fault: Fault | None) -> dict[str, Any]:
    """Train until the fault; returns the graphs and the result of `faults.train`."""
    run = train_until(settings, fault)
    return {**run, "graphs": list(COMPILED)}


#: The graphs of an uninterrupted run of one rank: a step's, the evaluation's for any number of samples, and the shorter
#: step's own.
GRAPHS = [(f"[16, {WIDTH}]", True), ("varies", False), (f"[8, {WIDTH}]", True)]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder in which the uninterrupted run of one rank saves after each of its steps."""
    return tmp_path_factory.mktemp("saved") / "checkpoints"


@pytest.fixture(scope="module")
def through(checkpoints: Path) -> dict[str, Any]:
    """Returns that run."""
    [run] = run_ranks(1, observed, settings(checkpoint={"path": str(checkpoints), "every_steps": 1, "keep": 10}))
    return dict(run)


def test_an_uninterrupted_run_has_a_graph_of_its_own_for_an_epochs_last_step(through: dict[str, Any]) -> None:
    assert through["graphs"] == GRAPHS


@pytest.mark.parametrize("after", [2, 3, 5])
def test_a_run_that_goes_on_from_a_checkpoint_compiles_what_an_uninterrupted_one_does(
    tmp_path: Path, checkpoints: Path, through: dict[str, Any], after: int
) -> None:
    """The next step is an epoch's last, then its first, then the last followed by an evaluation."""
    [saved] = [each.path for each in storage.complete(checkpoints) if each.step == after]
    shutil.copytree(saved, tmp_path / "checkpoints" / saved.name)
    [resumed] = run_ranks(1, observed, settings(tmp_path))
    assert resumed["state"].step == 9 and len(resumed["rates"]) == 9 - after
    assert sorted(resumed["graphs"]) == sorted(GRAPHS)
    assert same_bits(resumed["weights"], through["weights"])


@pytest.mark.parametrize(("ranks", "victim"), [(1, 0), (4, 2)])
def test_a_run_that_goes_on_from_memory_compiles_what_an_uninterrupted_one_does(
    tmp_path: Path, through: dict[str, Any], ranks: int, victim: int
) -> None:
    """The step from which the run continues is first evaluated, in other shapes. With four ranks the last bits depend
    on the buckets, which compiled blocks' gradients fill in their own order.
    """
    changes = {"parallel": {"bucket_mb": 1.0}}
    uninterrupted = [through] if ranks == 1 else run_ranks(ranks, observed, settings(**changes))
    attempt(1, ranks, tmp_path, settings(**changes), {victim: ("terminate" if ranks == 1 else "kill", 4)}, until)
    resumed = attempt(2, ranks, tmp_path, settings(**changes), None, until)
    assert began(resumed) in ([4] * ranks, [5] * ranks)
    for one, other in zip(resumed, uninterrupted, strict=True):
        assert sorted(one["graphs"]) == sorted(other["graphs"])
        assert same_bits(one["weights"], other["weights"])

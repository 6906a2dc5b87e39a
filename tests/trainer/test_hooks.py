"""Hooks are called at four places with the trainer, and their state is in the checkpoint (`trainer`, `state`)."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.trainer.ranks import RankFailed, run_ranks
from tests.trainer.toy import EXACT, UNEVEN, Toy, config, largest_difference, same_bits, toy
from trainloop.config import Config
from trainloop.distributed.world import joined
from trainloop.trainer import Trainer

pytestmark = pytest.mark.torch

MANY = [f"tests.trainer.test_hooks:{name}" for name in ("average", "shadow", "own_schedule")]


def average(trainer: Trainer) -> None:
    """Keeps an exponential average of the weights, by torch's own class."""
    ema = AveragedModel(trainer.replica.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    trainer.after_step.append(lambda trainer: ema.update_parameters(trainer.replica.model))
    trainer.stateful["ema"] = ema


class Shadow:
    """Keeps averages of the weights as they are sharded: under FSDP2 its tensors are DTensors."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.tensors = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
        self.slower = [tensor.detach().clone() for tensor in model.parameters()]

    def update(self, trainer: Trainer) -> None:
        for slower, (name, parameter) in zip(self.slower, trainer.replica.model.named_parameters(), strict=True):
            slower.lerp_(self.tensors[name].lerp_(parameter.detach(), 0.1), 0.1)

    def state_dict(self) -> dict[str, Any]:
        """Returns one part by name and one as a list, like torch_ema's `shadow_params`."""
        return {"tensors": self.tensors, "slower": [self.slower[:1], tuple(self.slower[1:])]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tensors = state["tensors"]
        first, others = state["slower"]
        self.slower = [*first, *others]


def shadow(trainer: Trainer) -> None:
    kept = Shadow(trainer.replica.model)
    trainer.after_step.append(kept.update)
    trainer.stateful["shadow"] = kept


def own_schedule(trainer: Trainer) -> None:
    """Lowers dropout step by step with one of torch's schedulers, which has its own state."""
    [dropout] = [module for module in trainer.replica.model.modules() if isinstance(module, torch.nn.Dropout)]
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.8**step)

    def lower(trainer: Trainer) -> None:
        dropout.p = scheduler.get_last_lr()[0]
        optimizer.step()
        scheduler.step()

    trainer.before_step.append(lower)
    trainer.stateful["dropout"] = scheduler


def record(trainer: Trainer) -> None:
    """Writes the places where it was called to a file, with the step."""
    called = Path(trainer.config.metrics.path or "") / "called"
    for place in ("before_step", "after_step", "after_evaluation", "before_save"):
        hooks = getattr(trainer, place)
        hooks.append(lambda trainer, place=place: called.open("a").write(f"{place} {trainer.state.step}\n"))
    trainer.after_evaluation.append(lambda trainer: trainer.state.results.update(steps=float(trainer.state.step)))


def run(settings: Config, steps: int | None = None) -> dict[str, Any]:
    """Train to the end, or save and stop after `steps`; returns the weights and the hooks' states, whole."""
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        if steps is None:
            trainer.run()
        else:
            trainer.prepare()
            for _ in range(steps):
                trainer.train_step()
            trainer.save()
        whole = {name: getattr(t, "full_tensor", lambda t=t: t)() for name, t in _tensors(trainer).items()}
        return {name: tensor.detach().clone() for name, tensor in whole.items()}


def _tensors(trainer: Trainer) -> dict[str, torch.Tensor]:
    found = {f"model.{name}": tensor for name, tensor in trainer.replica.model_state().items()}
    for kept, stateful in trainer.stateful.items():
        state = stateful.state_dict()
        plain = {name: v for name, v in state.get("tensors", state).items() if isinstance(v, torch.Tensor | int)}
        plain |= {f"slower.{number}": v for number, v in enumerate(chain(*state.get("slower", [])))}
        found |= {f"{kept}.{name}": torch.as_tensor(value) for name, value in plain.items()}
    return found


@pytest.mark.parametrize(
    ("strategy", "hooks"), [("ddp", MANY), ("zero1", MANY), ("fsdp", [MANY[1], MANY[2]])], ids=["ddp", "zero1", "fsdp"]
)
def test_what_hooks_keep_goes_on_to_the_bit(tmp_path: Path, strategy: str, hooks: list[str]) -> None:
    changes = {**EXACT, "hooks": hooks, "parallel": {"strategy": strategy, "bucket_mb": 0.004}}
    through = run_ranks(2, run, config(tmp_path / "through", **changes))
    run_ranks(2, run, config(tmp_path / "parts", **changes), 3)
    resumed = run_ranks(2, run, config(tmp_path / "parts", **changes))
    assert any(name.startswith("shadow.") for name in through[0])
    for one, other in zip(through, resumed, strict=True):
        assert one.keys() == other.keys() and same_bits(one, other)
    assert not torch.equal(through[0]["shadow.0.weight"], through[0]["model.0.weight"])


def test_what_hooks_keep_goes_back_with_a_roll_back(tmp_path: Path) -> None:
    """Steps 11 to 13 are odd, and the run goes back to step 10; the hook's state is then of 10 steps and those after
    13.
    """
    odd = toy(poison=[11, 12, 13], factor=float("nan"))
    changes = {**odd, "steps": 14, "hooks": ["tests.trainer.test_hooks:count"], "anomaly": {"rollback_after": 3}}
    checkpoint = {"path": str(tmp_path / "checkpoints"), "every_steps": 10}
    [states] = run_ranks(1, run, config(tmp_path, **changes, checkpoint=checkpoint))
    # The hook was called after step 13's roll-back too, which is a loop step that ends at step 10 again.
    assert float(states["count.steps"]) == 10 + 1 + 4


class Count:
    """Counts its calls."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"steps": 0}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = dict(state)


def count(trainer: Trainer) -> None:
    kept = Count()
    trainer.after_step.append(lambda trainer: kept.state.update(steps=kept.state["steps"] + 1))
    trainer.stateful["count"] = kept


def test_a_state_that_only_the_checkpoint_or_only_the_program_has_is_said(tmp_path: Path) -> None:
    run_ranks(1, run, config(tmp_path, **EXACT, hooks=[MANY[0], MANY[1]]), 2)
    run_ranks(1, run, config(tmp_path, **EXACT, hooks=[MANY[1], MANY[2]]))
    assert [line["text"] for line in _lines(tmp_path) if line.get("event") == "warning"] == [
        "the checkpoint has a state of ema, which no hook of this run has: it is left out",
        "the checkpoint has no state of dropout: it stays as this run's hooks made it",
    ]


def test_hooks_are_called_at_their_four_places_and_may_add_results(tmp_path: Path) -> None:
    changes = {"hooks": ["tests.trainer.test_hooks:record"], "steps": 2, "evaluation": {"every_steps": 1}}
    run_ranks(1, run, config(tmp_path, **changes))
    called = (tmp_path / "report" / "called").read_text().splitlines()
    first = ["before_step 0", "after_step 1", "after_evaluation 1"]
    assert called == [*first, "before_step 1", "after_step 2", "after_evaluation 2", "before_save 2"]
    assert [line["steps"] for line in _lines(tmp_path) if line["kind"] == "evaluation"] == [1.0, 2.0]


def halve(trainer: Trainer) -> None:
    """Sets a learning rate for each step, half of the previous one."""

    def set_rates(trainer: Trainer) -> None:
        for group in trainer.optimizer.param_groups:
            group["initial_lr"] = 0.08 * 0.5**trainer.state.updates

    trainer.before_step.append(set_rates)


def test_a_hook_may_be_the_schedule(tmp_path: Path) -> None:
    changes = {"hooks": ["tests.trainer.test_hooks:halve"], "schedule": {"kind": "constant", "warmup": 0}}
    run_ranks(1, run, config(tmp_path, steps=4, **changes))
    assert [line["lr"] for line in _lines(tmp_path) if line["kind"] == "step"] == [0.08, 0.04, 0.02, 0.01]


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "report" / "metrics.jsonl").read_text().splitlines()]


def thaw(trainer: Trainer) -> None:
    """Freezes the first layer in steps 3 and 4 of 7."""
    first = trainer.replica.model.get_submodule("0")
    trainer.before_step.append(lambda trainer: first.requires_grad_(trainer.state.step not in (2, 3)))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"parallel": {"strategy": "zero1"}},
        {"parallel": {"strategy": "fsdp"}},
        {"communication": {"local_steps": 4}},
    ],
    ids=["ddp", "zero1", "fsdp", "local"],
)
def test_a_hook_may_freeze_a_layer_and_train_it_again(tmp_path: Path, changes: dict[str, Any]) -> None:
    settings = {**UNEVEN, "hooks": ["tests.trainer.test_hooks:thaw"], "gradients": {"checksum_every": 1}, **changes}
    first, second = run_ranks(2, run, config(**settings))
    assert largest_difference(first, second) == 0
    if "communication" not in changes:
        [alone] = run_ranks(1, run, config(**settings))
        assert largest_difference(first, alone) < 1e-12
    run_ranks(2, run, config(tmp_path, **settings), 3)
    resumed = run_ranks(2, run, config(tmp_path, **settings))
    assert largest_difference(resumed[1], first) < (0.1 if "communication" in changes else 1e-12)


def train_all(trainer: Trainer) -> None:
    """Trains the layers that the model has frozen."""
    trainer.before_step.append(lambda trainer: trainer.replica.model.requires_grad_(True))


class Headless(Toy):
    """Has a frozen first layer."""

    def model(self) -> torch.nn.Module:
        model = super().model()
        model.get_submodule("0").requires_grad_(False)
        return model


def test_what_a_hook_trains_and_no_optimizer_has_is_named() -> None:
    task = {"name": "tests.trainer.test_hooks:Headless"}
    with pytest.raises(RankFailed, match=r"optimizer doesn't have 0\.weight, 0\.bias"):
        run_ranks(2, run, config(task=task, hooks=["tests.trainer.test_hooks:train_all"]))

"""Several optimizers take the same steps as in plain torch, both for one loss and by turns (`objectives`)."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, softplus

from tests.trainer.ranks import RankFailed, run_ranks
from tests.trainer.toy import Toy, config, largest_difference, same_bits, train, weights
from trainloop import seeding
from trainloop.config import Config
from trainloop.distributed.world import joined
from trainloop.objectives import Objective
from trainloop.optimization.optimizer import OptimizerSettings
from trainloop.trainer import Trainer

sys.path.append(str(Path(__file__).parents[2] / "images" / "trainer" / "examples"))
from gan import NOISE, Gan, Networks

pytestmark = pytest.mark.torch

SAMPLES, STEPS, SEED = 24, 6, 3


class Seeded(Gan):
    """Runs the example in double precision. `poison` makes the generator's loss odd in some steps, `factors` gives it
    its own schedule, and with `mean` its loss makes the mistake that the loop reports.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__({"samples": SAMPLES, "dtype": torch.float32 if options.get("single") else torch.float64})
        self.options, self.calls, self.seen = options, 0, list[int]()

    def generator_loss(self, model: Any, batch: Any) -> torch.Tensor:
        self.calls += torch.is_grad_enabled()
        if self.options.get("mean"):
            return model("generator", batch["real"].repeat(1, 2)).square().mean()
        odd = self.calls in self.options.get("poison", [])
        return super().generator_loss(model, batch) * (math.nan if odd else 1.0)

    def objectives(self, model: nn.Module, settings: Any) -> list[Objective]:
        discriminator, generator = super().objectives(model, settings)
        generator.factor = self.options["factors"].__getitem__ if "factors" in self.options else None
        return [discriminator, generator]


def settings(path: Path | None = None, *, strategy: str = "ddp", **changes: Any) -> Config:
    """Returns a run whose every step uses all samples, so that their order doesn't matter to the reference."""
    common: dict[str, Any] = {
        "task": {"name": "tests.trainer.test_objectives:Seeded"},
        "batch": {"size": SAMPLES},
        "steps": STEPS,
        "seed": {"value": SEED},
        "parallel": {"strategy": strategy},
    }
    return config(path, **{**common, **changes})


def plain_gan(ranks: int, passes: int = 1) -> dict[str, torch.Tensor]:
    """Returns the GAN's weights after the same training in plain torch.

    The noise is drawn by each rank in each of its `passes`: first the discriminator's, then the generator's.
    """
    seeding.seed_all(SEED, seeding.MODEL)
    model, real = Networks().double(), Seeded({}).train
    generators = []
    for rank in range(ranks):
        seeding.seed_all(SEED, seeding.RANK, rank)
        generators.append(torch.Generator().manual_seed(torch.initial_seed()))
    size = SAMPLES // ranks // passes

    def drawn() -> torch.Tensor:
        parts = [torch.randn(size, NOISE, dtype=real.dtype, generator=g) for g in generators for _ in range(passes)]
        return torch.cat(parts)

    players = [(model.discriminator, 0.05, 1.0), (model.generator, 0.025, None)]
    optimizers = [torch.optim.Adam(player.parameters(), lr=rate, betas=(0.5, 0.999)) for player, rate, _ in players]
    for step in range(STEPS):
        factor = (step + 1) / 2 if step < 2 else 0.5 * (1 + math.cos(math.pi * (step - 2) / (STEPS - 2)))
        for (player, rate, most), optimizer in zip(players, optimizers, strict=True):
            optimizer.param_groups[0]["lr"] = rate * factor
            made = model.generator(drawn())
            if player is model.discriminator:
                loss = softplus(-model.discriminator(real)) + softplus(model.discriminator(made.detach()))
            else:
                loss = softplus(-model.discriminator(made))
            model.zero_grad()
            loss.mean().backward()
            if most is not None:
                nn.utils.clip_grad_norm_(player.parameters(), most)
            optimizer.step()
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(
    ("ranks", "strategy", "per_rank"),
    [(1, "ddp", None), (2, "ddp", 4), (2, "zero1", None), (2, "fsdp", 4)],
)
def test_a_gan_equals_a_plain_loop(ranks: int, strategy: str, per_rank: int | None) -> None:
    batch = {"size": SAMPLES, "per_rank": per_rank}
    expected = plain_gan(ranks, SAMPLES // ranks // (per_rank or SAMPLES // ranks))
    for rank in run_ranks(ranks, train, settings(strategy=strategy, batch=batch)):
        assert largest_difference(rank["weights"], expected) < 1e-12


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_gan_goes_on_to_the_bit(tmp_path: Path, strategy: str) -> None:
    through = run_ranks(2, train, settings(strategy=strategy))
    run_ranks(2, train, settings(tmp_path, strategy=strategy), 3)
    for one, other in zip(through, run_ranks(2, train, settings(tmp_path, strategy=strategy)), strict=True):
        assert same_bits(one["weights"], other["weights"])


def test_an_odd_objective_leaves_out_itself_and_those_after_it_on_all_ranks(tmp_path: Path) -> None:
    """The generator's loss is NaN in step 2: its weights stay, while the discriminator's have moved."""
    for before, after, updates in run_ranks(2, _second_step, settings(tmp_path, task=own(poison=[2]))):
        moved = {name.partition(".")[0] for name in before if not torch.equal(before[name], after[name])}
        assert (moved, updates) == ({"discriminator"}, 1)


def test_odd_objectives_in_a_row_go_back_to_a_checkpoint(tmp_path: Path) -> None:
    """Steps 3 and 4 are odd: the discriminator's weights return to step 2, and the run ends as usual."""
    changes = {"task": own(poison=[3, 4]), "anomaly": {"rollback_after": 2}}
    checkpoint = {"path": str(tmp_path / "checkpoints"), "every_steps": 2}
    runs = run_ranks(2, train, settings(tmp_path, **changes, checkpoint=checkpoint))
    assert [run["state"].updates for run in runs] == [STEPS, STEPS]
    assert same_bits(runs[0]["weights"], runs[1]["weights"])
    texts = [line.get("text", "") for line in _lines(tmp_path)]
    assert any(text.startswith("went back to step 2") for text in texts)


def test_an_objective_may_have_a_schedule_of_its_own() -> None:
    factors = [1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125]
    [rates] = run_ranks(1, _rates, settings(task=own(factors=factors), schedule={"kind": "constant", "warmup": 0}))
    assert rates == [(0.05, 0.025 * factor) for factor in factors]


def _rates(configuration: Config) -> list[tuple[float, ...]]:
    rates: list[tuple[float, ...]] = []
    with joined(configuration.distributed) as world:
        trainer = Trainer(configuration, world)
        trainer.after_step.append(lambda t: rates.append(tuple(group["lr"] for group in t.optimizer.param_groups)))
        trainer.run()
    return rates


def test_each_objective_is_unscaled_clipped_and_stepped_under_fp16() -> None:
    """In half precision the weights come near those of single precision, and all ranks have the same."""
    single, half = (
        run_ranks(2, train, settings(task=own(single=True), precision={"compute": kind, "initial_scale": 1024.0}))
        for kind in ("fp32", "fp16")
    )
    assert half[0]["state"].updates == STEPS
    assert same_bits(half[0]["weights"], half[1]["weights"])
    assert 0 < largest_difference(half[0]["weights"], single[0]["weights"]) < 0.02


def test_an_objective_whose_loss_is_a_mean_is_said(tmp_path: Path) -> None:
    run_ranks(1, train, settings(tmp_path, task=own(mean=True), steps=1))
    assert any(line.get("text", "").startswith("the task's loss is a mean") for line in _lines(tmp_path))


def own(**options: Any) -> dict[str, Any]:
    return {"name": "tests.trainer.test_objectives:Seeded", "options": options}


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "report" / "metrics.jsonl").read_text().splitlines()]


def _second_step(configuration: Config) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], int]:
    with joined(configuration.distributed) as world:
        trainer = Trainer(configuration, world)
        trainer.prepare()
        trainer.train_step()
        before = weights(trainer)
        trainer.train_step()
        return before, weights(trainer), trainer.state.updates


def test_each_objectives_loss_is_logged_and_their_sum_is_the_loss(tmp_path: Path) -> None:
    run_ranks(2, train, settings(tmp_path))
    lines = _lines(tmp_path)
    steps = [line for line in lines if line["kind"] == "step"]
    assert [line["discriminatorLoss"] + line["generatorLoss"] for line in steps] == pytest.approx(
        [line["loss"] for line in steps]
    )
    assert "distance" in next(line for line in lines if line["kind"] == "evaluation")


@pytest.mark.parametrize("section", [{"communication": {"compression": "fp16"}}, {"delayed": {"pattern": "generator"}}])
def test_what_objectives_can_not_go_with_is_a_sentence(section: dict[str, Any]) -> None:
    with pytest.raises(RankFailed, match="the task has several objectives: delayed, communication"):
        run_ranks(1, train, settings(**section))


class Matrices(Toy):
    """Matrices have momentum and vectors have Adam, for one loss, as with Muon, which is for matrices only."""

    def model(self) -> nn.Module:
        torch.manual_seed(7)
        return super().model()

    def optimizer(self, model: nn.Module, settings: OptimizerSettings) -> list[torch.optim.Optimizer]:
        matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
        others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
        if self.options.get("muon"):
            return [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=settings.lr)]
        return [torch.optim.SGD(matrices, lr=0.2, momentum=0.9), torch.optim.AdamW(others, lr=settings.lr)]


def matrices(path: Path | None = None, strategy: str = "ddp", **options: Any) -> Config:
    task = {"name": "tests.trainer.test_objectives:Matrices", "options": {"samples": SAMPLES, "depth": 1, **options}}
    return settings(path, strategy=strategy, task=task)


def plain_matrices() -> dict[str, torch.Tensor]:
    """Returns the weights after the same training in plain torch; the gradients are clipped together."""
    torch.manual_seed(7)
    layers = [nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)]
    model = nn.Sequential(*layers).double()
    _, points, labels = zip(*Toy({"samples": SAMPLES}).train, strict=True)
    sgd = torch.optim.SGD([p for p in model.parameters() if p.dim() == 2], lr=0.2, momentum=0.9)
    adam = torch.optim.AdamW([p for p in model.parameters() if p.dim() < 2], lr=0.05)
    for step in range(STEPS):
        factor = (step + 1) / 2 if step < 2 else 0.5 * (1 + math.cos(math.pi * (step - 2) / (STEPS - 2)))
        sgd.param_groups[0]["lr"], adam.param_groups[0]["lr"] = 0.2 * factor, 0.05 * factor
        model.zero_grad()
        cross_entropy(model(torch.stack(points)), torch.stack(labels)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        sgd.step()
        adam.step()
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(("ranks", "strategy"), [(1, "ddp"), (2, "ddp"), (2, "zero1"), (2, "fsdp")])
def test_two_optimizers_of_one_loss_equal_a_plain_loop_over_a_resume(tmp_path: Path, ranks: int, strategy: str) -> None:
    run_ranks(ranks, train, matrices(tmp_path, strategy), 3)
    for rank in run_ranks(ranks, train, matrices(tmp_path, strategy)):
        assert largest_difference(rank["weights"], plain_matrices()) < 1e-12


@pytest.mark.parametrize(("strategy", "tolerance"), [("zero1", 1e-12), ("fsdp", 1e-2)])
def test_muon_for_matrices_and_adamw_for_the_rest_take_one_processs_steps(strategy: str, tolerance: float) -> None:
    """Muon computes in bfloat16. With shards the order of adding differs, which shows; the weights move by 0.1."""
    [alone] = run_ranks(1, train, matrices(muon=True))
    for rank in run_ranks(2, train, matrices(strategy=strategy, muon=True)):
        assert largest_difference(rank["weights"], alone["weights"]) < tolerance

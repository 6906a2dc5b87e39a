"""The device can judge a step and leave it out; the host reads the verdict a step later, as if it had judged at once.

Ranks on the CPU run the same lines as on an accelerator if `Judge.on_device` is set, which the hook here does.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import EXACT, Toy, config, same_bits, toy, train
from trainloop.data import Batch
from trainloop.distributed.device import Numbers
from trainloop.distributed.world import World, joined
from trainloop.optimization.anomaly import Limits
from trainloop.optimization.optimizer import chosen, step_unless
from trainloop.optimization.verdict import Verdict
from trainloop.parallel.compression import Compressor
from trainloop.trainer import Trainer

ON_DEVICE = {"hooks": ["tests.trainer.test_on_device:judged_on_device"]}


def judged_on_device(trainer: Trainer) -> None:
    trainer.judge.on_device = True


def warnings_of(folder: Path) -> list[str]:
    lines = map(json.loads, (folder / "report" / "metrics.jsonl").read_text().splitlines())
    return [line["text"] for line in lines if line.get("event") == "warning"]


def lines_of(folder: Path) -> list[tuple[float, ...]]:
    """Returns the numbers in the steps' lines that don't depend on time."""
    lines = map(json.loads, (folder / "report" / "metrics.jsonl").read_text().splitlines())
    names = ("step", "epoch", "loss", "lr", "gradNorm")
    return [tuple(line[name] for name in names) for line in lines if line["kind"] == "step"]


RARE = {"every_steps": 1000, "plot": False}
SINGLE = {
    "steps": 40,
    "schedule": {"kind": "cosine", "warmup": 0},
    "precision": {"compute": "fp32"},
    "anomaly": {"least": 16, "window": 16},
}
POISONED = {"double": False, "dropout": 0.2, "poison": [20, 21, 23, 30, 31, 32], "poisoned_rank": 1}


@pytest.mark.torch
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer": {"name": "sgd", "lr": 0.05, "max_norm": 0.5}, "parallel": {"strategy": "zero1"}},
        {"parallel": {"strategy": "zero1"}},
        {"parallel": {"strategy": "fsdp"}},
        {"communication": {"local_steps": 3}},
        {
            "precision": {"compute": "fp16", "initial_scale": 2.0**18, "growth_interval": 20},
            **toy(**POISONED, factor=math.inf),
        },
        {"checkpoint": {"path": None}},
    ],
    ids=["ddp", "sgd", "zero1", "fsdp", "local", "fp16", "without-checkpoint"],
)
def test_a_run_that_the_device_judges_equals_one_that_the_host_judges_to_the_bit(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Steps are left out. Three in a row lead back to the checkpoint or, without one, are made in the end."""
    runs = []
    for name, where in (("host", {}), ("device", ON_DEVICE)):
        folder = tmp_path / name
        metrics = {**RARE, "every_steps": 3, "path": str(folder / "report")}
        checkpoint = {"path": str(folder / "checkpoints"), "every_steps": 25}
        settings = {**SINGLE, **toy(**POISONED), "metrics": metrics, "checkpoint": checkpoint, **changes, **where}
        runs.append((run_ranks(2, train, config(folder, **settings)), warnings_of(folder), lines_of(folder)))
    (host, warnings, lines), (device, same_warnings, same_lines) = runs
    for one, other in zip(host, device, strict=True):
        assert same_bits(one["weights"], other["weights"])
        assert one["state"] == other["state"]
    assert warnings == same_warnings and len(warnings) >= 6
    assert lines == same_lines and len(lines) >= 15
    assert any("went back to step 25" in text or "it is made" in text for text in warnings)
    assert host[0]["state"].updates < 40 and same_bits(device[0]["weights"], device[1]["weights"])


@pytest.mark.torch
def test_a_resume_of_a_run_that_the_device_judges_is_exact_to_the_bit(tmp_path: Path) -> None:
    """The checkpoint comes right after a step that was left out, before its verdict would be read."""
    task = {"name": "tests.trainer.toy:Toy", "options": {**EXACT["task"]["options"], "poison": [5], "factor": math.nan}}
    changes = {**EXACT, "task": task, **ON_DEVICE, "metrics": {**RARE, "path": str(tmp_path / "report")}}
    whole = run_ranks(2, train, config(None, **changes))
    before = run_ranks(2, train, config(tmp_path, **changes), 5)
    assert [rank["state"].updates for rank in before] == [4, 4]
    changes["task"] = EXACT["task"]
    resumed = run_ranks(2, train, config(tmp_path, **changes))
    assert same_bits(whole[0]["weights"], resumed[0]["weights"])
    assert resumed[0]["state"].updates == whole[0]["state"].updates == 7


@pytest.mark.torch
@pytest.mark.parametrize(
    ("compute", "strategy", "every"),
    [("fp32", "ddp", 1000), ("fp32", "ddp", 1), ("bf16", "ddp", 1000), ("fp16", "ddp", 1000), ("fp16", "zero1", 1000)],
)
def test_a_step_reads_nothing_of_the_device_and_begins_its_collectives_without_waiting(
    compute: str, strategy: str, every: int
) -> None:
    """If a step prints a line, it is read when the next passes are already queued."""
    settings = config(
        steps=40,
        task={"name": "tests.trainer.test_on_device:Quiet", "options": {"double": False}},
        precision={"compute": compute},
        parallel={"strategy": strategy},
        anomaly={"least": 4, "window": 8},
        metrics={**RARE, "every_steps": every, "path": config().metrics.path},
    )
    for reads, collectives in run_ranks(2, _observed, settings):
        assert reads == Counter()
        assert collectives == {"asynchronous": 40 + 20 // every}  # the count, the loss, and lines


class Quiet(Toy):
    """Trains without recording which samples it has seen, which would read them."""

    def loss(self, model: Callable[..., Any], batch: Batch) -> torch.Tensor:
        return functional.cross_entropy(model(batch["points"]), batch["labels"], reduction="sum")

    def results(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {}


class Reads(TorchDispatchMode):
    """Counts the calls that take a number out of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.allowed = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        if function is torch.ops.aten._local_scalar_dense.default and not self.allowed:
            self.found["item"] += 1
        return function(*arguments, **(named or {}))

    def allowing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that does the same, and whose reads don't count."""

        def allowed(*arguments: Any) -> Any:
            self.allowed += 1
            try:
                return function(*arguments)
            finally:
                self.allowed -= 1

        return allowed

    def counting(self, patch: pytest.MonkeyPatch, name: str) -> None:
        """Count calls of a tensor method that copies it to the host without calling the dispatcher."""
        original = getattr(torch.Tensor, name)

        def counted(tensor: torch.Tensor, *arguments: Any) -> Any:
            self.found[name] += not self.allowed
            return original(tensor, *arguments)

        patch.setattr(torch.Tensor, name, counted)


def _observed(settings: Any) -> tuple[Counter[str], Counter[str]]:
    """Returns how often 20 steps read tensors, and their collectives, on this rank."""
    collectives = Counter[str]()
    reads, all_reduce, reduce = Reads(), dist.all_reduce, Compressor.reduce
    with joined(settings.distributed) as world, pytest.MonkeyPatch.context() as patch:
        trainer = Trainer(settings, world)
        judged_on_device(trainer)
        trainer.prepare()
        for _ in range(10):
            trainer.train_step()

        def counted(*arguments: Any, async_op: bool = False, **named: Any) -> Any:
            collectives["asynchronous" if async_op else "blocking"] += 1
            return all_reduce(*arguments, async_op=async_op, **named)

        def of_gradients(*arguments: Any) -> Any:
            collectives["asynchronous"] -= 1
            return reduce(*arguments)

        patch.setattr(dist, "all_reduce", counted)
        patch.setattr(Compressor, "reduce", of_gradients)
        read, passes = Numbers.read, trainer._passes
        made = trainer.state.step  # steps whose passes are queued

        def counting(*arguments: Any) -> torch.Tensor:
            nonlocal made
            made += 1
            return passes(*arguments)

        def after_the_passes(numbers: Numbers) -> list[float]:
            assert made == trainer.state.step + 1
            return read(numbers)

        patch.setattr(trainer, "_passes", counting)
        summing = World.summing  # counts and flags, on the host
        patch.setattr(World, "summing", lambda world, values: reads.allowing(summing(world, values)))
        patch.setattr(Numbers, "read", reads.allowing(after_the_passes))  # the last step's values, which have arrived
        for name in ("tolist", "numpy", "cpu", "__array__"):
            reads.counting(patch, name)
        with reads:
            for _ in range(20):
                trainer.train_step()
            counted_so_far = Counter(collectives)
        return reads.found, counted_so_far


BEYOND = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("limits", [Limits(), Limits(2.0, 3.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_device_leaves_out_what_the_host_does(limits: Limits, dtype: torch.dtype) -> None:
    above = [float(torch.nextafter(torch.tensor(limit), torch.tensor(math.inf))) for limit in (2.0, 3.0)]
    for loss in [-1e30, 0.0, 2.0, above[0], *BEYOND]:
        for norm in [0.0, 3.0, above[1], *BEYOND[:2]]:
            left_out = Verdict(torch.tensor(loss, dtype=dtype), torch.tensor(norm), limits).left_out
            assert left_out.dtype == torch.float32  # of torch's fused optimizers
            assert left_out.item() == (not limits.keep(loss, norm)), (loss, norm)


class Kernels(TorchDispatchMode):
    """Counts operations for which a device would launch a kernel: neither views nor tensors without values."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        self.count += not function.is_view and "empty" not in function.name()
        return function(*arguments, **(named or {}))


def test_a_step_launches_six_kernels_more_than_a_bare_loop() -> None:
    """Four are for the verdict, and two for the fused optimizer, in which each group takes back its count of steps."""
    settings = config(
        steps=1000,
        task={"name": "tests.trainer.test_on_device:Quiet", "options": {"double": False}},
        precision={},
        anomaly={"least": 4, "window": 8},
        metrics={**RARE, "path": config().metrics.path},
    )
    ours, bare = run_ranks(1, _launched, settings)[0]
    assert bare < ours <= bare + 20 * 6


def _launched(settings: Any) -> tuple[int, int]:
    """Returns the kernels of 20 steps, and of a hand-written loop."""
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        judged_on_device(trainer)
        trainer.prepare()
        batch = trainer.task.collate(trainer.task.train[:8])  # type: ignore[attr-defined]
        model = trainer.task.model()
        optimizer = chosen(model, settings.optimizer)

        def step() -> None:
            trainer.task.collate(trainer.task.train[:8])  # type: ignore[attr-defined]
            (trainer.task.loss(model, batch) / 8).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        found = []
        for make in (trainer.train_step, step):
            for _ in range(10):
                make()
            with Kernels() as kernels:
                for _ in range(20):
                    make()
            found.append(kernels.count)
        return found[0], found[1]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fused_sgd_whose_first_step_is_left_out_begins_without_momentum(momentum: float) -> None:
    """Torch's own keeps whatever was in the memory that it got for the momentum."""
    weights = []
    for left_out in (torch.ones(()), None):
        model = torch.nn.Linear(64, 64)
        torch.nn.init.constant_(model.weight, 0.5)
        torch.nn.init.constant_(model.bias, 0.5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum, fused=True)
        for number in (left_out, None, None) if left_out is not None else (None, None):
            model(torch.ones(2, 64)).square().sum().mul(1e-4).backward()
            step_unless(optimizer, number)
            optimizer.zero_grad()
        weights.append(model.weight.detach().clone())
    assert torch.equal(*weights)

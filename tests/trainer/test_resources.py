"""Threads and memory follow the container's limits, and a lack of memory ends with advice."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from tests.trainer.ranks import RankFailed, run_ranks
from tests.trainer.toy import Toy, config, toy, train
from trainloop import resources
from trainloop.data import Batch
from trainloop.distributed.world import World, joined
from trainloop.errors import OutOfMemory
from trainloop.optimization.optimizer import OptimizerSettings, chosen
from trainloop.recovery.room import container_memory
from trainloop.resources import Doing, remedies
from trainloop.trainer import Trainer


def test_threads_fit_the_containers_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert resources.cpu_limit(tmp_path) == 1.5
    assert resources.cores(tmp_path) <= 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert resources.cpu_limit(tmp_path) is None
    assert resources.cpu_limit(tmp_path / "none") is None


def test_memory_is_read_from_the_cgroup(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1073741824\n")
    (tmp_path / "memory.current").write_text("700\n")
    assert container_memory(tmp_path) == (2**30, 700)
    (tmp_path / "memory.max").write_text("max\n")
    assert container_memory(tmp_path) is None
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("700\n")
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert container_memory(tmp_path) is None, "the first version's number for no limit"


def test_a_container_that_is_nearly_full_is_noticed_once_and_the_page_cache_is_not_counted(tmp_path: Path) -> None:
    def use(bytes_used: int, cached: int) -> None:
        (tmp_path / "memory.current").write_text(f"{bytes_used}\n")
        (tmp_path / "memory.stat").write_text(f"anon 1\nactive_file {cached // 2}\ninactive_file {cached // 2}\n")

    pressure = resources.MemoryPressure(torch.device("cpu"), tmp_path)
    assert not pressure.rises(), "no cgroup"
    (tmp_path / "memory.max").write_text(f"{2**30}\n")
    use(2**30, cached=2**29)
    assert not pressure.rises(), "what the kernel can take back isn't in use"
    use(2**30 - 2**20, cached=0)
    assert pressure.rises()
    assert pressure.reason == "1.00 of the container's 1.00 GiB are in use"
    assert not pressure.rises(), "reported once"
    use(2**29, cached=0)
    assert not pressure.rises()
    use(2**30, cached=0)
    assert pressure.rises(), "again after it was well"


@pytest.mark.torch
def test_a_rank_that_is_short_of_memory_has_all_ranks_empty_their_caches_after_the_step(tmp_path: Path) -> None:
    found = run_ranks(2, _short_of_memory_on_rank_1, config(tmp_path), tmp_path)
    assert [relieved for relieved, _ in found] == [[3], [3]], "after the same step on both, and no other"
    for rank, (_, reported) in enumerate(found):
        here = ", here: for the test" if rank == 1 else ""
        assert reported == f"1 of 2 rank(s) are short of memory{here}; all have emptied their caches"


def _short_of_memory_on_rank_1(settings: Any, folder: Path) -> tuple[list[int], str]:
    rank = int(os.environ["RANK"])
    file, reported = folder / f"progress-{rank}", list[str | None]()
    os.environ["TRAINMASTER_PROGRESS_FILE"] = str(file)
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.pressure = pressure = ShortOnce(trainer, rank == 1)
        trainer.after_step.append(lambda _: reported.append(json.loads(file.read_text()).get("message")))
        trainer.run()
    [message] = {text for text in reported if text is not None}
    return pressure.relieved, message


class ShortOnce(resources.MemoryPressure):
    """Runs out of memory in the third step, on one rank."""

    def __init__(self, trainer: Trainer, short: bool) -> None:
        super().__init__(torch.device("cpu"))
        self.trainer, self.short = trainer, short
        self.relieved: list[int] = []

    def rises(self) -> bool:
        rises = self.short and self.trainer.state.step == 2
        self.reason = "for the test" if rises else ""
        return rises

    def relieve(self) -> None:
        self.relieved.append(self.trainer.state.step)


class Full(Toy):
    """Runs out of memory at the place that its option `full` names."""

    def run_out(self, where: str) -> None:
        if self.options["full"] == where:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nand more lines")

    def model(self) -> nn.Module:
        self.run_out("model")
        return super().model()

    def loss(self, model: Callable[..., Any], batch: Batch) -> torch.Tensor:
        if torch.is_grad_enabled():
            self.run_out("loss")
        return super().loss(model, batch)

    def measure(self, model: Callable[..., Any], batch: Batch) -> dict[str, torch.Tensor]:
        self.run_out("evaluation")
        return super().measure(model, batch)

    def optimizer(self, model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
        optimizer = chosen(model, settings)
        optimizer.register_step_pre_hook(lambda *_: self.run_out("step"))
        optimizer.register_load_state_dict_pre_hook(lambda *_: self.run_out("resume"))
        return optimizer

    def state_dict(self) -> dict[str, Any]:
        self.run_out("save")
        return {}


def its_state_is_saved(trainer: Trainer) -> None:
    trainer.stateful["full"] = trainer.task  # type: ignore[assignment]


BATCH = "batch.per_rank below 8 with batch.size as it is (more passes, the same step)"


@pytest.mark.torch
@pytest.mark.parametrize(
    ("where", "doing", "advice"),
    [
        ("model", "building the model", "a smaller model; more ranks with parallel.strategy: fsdp"),
        ("resume", "continuing from a checkpoint", "a smaller model; more ranks with parallel.strategy: fsdp"),
        (
            "loss",
            "in the forward and backward pass",
            f"{BATCH}; precision.compute: bf16; ",
        ),
        ("step", "making the optimizer's step", f"{BATCH}; blocks.activation_checkpointing: full; more ranks"),
        ("evaluation", "evaluating", "evaluation.batch below 100; precision.compute: bf16"),
        ("save", "saving a checkpoint", "more ranks with parallel.strategy: fsdp"),
    ],
)
def test_out_of_memory_anywhere_ends_with_advice_that_fits_the_place(
    tmp_path: Path, where: str, doing: str, advice: str
) -> None:
    if where == "resume":
        run_ranks(1, train, config(tmp_path, **toy()), 2)
    options = {"task": {"name": "tests.trainer.test_resources:Full", "options": {"full": where}}}
    hooks = ["tests.trainer.test_resources:its_state_is_saved"]
    sentence = (
        f"cpu is out of memory {doing} (0.0 GiB used at the peak, 0.0 GiB reserved). Try, in this order: {advice}"
    )
    with pytest.raises(RankFailed, match=re.escape(f"trainloop.errors.OutOfMemory: {sentence}")) as failed:
        run_ranks(1, train, config(tmp_path, **options, hooks=hooks, evaluation={"batch": 100}))
    assert "Tried to allocate 2.00 GiB" in str(failed.value)
    assert OutOfMemory.exit_code == 71


MORE_RANKS = "more ranks with parallel.strategy: fsdp, each of which has a part of the model"
SMALLER_PARTS = "more ranks, each of which has a smaller part"
ZERO1 = "parallel.strategy: zero1 (each rank keeps a part of the optimizer's state)"
FSDP, SHARDED = "parallel.strategy: fsdp", "checkpoint.format: sharded"


@pytest.mark.parametrize(
    ("ranks", "strategy", "form", "advice"),
    [
        (1, "ddp", "full", [MORE_RANKS]),
        (1, "zero1", "full", [MORE_RANKS]),
        (1, "fsdp", "full", [MORE_RANKS]),
        (2, "ddp", "full", [FSDP, ZERO1]),
        (2, "zero1", "full", [FSDP]),
        (2, "fsdp", "full", [SHARDED, SMALLER_PARTS]),
        (2, "fsdp", "sharded", [SMALLER_PARTS]),
    ],
)
def test_advice_has_neither_what_one_rank_cannot_do_nor_what_the_configuration_has(
    ranks: int, strategy: str, form: str, advice: list[str]
) -> None:
    settings = config(parallel={"strategy": strategy}, checkpoint={"format": form})
    world = World(0, ranks, 0, ranks, torch.device("cpu"), "gloo")
    assert remedies(settings, world, "saving a checkpoint") == advice
    doings: tuple[Doing, ...] = ("building the model", "making the optimizer's step", "evaluating")
    for doing in doings:
        found = remedies(settings, world, doing)
        if ranks == 1:
            assert found[-1] == MORE_RANKS, "the last resort"
            assert {FSDP, ZERO1, SMALLER_PARTS}.isdisjoint(found)
        else:
            assert MORE_RANKS not in found
            assert (FSDP in found, SMALLER_PARTS in found) == (strategy != "fsdp", strategy == "fsdp")


def test_advice_has_the_copies_of_shards_where_there_are_any() -> None:
    settings = config(parallel={"strategy": "zero1"})
    world = SimpleNamespace(size=2, data_size=2, continuing=None)
    found = remedies(settings, cast("World", world), "making the optimizer's step")
    assert found[0].startswith("parallel.copies: false")


def test_a_devices_memory_is_read_of_torchs_own_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = {
        "num_alloc_retries": 2,
        "allocated_bytes": {"all": {"peak": 5}},
        "reserved_bytes": {"all": {"current": 7}},
    }
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: counters)
    found = resources.memory(torch.device("cuda"))
    assert (found["peakMemory"], found["reservedMemory"], found["allocationRetries"]) == (5, 7, 2)


def test_ranks_that_share_a_host_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(resources, "cores", lambda: 8.0)
    try:
        assert [resources.fit_threads(ranks, 1) for ranks in (1, 2, 16)] == [7, 3, 1]
        monkeypatch.setenv("OMP_NUM_THREADS", "5")
        assert resources.fit_threads(1, 0) == 1
    finally:
        torch.set_num_threads(before)

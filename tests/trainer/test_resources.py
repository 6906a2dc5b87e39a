"""Threads and memory follow the container's limits, and a lack of memory ends with advice."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.ranks import run_ranks
from tests.trainer.toy import config
from trainloop import resources
from trainloop.distributed.world import joined
from trainloop.errors import OutOfMemory
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
    assert resources.memory_limit(tmp_path) == 2**30
    (tmp_path / "memory.max").write_text("max\n")
    assert resources.memory_limit(tmp_path) is None


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
def test_a_rank_that_is_short_of_memory_has_all_ranks_empty_their_caches_before_the_step(tmp_path: Path) -> None:
    found = run_ranks(2, _short_of_memory_on_rank_1, config(tmp_path), tmp_path)
    assert [relieved for relieved, _ in found] == [[2], [2]], "at the same step on both, and no other"
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
    """Is short of memory at the step with index 2, on one rank."""

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


def test_out_of_memory_ends_with_advice() -> None:
    with (
        pytest.raises(OutOfMemory, match=r"out of memory.*batch\.per_rank below 16.*precision\.compute: bf16"),
        resources.explaining_out_of_memory(torch.device("cpu"), 16),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


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

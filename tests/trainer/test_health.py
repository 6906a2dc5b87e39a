"""Ranks that differ, gradients that aren't there, steps that jump: found by all ranks together (T2, T9, T15, T17)."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.trainer.ranks import RankFailed, environment, free_port, run_ranks
from tests.trainer.toy import config, largest_difference, train
from trainloop import resources
from trainloop.checkpoints import storage
from trainloop.distributed.preflight import PreflightSettings, check, differences, fingerprint
from trainloop.distributed.world import joined
from trainloop.errors import OutOfMemory, PreflightMismatch, TrainingError
from trainloop.optimization.anomaly import AnomalyDetector, AnomalySettings, z_score
from trainloop.optimization.gradients import checksums, compare_parameters, ghosts, recording
from trainloop.trainer import Trainer

ROOT = Path(__file__).parents[2]


def toy(**options: Any) -> dict[str, Any]:
    return {"task": {"name": "tests.trainer.toy:Toy", "options": options}}


def python_m_trainloop(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "trainloop", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.torch
def test_ranks_with_another_configuration_all_end_with_the_same_lines_and_code_67(tmp_path: Path) -> None:
    port = free_port()
    common = ["--set", "task.name=tests.trainer.toy:Toy", "--set", "steps=3", "--set", "batch.size=8"]
    ranks = [
        python_m_trainloop(*common, "--set", f"optimizer.lr={rate}", **environment(rank, 2, port))
        for rank, rate in enumerate((0.1, 0.2))
    ]
    outputs = [rank.communicate(timeout=150)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [67, 67]
    lines = [[line for line in output.splitlines() if line.startswith("trainloop:")] for output in outputs]
    assert lines[0] == lines[1]
    assert "ranks differ, so they can't train together" in lines[0][0]
    assert lines[0][1].startswith("trainloop: config: ")
    assert "on rank 0" in lines[0][1] and "on rank 1" in lines[0][1]


def test_the_odd_rank_is_named_and_what_is_equal_is_not() -> None:
    usual = {"torch": "2.13", "driver": "550"}
    assert differences([usual, usual, {**usual, "driver": "535"}]) == {
        "driver": "driver: 550 on rank 0, 1; 535 on rank 2"
    }
    assert differences([usual] * 3) == {}


def test_under_an_agent_a_rank_compares_only_what_the_agent_can_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agents compare the installed packages, before the ranks have started: one difference has one message."""
    monkeypatch.delenv("TRAINMASTER_ATTEMPT", raising=False)
    alone = fingerprint("steps: 3", [])
    monkeypatch.setenv("TRAINMASTER_ATTEMPT", "1")
    below_an_agent = fingerprint("steps: 3", [])
    assert alone.keys() - below_an_agent.keys() == {"python", "torch", "cuda", "nccl"}
    assert below_an_agent.items() <= alone.items()
    assert {"code", "config"} <= below_an_agent.keys()


@pytest.mark.torch
def test_a_difference_that_is_not_fatal_is_a_warning() -> None:
    assert run_ranks(2, _with_driver_of_its_own, ["torch"]) == [2.0, 2.0]
    with pytest.raises(RankFailed, match="driver: 1 on rank 0; 2 on rank 1"):
        run_ranks(2, _with_driver_of_its_own, ["driver"])


def _with_driver_of_its_own(fatal: list[str]) -> float:
    mine = {"torch": "2.13", "driver": str(1 + int(os.environ["RANK"]))}
    compare = partial(check, PreflightSettings.model_validate({"fatal": fatal}), mine)
    try:
        with joined(config().distributed, compare) as world:
            return world.sum([1.0])[0]
    except PreflightMismatch as error:
        raise AssertionError(str(error)) from error


@pytest.mark.torch
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_unused_layer_is_named_after_the_first_step(ranks: int) -> None:
    with pytest.raises(RankFailed, match=r"no rank has a gradient for 0\.unused\.weight, 0\.unused\.bias"):
        run_ranks(ranks, train, config(**toy(unused=True)))


@pytest.mark.torch
def test_a_layer_that_only_some_ranks_use_is_named_with_the_others() -> None:
    [message] = set(run_ranks(3, _with_a_layer_for_rank_1))
    assert "after the first step: rank 0, 2 has none for 1.weight, 1.bias, the others do" in message


def _with_a_layer_for_rank_1() -> str:
    with joined(config().distributed) as world:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        with recording(model) as reached:
            (model if world.rank == 1 else model[0])(torch.ones(1, 3)).sum().backward()
        return str(ghosts(model, reached, world))


@pytest.mark.torch
def test_an_unused_layer_may_be_only_a_warning() -> None:
    changes = {"gradients": {"ghosts": "warn"}, "parallel": {"find_unused_parameters": True}}
    assert run_ranks(2, train, config(**toy(unused=True), **changes))[0]["state"].step == 6


@pytest.mark.torch
def test_a_rank_with_one_flipped_bit_is_named_with_the_parameter() -> None:
    for message in run_ranks(3, _with_a_flipped_bit):
        assert message.startswith("parameters differ between ranks: rank 2 differs, first in 1.weight")


def _with_a_flipped_bit() -> str:
    with joined(config().distributed) as world:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        compare_parameters(model, world)
        if world.rank == 2:
            model[1].weight.data.view(torch.int32)[0, 0] ^= 1
        try:
            compare_parameters(model, world)
        except Exception as error:
            return str(error)
        return "nothing was found"


@given(st.integers(1, 50), st.integers(0, 10**6), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_a_checksum_sees_exchanged_values_and_any_flipped_bit(size: int, where: int, dtype: torch.dtype) -> None:
    tensor = torch.arange(1.0, size + 2).to(dtype)
    exchanged = tensor.flip(0)
    flipped = tensor.clone()
    bits = flipped.view(torch.int16)
    bits[where % bits.numel()] ^= 1 << (where % 15)
    assert checksums([tensor]) != checksums([flipped])
    assert checksums([tensor]) != checksums([exchanged])
    assert checksums([tensor]) == checksums([tensor.clone()])


@pytest.mark.torch
def test_a_step_poisoned_on_one_rank_is_left_out_by_all(tmp_path: Path) -> None:
    """The 70th step: all ranks skip it and stay equal, and the run ends where it would have without it, nearly."""
    changes: dict[str, Any] = {"steps": 100, "schedule": {"kind": "constant", "warmup": 0}}
    poisoned = run_ranks(2, train, config(tmp_path, **changes, **toy(poison=[70], poisoned_rank=1)))
    assert largest_difference(poisoned[0]["weights"], poisoned[1]["weights"]) == 0
    assert [rank["state"].updates for rank in poisoned] == [99, 99]
    assert poisoned[0]["results"]["accuracy"] > 0.9
    assert "step 70 left out: loss " in (tmp_path / "report" / "metrics.jsonl").read_text()


@pytest.mark.torch
def test_a_run_of_odd_steps_goes_back_to_the_checkpoint_and_passes_over_the_data(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "steps": 100,
        "schedule": {"kind": "constant", "warmup": 0},
        "checkpoint": {"path": str(tmp_path / "checkpoints"), "every_steps": 65, "resume": False},
    }
    # Of an older run, that this one doesn't go on from (resume is false): neither gone back to nor deleted.
    old = storage.write(tmp_path / "checkpoints", 900, {}, {"results": {}})
    runs = run_ranks(2, train, config(tmp_path, **changes, **toy(poison=[70, 71, 72], poisoned_rank=1)))
    log = (tmp_path / "report" / "metrics.jsonl").read_text()
    assert "went back to step 65" in log
    assert old.path.is_dir()
    assert largest_difference(runs[0]["weights"], runs[1]["weights"]) == 0
    state = runs[0]["state"]
    assert state.step == state.updates == 100
    # Steps 66 to 72 were computed and taken back, their data isn't seen again: 100 + 7 steps of 8 samples of 40.
    assert state.position == (100 + 7) * 8


@pytest.mark.torch
def test_a_run_that_was_made_longer_stays_so_when_it_goes_back(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"schedule": {"kind": "constant"}, "batch": {"per_rank": 8}}
    run_ranks(1, train, config(tmp_path, **changes, steps=3))
    poisoned = toy(poison=[3, 4, 5], factor=math.nan)  # after the two passes of the warm-up
    changes["batch"] = {"size": 10}
    [run] = run_ranks(1, train, config(tmp_path, **changes, **poisoned, steps=9))
    assert "went back to step 3" in (tmp_path / "report" / "metrics.jsonl").read_text()
    assert (run["state"].step, run["state"].total, run["state"].batch) == (9, 9, 10)
    assert run["state"].position == 3 * 8 + (3 + 6) * 10 - 4, "an epoch's last step has 6 samples"


@pytest.mark.torch
def test_without_a_checkpoint_numbers_that_are_not_finite_end_the_run_as_diverged(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"steps": 60, "anomaly": {"rollback_after": 2}}
    sentence = "2 steps in a row stand out at step 41 and there is no checkpoint to go back to: look at the data"
    with pytest.raises(RankFailed, match=f"Diverged: {sentence}"):
        run_ranks(1, train, config(tmp_path, **changes, **toy(poison=[40, 41], factor=math.nan)))
    lines = [json.loads(line) for line in (tmp_path / "report" / "metrics.jsonl").read_text().splitlines()]
    [at_40] = [line for line in lines if line["kind"] == "step" and line["step"] == 40]
    assert at_40["loss"] is None, "NaN is no JSON"
    assert "step 40 left out: loss nan, gradient norm nan stand out" in [line.get("text") for line in lines]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"anomaly": {"rollback_after": 2}, **toy(poison=[2, 3], factor=math.nan)},
            "2 steps in a row stand out at step 3",
        ),
        (toy(unused=True), "parameters without gradient after the first step: no rank has a gradient for 0.unused"),
    ],
)
def test_what_ends_a_run_is_in_every_ranks_progress_report(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    for told in run_ranks(2, _progress_of_a_failing_run, config(tmp_path, **changes), tmp_path):
        assert told["message"].startswith(message)


@pytest.mark.torch
def test_a_step_that_is_left_out_is_in_every_ranks_progress_report(tmp_path: Path) -> None:
    changes = {"steps": 70, **toy(poison=[70], poisoned_rank=1)}
    for told in run_ranks(2, _progress_after_each_step, config(tmp_path, **changes), tmp_path):
        assert told[-1]["message"].startswith("step 70 left out: loss ")
        assert all("message" not in line for line in told[:-1])


def _progress_after_each_step(settings: Any, folder: Path) -> list[dict[str, Any]]:
    file, told = folder / f"progress-{os.environ['RANK']}", list[dict[str, Any]]()
    os.environ["TRAINMASTER_PROGRESS_FILE"] = str(file)
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.after_step.append(lambda _: told.append(json.loads(file.read_text())))
        trainer.run()
    return told


def _progress_of_a_failing_run(settings: Any, folder: Path) -> dict[str, Any]:
    file = folder / f"progress-{os.environ['RANK']}"
    os.environ["TRAINMASTER_PROGRESS_FILE"] = str(file)
    with pytest.raises(TrainingError):
        train(settings)
    told: dict[str, Any] = json.loads(file.read_text())
    return told


@pytest.mark.torch
def test_without_a_checkpoint_a_clipped_step_is_made_in_the_end(tmp_path: Path) -> None:
    """A learning rate that grows too far makes one odd step after another; skipping them all would be a standstill."""
    changes: dict[str, Any] = {"steps": 90, "anomaly": {"rollback_after": 3}}
    [run] = run_ranks(1, train, config(tmp_path, **changes, **toy(poison=list(range(70, 76)))))
    assert run["state"].step == 90
    assert run["state"].updates == 88


def test_falling_is_no_anomaly_and_not_finite_always_is() -> None:
    detector = AnomalyDetector(AnomalySettings.model_validate({"least": 4, "rollback_after": 2, "loss_ratio": 1.0}))
    assert [detector.judge(1.0 + 0.1 * (step % 3), 1.0) for step in range(8)] == ["step"] * 8
    assert detector.judge(0.1, 1.0) == "step"
    assert detector.judge(math.nan, 1.0) == "skip"
    assert detector.judge(1.0, math.inf) == "rollback"
    assert detector.judge(1.0, 1.0) == "step"


def test_a_healthy_loss_with_normal_noise_is_hardly_ever_skipped() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(20_000, generator=generator).tolist()
    detector = AnomalyDetector(AnomalySettings.model_validate({}))
    assert sum(detector.judge(2 + 0.1 * value, 1.0) != "step" for value in noise) <= 1
    history = deque(noise[:1000])
    assert z_score(4.0, history) == pytest.approx(4.0, rel=0.1)


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
    assert not pressure.rises(), "told once"
    use(2**29, cached=0)
    assert not pressure.rises()
    use(2**30, cached=0)
    assert pressure.rises(), "again after it was well"


@pytest.mark.torch
def test_a_rank_that_is_short_of_memory_has_all_ranks_empty_their_caches_before_the_step(tmp_path: Path) -> None:
    found = run_ranks(2, _short_of_memory_on_rank_1, config(tmp_path), tmp_path)
    assert [relieved for relieved, _ in found] == [[2], [2]], "at the same step on both, and no other"
    for rank, (_, told) in enumerate(found):
        here = ", here: for the test" if rank == 1 else ""
        assert told == f"1 of 2 rank(s) are short of memory{here}; all have emptied their caches"


def _short_of_memory_on_rank_1(settings: Any, folder: Path) -> tuple[list[int], str]:
    rank = int(os.environ["RANK"])
    file, told = folder / f"progress-{rank}", list[str | None]()
    os.environ["TRAINMASTER_PROGRESS_FILE"] = str(file)
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.pressure = pressure = ShortOnce(trainer, rank == 1)
        trainer.after_step.append(lambda _: told.append(json.loads(file.read_text()).get("message")))
        trainer.run()
    [message] = {text for text in told if text is not None}
    return pressure.relieved, message


class ShortOnce(resources.MemoryPressure):
    """Short of memory at the step with index 2, on one rank."""

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


@pytest.mark.torch
def test_two_deterministic_runs_are_equal_to_the_bit() -> None:
    changes = {**toy(dropout=0.5), "seed": {"value": 5, "deterministic": True}}
    first, second = (run_ranks(2, _seeded, config(**changes)) for _ in range(2))
    assert first == second
    assert first[0] != first[1]  # Each rank has random numbers of its own.


def _seeded(settings: Any) -> list[float]:
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.prepare()
        trainer.train_step()
        return [*torch.rand(3).tolist(), *trainer.replica.model_state()["0.weight"].flatten().tolist()]


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

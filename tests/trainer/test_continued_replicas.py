"""Ranks of an FSDP2 replica belong together: if one is lost, the others of its replica wait, and complete replicas
train on.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.trainer.continued_runs import Fault, Run
from tests.trainer.ranks import run_ranks
from tests.trainer.shapes import Planned
from tests.trainer.test_continued import STEPS, after_steps, check, check_training, settings
from tests.trainer.toy import same_bits, train
from trainloop.checkpoints import storage

pytestmark = pytest.mark.torch

SHARDS: dict[str, Any] = {"parallel": {"strategy": "fsdp", "data": [2, 2]}}
LAYERS: dict[str, Any] = {
    "task": {"name": "tests.trainer.shapes:Planned", "options": {"0": "columns", "2": "rows"}},
    "parallel": {"strategy": "fsdp", "data": [2, 1], "tensor": 2},
}
THREE: dict[str, Any] = {"parallel": {"strategy": "fsdp", "data": [3, 2]}}


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    """Returns the results of one rank that trains the whole run."""
    alone: dict[str, Any]
    [alone] = run_ranks(1, train, settings())
    return alone


@pytest.fixture(scope="module")
def with_layers() -> dict[str, Any]:
    alone: dict[str, Any]
    [alone] = run_ranks(1, train, settings(task=LAYERS["task"]))
    return alone


@pytest.mark.parametrize(
    ("where", "rank"),
    [
        *(("forward", 0), ("forward", 3), ("backward", 1), ("optimizer", 2), ("stepped", 0), ("stepped", 3)),
        *(("reporting", 1), ("evaluate", 0), ("measuring", 3), ("evaluated", 1), ("save", 0), ("writing", 0)),
        *(("written", 0), ("saved", 2)),
    ],
)
def test_the_other_replica_trains_on_when_a_rank_is_lost_anywhere(
    tmp_path: Path, undisturbed: dict[str, Any], where: str, rank: int
) -> None:
    run = Run(tmp_path / "run", settings(tmp_path, **SHARDS), 4, {(rank, 0): (where, 8)})
    check(run, run.go(), undisturbed)
    assert [absent for _, absent in run.orders] == [[rank], []]


@pytest.mark.parametrize(
    ("where", "rank"),
    [("forward", 1), ("backward", 2), ("optimizer", 0), ("stepped", 3), ("measuring", 1), ("save", 2)],
)
def test_ranks_that_share_each_layer_go_together(
    tmp_path: Path, with_layers: dict[str, Any], where: str, rank: int
) -> None:
    run = Run(tmp_path / "run", settings(tmp_path, **LAYERS), 4, {(rank, 0): (where, 8)})
    check(run, run.go(), with_layers)


def test_a_pass_that_is_cut_off_is_dropped(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    """If batches reach different layers, all ranks agree during a step's passes on which were reached."""
    parallel = {**SHARDS["parallel"], "find_unused_parameters": True}
    run = Run(tmp_path / "run", settings(tmp_path, parallel=parallel), 4, {(2, 0): ("forward", 6)})
    check(run, run.go(), undisturbed)


def test_two_of_three_replicas_are_lost_and_both_ranks_of_one(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    run = Run(tmp_path / "run", settings(tmp_path, **THREE), 6)
    check(run, run.go(after_steps(6, lambda: run.kill(0, 4, 5))), undisturbed)


def test_all_ranks_of_a_replica_are_lost_at_once(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    """They are started again one after the other; the first waits for the second."""
    run = Run(tmp_path / "run", settings(tmp_path, **SHARDS), 4)
    check(run, run.go(after_steps(6, lambda: run.kill(2, 3))), undisturbed)


@pytest.mark.parametrize("where", ["forming", "formed"])
def test_another_replica_is_lost_while_a_group_is_formed(
    tmp_path: Path, undisturbed: dict[str, Any], where: str
) -> None:
    faults: dict[tuple[int, int], Fault] = {(0, 0): ("backward", 6), (3, 0): (where, 6)}
    run = Run(tmp_path / "run", settings(tmp_path, **THREE), 6, faults)
    check(run, run.go(), undisturbed)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_is_lost_while_it_is_given_the_state(tmp_path: Path, undisturbed: dict[str, Any], rank: int) -> None:
    """The lost rank is one that has just come back, or one that waited for it."""
    joins: tuple[int, int] = (rank, 1 - rank)
    faults: dict[tuple[int, int], Fault] = {(0, 0): ("stepped", 5), joins: ("joining", 0)}
    run = Run(tmp_path / "run", settings(tmp_path, **SHARDS), 4, faults)
    check(run, run.go(), undisturbed)


def test_a_rank_that_waits_says_so_and_is_lost_too(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    said = list[dict[str, Any]]()

    def meanwhile(run: Run) -> None:
        found = run.progress(1)
        if len(run.orders) == 1 and found.get("continuing") == "idle" and not said:
            said.append(found)
            run.kill(1)

    run = Run(tmp_path / "run", settings(tmp_path, **SHARDS), 4, {(0, 0): ("backward", 6)})
    check(run, run.go(meanwhile), undisturbed)
    assert said[0]["message"] == "waits for the other ranks of its replica"
    assert (said[0]["continuing"], said[0]["group"]) == ("idle", 2)


def test_without_any_whole_replica_the_next_rung_follows(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    """The two ranks that are left are at different steps, so the run resumes from a checkpoint or a snapshot."""
    killed = list[int]()

    def meanwhile(run: Run) -> None:
        if run.orders and not killed and run.progress(2).get("group") == 2 and run.progress(2)["step"] >= 9:
            killed.append(2)
            run.kill(2)

    run = Run(tmp_path / "run", settings(tmp_path, **SHARDS), 4, {(1, 0): ("backward", 6)}, rejoin=False)
    results = run.go(meanwhile)
    sentence = "each replica has lost a rank (1, 2), so none is whole: none can continue"
    assert [results[rank].count(sentence) for rank in (0, 3)] == [1, 1], run.said()
    for rank in (0, 3):
        assert run.progress(rank)["cannotContinue"] == sentence and "continuing" not in run.progress(rank)
    again = Run(tmp_path / "run", settings(tmp_path, **SHARDS), 4, attempt=run.attempt + 1, rejoin=False)
    results = again.go()
    assert all(result["began"] >= 8 for result in results)
    check_training(again, results, undisturbed)


@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_that_waits_ends_with_the_run(tmp_path: Path, undisturbed: dict[str, Any], rank: int) -> None:
    """The waiting rank is the one that serves the store, or another one."""
    run = Run(tmp_path / "run", settings(tmp_path, **SHARDS), 4, {(rank, 0): ("backward", 6)}, rejoin=False)
    results = run.go()
    idle = rank ^ 1
    assert results[idle] == "no answer" and run.processes[idle].exitcode == 0, run.said()
    run.absent.add(idle)
    check(run, results, undisturbed)


@pytest.mark.parametrize("seed", range(3))
def test_ranks_of_replicas_are_lost_at_any_time(tmp_path: Path, undisturbed: dict[str, Any], seed: int) -> None:
    """Ranks are lost only as long as a replica stays whole."""
    draw = random.Random(seed)
    run = Run(tmp_path / "run", settings(tmp_path, **(SHARDS if seed else THREE)), 4 if seed else 6)
    killed, faults, due = set[int](), 3, time.monotonic() + draw.uniform(1.0, 3.0)

    def meanwhile(run: Run) -> None:
        nonlocal faults, due, killed
        killed -= run.absent
        trains = [rank for rank in range(run.size) if run.progress(rank).get("group") == run.attempt]
        gone = run.absent | killed
        # A rank that has just come back may not have received the state yet.
        whole = [unit for unit in range(run.size // 2) if not {2 * unit, 2 * unit + 1} & gone]
        whole = [unit for unit in whole if {2 * unit, 2 * unit + 1} <= {*trains}]
        may = [rank for rank in range(run.size) if rank not in gone and whole and [rank // 2] != whole]
        able = all(run.progress(rank).get("group") for rank in range(run.size) if rank not in gone)
        if faults and time.monotonic() > due and may and able:
            lost = draw.choice(may)
            killed |= {lost}
            run.kill(lost)
            faults, due = faults - 1, time.monotonic() + draw.choice([0.02, 0.1, 0.5, 1.5])
        run.holds = faults > 0 or time.monotonic() < due + 0.5

    check(run, run.go(meanwhile), undisturbed)


@pytest.mark.parametrize(("where", "rank"), [("save", 1), ("writing", 0), ("saved", 0), ("backward", 0)])
def test_one_whole_replica_saves_sharded_checkpoints(
    tmp_path: Path, undisturbed: dict[str, Any], where: str, rank: int
) -> None:
    both = settings(tmp_path, **SHARDS)
    both = both.model_copy(update={"checkpoint": both.checkpoint.model_copy(update={"format": "sharded"})})
    run = Run(tmp_path / "run", both, 4, {(rank, 0): (where, 8)})
    check(run, run.go(), undisturbed)
    for checkpoint in storage.complete(tmp_path / "checkpoints"):
        files = sorted(file.name for file in (checkpoint.path / "shards").iterdir())
        assert files in (["rank-00000.pt", "rank-00001.pt"], ["rank-00002.pt", "rank-00003.pt"])


def test_what_a_hook_keeps_of_shards_goes_by_place_too(tmp_path: Path) -> None:
    hooks = settings(tmp_path, hooks=["tests.trainer.continued_runs:follows"], **SHARDS)
    run = Run(tmp_path / "run", hooks, 4, {(1, 0): ("backward", 7)})
    assert [result["kept"] for result in run.go()] == [STEPS] * 4, run.said()


class Dropping(Planned):
    """Draws random numbers, where ranks that share each layer must draw the same ones."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 3))


def test_a_rank_that_has_waited_draws_the_random_numbers_of_the_one_that_comes_again(tmp_path: Path) -> None:
    task = {**LAYERS["task"], "name": "tests.trainer.test_continued_replicas:Dropping"}
    run = Run(tmp_path / "run", settings(tmp_path, **{**LAYERS, "task": task}), 4, {(1, 0): ("backward", 6)})
    results = run.go()
    assert all(isinstance(result, dict) and result["state"].step == STEPS for result in results), run.said()
    assert all(same_bits(result["weights"], results[0]["weights"]) for result in results)

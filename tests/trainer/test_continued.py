"""Ranks that survive a fault train on in their own processes, and the run equals an undisturbed one."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.continued_runs import Fault, Run, from_outside, held, lagging
from tests.trainer.ranks import run_ranks
from tests.trainer.toy import config, largest_difference, same_bits, train
from trainloop.checkpoints import storage
from trainloop.checkpoints.storage import verify
from trainloop.config import Config
from trainloop.continued.strategies import obstacle
from trainloop.data import Sampler
from trainloop.progress import MAXIMUM_MESSAGE
from trainloop.report import read_metrics

pytestmark = pytest.mark.torch

STEPS = 20
TOY = "tests.trainer.toy:Toy"


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    """Returns the results of one rank that trains the whole run alone."""
    alone: dict[str, Any]
    [alone] = run_ranks(1, train, settings())
    return alone


def settings(path: Any = None, **changes: Any) -> Config:
    often = {"evaluation": {"every_steps": 4}, "steps": STEPS}
    found = config(path, **{**often, **changes})
    saved = {"every_steps": 4, "keep": 20, "path": str(path / "checkpoints") if path else None}
    return found.model_copy(update={"checkpoint": found.checkpoint.model_copy(update=saved)})


def check(run: Run, results: list[Any], undisturbed: dict[str, Any]) -> None:
    """Check that the run trained as an undisturbed one, and that nothing it writes is missing or duplicated."""
    check_training(run, results, undisturbed)
    check_files(run.settings)


def check_training(run: Run, results: list[Any], undisturbed: dict[str, Any]) -> None:
    """Check that every step used its whole batch, and every sample was used once."""
    ended = set(range(run.size)) - run.absent
    assert ended and all(isinstance(results[rank], dict) for rank in ended), f"{results}\n{run.said()}"
    whole = [results[rank] for rank in sorted(ended)]
    for result in whole:
        assert result["state"].step == STEPS and not result["stopped"]
        assert same_bits(result["weights"], whole[0]["weights"])
    assert largest_difference(whole[0]["weights"], undisturbed["weights"]) < 1e-12
    assert whole[0]["state"].results == pytest.approx(undisturbed["results"], abs=1e-12)
    order = Sampler(40, 8, 1, run.settings.seed.value, False).batches
    batches = [batch for epoch in range(STEPS // 5) for batch in order(epoch, 0)]
    assert run.samples() == {step + 1: sorted(batch) for step, batch in enumerate(batches)}


def check_files(settings: Config) -> None:
    lines = read_metrics(Path(settings.metrics.path or "") / "metrics.jsonl")
    assert not any(line.get("event") == "warning" for line in lines)
    evaluated = Counter(line["step"] for line in lines if line["kind"] == "evaluation")
    assert evaluated.keys() == {4, 8, 12, 16, 20}
    made = Counter(line["step"] for line in lines if line["kind"] == "step")
    continued = {line["step"] for line in lines if line.get("event") == "continued"}
    # Nobody has all numbers of a step after which a rank was lost.
    assert set(range(1, STEPS + 1)) - made.keys() <= continued and set(made.values()) == {1}
    assert [line["attempt"] for line in lines if line.get("event") == "continued"] == sorted(
        {line["attempt"] for line in lines if line.get("event") == "continued"}
    )
    there = storage.complete(Path(settings.checkpoint.path or ""))
    assert sorted(checkpoint.step for checkpoint in there) == [4, 8, 12, 16, 20]
    assert all(verify(checkpoint.path) is None for checkpoint in there)


@pytest.mark.parametrize(
    ("where", "size", "rank"),
    [
        *(("forward", 2, 1), ("forward", 3, 0), ("backward", 3, 2), ("backward", 2, 0)),
        *(("optimizer", 3, 0), ("stepped", 3, 1), ("stepped", 2, 0)),
    ],
)
def test_a_rank_is_lost_anywhere_in_a_step(
    tmp_path: Path, undisturbed: dict[str, Any], where: str, size: int, rank: int
) -> None:
    run = Run(tmp_path / "run", settings(tmp_path), size, {(rank, 0): (where, 6)})
    check(run, run.go(), undisturbed)
    assert [absent for _, absent in run.orders] == [[rank], []]


def test_a_rank_joins_before_the_others_have_made_a_step(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    """DDP reorders its buckets after the first step's gradients; the joining rank has done so, by rehearsals."""

    def lose(run: Run) -> None:
        if not run.orders and all(run.progress(rank).get("continuing") == "able" for rank in range(3)):
            run.kill(1)
        if len(run.orders) == 2:
            (run.folder / "data").touch()

    run = Run(tmp_path / "run", settings(tmp_path), 3, function=held)
    check(run, run.go(lose), undisturbed)
    assert run.orders == [(2, [1]), (3, [])]


@pytest.mark.parametrize(("where", "step"), [("forward", 6), ("backward", 9), ("evaluate", 8)])
def test_what_the_host_had_queued_beyond_the_devices_last_step_is_taken_back(
    tmp_path: Path, undisturbed: dict[str, Any], where: str, step: int
) -> None:
    """`test_continuing_device` covers the device's part."""
    run = Run(tmp_path / "run", settings(tmp_path), 3, {(2, 0): (where, step)}, function=lagging)
    results = run.go()
    check_training(run, results, undisturbed)
    assert "interrupted after step" in run.said()


@pytest.mark.parametrize(
    ("where", "rank"),
    [
        *(("evaluate", 0), ("measuring", 1), ("measured", 0), ("evaluated", 0), ("save", 1)),
        *(("writing", 0), ("written", 0), ("saved", 0), ("saved", 2)),
    ],
)
@pytest.mark.parametrize("step", [8, STEPS])
def test_a_rank_is_lost_in_an_evaluation_or_a_save(
    tmp_path: Path, undisturbed: dict[str, Any], where: str, rank: int, step: int
) -> None:
    run = Run(tmp_path / "run", settings(tmp_path), 3, {(rank, 0): (where, step)}, rejoin=step < STEPS)
    check(run, run.go(), undisturbed)


@pytest.mark.parametrize("where", ["forming", "formed"])
def test_another_rank_is_lost_while_a_group_is_formed(tmp_path: Path, undisturbed: dict[str, Any], where: str) -> None:
    faults: dict[tuple[int, int], Fault] = {(0, 0): ("backward", 6), (2, 0): (where, 6)}
    run = Run(tmp_path / "run", settings(tmp_path), 4, faults)
    check(run, run.go(), undisturbed)


def test_a_rank_is_lost_while_it_joins_and_joins_when_it_has_come_again(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    faults: dict[tuple[int, int], Fault] = {(1, 0): ("stepped", 5), (1, 1): ("joining", 0)}
    run = Run(tmp_path / "run", settings(tmp_path), 3, faults)
    check(run, run.go(), undisturbed)
    assert [absent for _, absent in run.orders] == [[1], [], [1], []]


def test_a_rank_is_lost_while_another_one_joins(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    def fault(run: Run) -> None:
        if len(run.orders) == 2 and run.lives[0] == 0:
            run.kill(0)

    run = Run(tmp_path / "run", settings(tmp_path), 3, {(2, 0): ("backward", 5)})
    check(run, run.go(fault), undisturbed)


@pytest.mark.parametrize(("size", "ranks"), [(4, (0, 3)), (6, (0, 1, 4)), (3, (1, 2))])
def test_several_ranks_are_lost_at_once(
    tmp_path: Path, undisturbed: dict[str, Any], size: int, ranks: tuple[int, ...]
) -> None:
    run = Run(tmp_path / "run", settings(tmp_path), size)
    check(run, run.go(after_steps(6, lambda: run.kill(*ranks))), undisturbed)


@pytest.mark.parametrize("seed", range(4))
def test_ranks_are_lost_at_any_time(tmp_path: Path, undisturbed: dict[str, Any], seed: int) -> None:
    draw, size = random.Random(seed), (2, 3, 4, 4)[seed]
    run = Run(tmp_path / "run", settings(tmp_path), size)
    killed = set[int]()  # not known to the agent yet
    faults, due = 3, time.monotonic() + draw.uniform(0.5, 1.5)

    def meanwhile(run: Run) -> None:
        nonlocal faults, due, killed
        killed -= run.absent
        alive = set(range(size)) - run.absent - killed
        present = [rank for rank in alive if run.progress(rank).get("group")]
        if faults and time.monotonic() > due and len(present) > 1:
            killed = {draw.choice(present)}
            run.kill(*killed)
            faults, due = faults - 1, time.monotonic() + draw.choice([0.02, 0.1, 0.5, 1.5])
        run.holds = faults > 0 or time.monotonic() < due + 0.5

    check(run, run.go(meanwhile), undisturbed)


def test_the_ranks_that_are_left_end_the_run_where_nobody_comes_again(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    run = Run(tmp_path / "run", settings(tmp_path), 3, {(0, 0): ("stepped", 5), (2, 0): ("backward", 13)}, rejoin=False)
    check(run, run.go(), undisturbed)


def test_what_a_continued_run_leaves_in_memory_is_gone_on_from_by_the_next_attempt(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    def fault(run: Run) -> None:
        if run.orders and run.is_whole() and run.progress(0).get("step", 0) > 9 and run.answers:
            run.answers = False
            run.kill(2)
            time.sleep(0.2)
            run.stop(0, 1)

    run = Run(tmp_path / "run", settings(tmp_path), 3, {(1, 0): ("backward", 5)})
    *survivors, killed = run.go(fault)
    assert killed == "SIGKILL" and all(result["stopped"] for result in survivors), run.said()
    left = survivors[0]["state"].step
    again = Run(tmp_path / "run", settings(tmp_path), 3, attempt=run.attempt + 1, rejoin=False)
    results = again.go()
    assert [result["began"] for result in results] == [left] * 3
    check_training(again, results, undisturbed)
    # Ranks gave each other the state by messages, which a loop's step couldn't do without a rank.
    assert [again.progress(rank)["continuing"] for rank in range(3)] == ["able"] * 3


def test_a_rank_that_has_made_half_a_step_gives_its_state_to_nobody(tmp_path: Path) -> None:
    """A GAN's discriminator has made its step on all ranks, and its generator hasn't."""
    task = {"name": "tests.trainer.test_objectives:Seeded"}
    run = Run(tmp_path / "run", config(tmp_path, task=task, steps=8), 3, {(1, 0): ("stepped", 2)})
    one, _, other = run.go()
    assert all("a step is half made on all ranks that are left" in result for result in (one, other)), run.said()


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"workers": 1}},
        {"balance": {"enabled": True, "warmup": 2, "every": 3}},
        {"communication": {"compression": "bf16"}},
        {"parallel": {"find_unused_parameters": True}},
        {"checkpoint_mode": "thread"},
        {"batch": {"size": 8, "accumulation": 4}},
        {"task": {"name": TOY, "options": {"norm": True, "dropout": 0.2, "samples": 48}}, "batch": {"size": 12}},
        {"task": {"name": TOY, "options": {"depth": 4, "hidden": 40}}},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_what_a_run_may_have_besides_goes_on_too(tmp_path: Path, changes: dict[str, Any]) -> None:
    mode = changes.pop("checkpoint_mode", "sync")
    both = settings(tmp_path, **changes)
    both = both.model_copy(update={"checkpoint": both.checkpoint.model_copy(update={"mode": mode})})
    run = Run(tmp_path / "run", both, 3, {(0, 0): ("backward", 6)})
    results = run.go()
    assert all(isinstance(result, dict) and result["state"].step == STEPS for result in results), run.said()
    assert same_bits(results[0]["weights"], results[1]["weights"]) and same_bits(
        results[0]["weights"], results[2]["weights"]
    )
    if "communication" not in changes and "norm" not in str(changes):
        [alone] = run_ranks(1, train, settings(**changes))
        assert largest_difference(results[0]["weights"], alone["weights"]) < 1e-12


@pytest.mark.parametrize("where", ["backward", "stepped", "reporting"])
def test_what_a_hook_keeps_changes_once_in_each_step(tmp_path: Path, where: str) -> None:
    """If the group breaks after the step and before the hook, the hook is still called."""
    hooks = settings(tmp_path, hooks=["tests.trainer.continued_runs:adds_up"])
    run = Run(tmp_path / "run", hooks, 3, {(1, 0): (where, 7)})
    assert [result["kept"] for result in run.go()] == [sum(range(1, STEPS + 1))] * 3, run.said()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"parallel": {"strategy": "zero1", "copies": False}},
            "with parallel.strategy zero1 a lost rank's part of the state",
        ),
        ({"parallel": {"strategy": "fsdp"}}, "with one replica a lost rank's part of the state is nowhere else; with"),
        ({"parallel": {"strategy": "fsdp", "data": [1, 4], "tensor": 2}}, "with one replica a lost rank's part"),
        ({"communication": {"local_steps": 2}}, "with communication.local_steps a lost rank's own steps are lost"),
        ({"communication": {"compression": "onebit"}}, "what communication.compression onebit left out"),
        ({"delayed": {"pattern": "0", "every": 2}}, "with delayed.pattern the gradients"),
        ({"precision": {"compute": "fp16"}}, "with precision.compute fp16"),
    ],
)
def test_what_can_t_continue_is_said_in_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    found = obstacle(config(**changes), torch.device("cpu"))
    assert found and found.startswith(sentence) and len(found) <= MAXIMUM_MESSAGE
    for parallel in ({}, {"strategy": "zero1"}, {"strategy": "fsdp", "data": [2, 4]}):
        assert obstacle(config(parallel=parallel), torch.device("cpu")) is None
    assert obstacle(config(), torch.device("meta")) == "on meta no group can be formed again"
    queued = obstacle(config(parallel={"strategy": "zero1"}), torch.device("cuda"))
    assert queued == "with zero1 on cuda an update that is queued can't be taken back"


def test_a_run_that_can_t_continue_trains_as_without_an_agent_and_reports_why(tmp_path: Path) -> None:
    without = settings(tmp_path, parallel={"strategy": "zero1", "copies": False})
    run = Run(tmp_path / "run", without, 2, rejoin=False, function=from_outside)
    assert run.go() == [False, False]
    for rank in range(2):
        reported = run.progress(rank)
        assert reported["cannotContinue"].startswith("with parallel.strategy zero1") and "continuing" not in reported
        assert reported["step"] == STEPS


def test_a_run_from_the_command_line_continues(tmp_path: Path) -> None:
    def fault(run: Run) -> None:
        if not run.orders and run.progress(0).get("step", 0) > 3:
            run.kill(0)

    slow = {"name": "tests.trainer.continued_runs:Slow"}
    run = Run(tmp_path / "run", settings(tmp_path, task=slow), 2, rejoin=False, function=from_outside)
    assert run.go(fault)[1] is False, run.said()
    reported = run.progress(1)
    assert (reported["continuing"], reported["group"], reported["step"]) == ("able", 2, STEPS)
    assert "metrics: " in (tmp_path / "run" / "said-1").read_text()


def test_a_rank_that_is_let_in_while_the_others_end_gets_to_the_end_too(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    run = Run(tmp_path / "run", settings(tmp_path), 2, {(1, 0): ("backward", 12)}, last_moment=True)
    check(run, run.go(), undisturbed)
    assert run.orders[-1][1] == []


def after_steps(steps: int, call: Callable[[], None]) -> Callable[[Run], None]:
    """Returns a function that calls `call` once, when rank 0 has made this many steps."""
    called = False

    def meanwhile(run: Run) -> None:
        nonlocal called
        if not called and run.progress(0).get("step", 0) >= steps:
            called = True
            call()

    return meanwhile

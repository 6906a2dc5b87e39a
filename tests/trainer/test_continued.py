"""Ranks that survive a fault train on in their own processes, and the run is the one that nothing would have
disturbed.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.continued_runs import Fault, Run
from tests.trainer.ranks import run_ranks
from tests.trainer.toy import config, largest_difference, same_bits, train
from trainloop.checkpoints import storage
from trainloop.checkpoints.verification import verify
from trainloop.config import Config
from trainloop.data import Sampler
from trainloop.report import read_metrics

pytestmark = pytest.mark.torch

STEPS = 20


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    """Returns what one rank makes of the run, alone."""
    [alone] = run_ranks(1, train, settings())
    return alone


def settings(path: Any = None, **changes: Any) -> Config:
    often = {"evaluation": {"every_steps": 4}, "steps": STEPS}
    found = config(path, **{**often, **changes})
    saved = {"every_steps": 4, "keep": 20, "path": str(path / "checkpoints") if path else None}
    return found.model_copy(update={"checkpoint": found.checkpoint.model_copy(update=saved)})


def check(run: Run, results: list[Any], undisturbed: dict[str, Any], ended: set[int] | None = None) -> None:
    """The run has trained as an undisturbed one: every sample once, each step of a whole batch; and nothing that it
    writes is there twice, or missing.
    """
    ended = set(range(run.size)) - (set() if run.rejoin else run.absent) if ended is None else ended
    assert all(isinstance(results[rank], dict) for rank in ended), f"{results}\n{run.said()}"
    whole = [results[rank] for rank in sorted(ended)]
    for result in whole:
        assert result["state"].step == STEPS and not result["stopped"]
        assert same_bits(result["weights"], whole[0]["weights"])
    assert largest_difference(whole[0]["weights"], undisturbed["weights"]) < 1e-12
    assert whole[0]["state"].results == pytest.approx(undisturbed["results"], abs=1e-12)
    order = Sampler(40, 8, 1, run.settings.seed.value, False).batches
    batches = [batch for epoch in range(STEPS // 5) for batch in order(epoch, 0)]
    assert run.samples() == {step + 1: sorted(batch) for step, batch in enumerate(batches)}
    lines = read_metrics(Path(run.settings.metrics.path or "") / "metrics.jsonl")
    evaluated = Counter(line["step"] for line in lines if line["kind"] == "evaluation")
    assert evaluated.keys() == {4, 8, 12, 16, 20}
    made = Counter(line["step"] for line in lines if line["kind"] == "step")
    continued = {line["step"] for line in lines if line.get("event") == "continued"}
    # Of a step after which a rank was lost, nobody has all numbers.
    assert set(range(1, STEPS + 1)) - made.keys() <= continued and set(made.values()) == {1}
    assert [line["attempt"] for line in lines if line.get("event") == "continued"] == sorted(
        {line["attempt"] for line in lines if line.get("event") == "continued"}
    )
    there = storage.complete(Path(run.settings.checkpoint.path or ""))
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


@pytest.mark.parametrize(
    ("where", "rank"),
    [
        *(("evaluate", 0), ("measuring", 1), ("evaluated", 0), ("save", 1)),
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
    faults, due = 3, time.monotonic() + draw.uniform(0.5, 1.5)

    def meanwhile(run: Run) -> None:
        nonlocal faults, due
        present = [rank for rank in range(size) if rank not in run.absent and run.progress(rank).get("group")]
        if faults and time.monotonic() > due and len(present) > 1:
            run.kill(draw.choice(present))
            faults, due = faults - 1, time.monotonic() + draw.choice([0.02, 0.1, 0.5, 1.5])

    check(run, run.go(meanwhile), undisturbed)


def test_the_ranks_that_are_left_end_the_run_where_nobody_comes_again(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    run = Run(tmp_path / "run", settings(tmp_path), 3, {(0, 0): ("stepped", 5), (2, 0): ("backward", 13)}, rejoin=False)
    check(run, run.go(), undisturbed, {1})


def after_steps(steps: int, call: Callable[[], None]) -> Callable[[Run], None]:
    """Returns what calls `call` once, when rank 0 has made so many steps."""
    called = False

    def meanwhile(run: Run) -> None:
        nonlocal called
        if not called and run.progress(0).get("step", 0) >= steps:
            called = True
            call()

    return meanwhile

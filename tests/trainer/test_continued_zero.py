"""With ZeRO-1 a run also continues when ranks are lost: a neighbour holds the same shard of the optimizer's state."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from tests.trainer.continued_runs import ANY, Fault, Run
from tests.trainer.ranks import run_ranks
from tests.trainer.test_continued import check, check_training
from tests.trainer.test_continued import settings as settings_of
from tests.trainer.test_objectives import matrices, plain_matrices
from tests.trainer.toy import config, largest_difference, train
from trainloop.checkpoints.surviving import PartsInMemory
from trainloop.config import Config
from trainloop.distributed.world import World
from trainloop.parallel.copies import Mirrored, dealt, holders

pytestmark = pytest.mark.torch

RULES: dict[str, dict[str, Any]] = {
    "adamw": {"lr": 0.05, "max_norm": 0.5},
    "sgd": {"name": "sgd", "lr": 0.05, "max_norm": 0.5, "momentum": 0.9},
}
Faults = dict[tuple[int, int], Fault]


def settings(path: Any = None, rule: str = "adamw", **changes: Any) -> Config:
    return settings_of(path, **{"parallel": {"strategy": "zero1"}, "optimizer": RULES[rule], **changes})


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    """Returns the results of one rank that trains the whole run, for each rule."""
    return {rule: run_ranks(1, train, settings(rule=rule))[0] for rule in RULES}


def check_moments(results: list[Any]) -> None:
    """Check that both ranks that hold a shard have the same numbers, up to rounding: torch's kernels add in another
    order if a tensor lies elsewhere in memory.
    """
    found = dict[int, list[Any]]()
    for result in results:
        for shard, moments in result["moments"].items():
            found.setdefault(shard, []).append(moments)
    for one, *others in found.values():
        for other in others:
            for mine, theirs in zip(one, other, strict=True):
                assert mine.keys() == theirs.keys() and mine
                for name in mine:
                    torch.testing.assert_close(mine[name], theirs[name], rtol=0, atol=1e-14)


def go(
    tmp_path: Path,
    undisturbed: dict[str, Any],
    size: int,
    faults: Faults,
    rule: str = "adamw",
    meanwhile: Callable[[Run], None] = lambda run: None,
) -> Run:
    run = Run(tmp_path / "run", settings(tmp_path, rule), size, faults)
    results = run.go(meanwhile)
    check(run, results, undisturbed[rule])
    check_moments(results)
    return run


@pytest.mark.parametrize(
    ("where", "size", "rank", "rule"),
    [
        ("forward", 2, 1, "sgd"),
        ("backward", 3, 2, "adamw"),
        ("optimizer", 3, 0, "adamw"),
        ("optimizer", 2, 1, "sgd"),
        ("updated", 2, 0, "adamw"),
        ("updated", 3, 1, "sgd"),
        ("sending", 3, 0, "adamw"),
        ("sending", 4, 2, "adamw"),
        ("sending", 2, 1, "sgd"),
        ("stepped", 3, 1, "adamw"),
        ("stepped", 2, 0, "sgd"),
    ],
)
def test_a_rank_is_lost_anywhere_in_a_step(
    tmp_path: Path, undisturbed: dict[str, Any], where: str, size: int, rank: int, rule: str
) -> None:
    run = go(tmp_path, undisturbed, size, {(rank, 0): (where, 6)}, rule)
    assert [absent for _, absent in run.orders] == [[rank], []]


@pytest.mark.parametrize(
    ("where", "rank", "step"),
    [("measuring", 1, 8), ("evaluated", 0, 20), ("save", 2, 8), ("writing", 0, 8), ("saved", 1, 20)],
)
def test_a_rank_is_lost_in_an_evaluation_or_a_save(
    tmp_path: Path, undisturbed: dict[str, Any], where: str, rank: int, step: int
) -> None:
    run = Run(tmp_path / "run", settings(tmp_path), 3, {(rank, 0): (where, step)}, rejoin=step < 20)
    check(run, run.go(), undisturbed["adamw"])


@pytest.mark.parametrize("lost", ["updated", "sending"])
@pytest.mark.parametrize("rule", ["adamw", "sgd"])
def test_a_rank_that_has_not_begun_the_update_is_given_the_gradients(
    tmp_path: Path, undisturbed: dict[str, Any], lost: str, rule: str
) -> None:
    """Rank 0 has made the update. Shard 1 is held by rank 1, which hasn't, and rank 2, which is lost, so no rank holds
    it at this step.
    """
    run = go(tmp_path, undisturbed, 3, {(1, 0): ("lagging", 6), (2, 0): (lost, 6)}, rule)
    assert "interrupted after step 6" in (run.folder / "said-1").read_text()


def test_a_rank_that_lacks_some_weights_is_given_those_of_one_that_has_all(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    go(tmp_path, undisturbed, 4, {(1, 0): ("late", 6), (3, 0): ("stepped", 6)})


@pytest.mark.parametrize(
    ("first", "where"),
    [("forward", "forming"), ("forward", "mending"), *(("updated", each) for each in ("forming", "mending", "mended"))],
)
def test_another_rank_is_lost_while_a_group_is_formed(
    tmp_path: Path, undisturbed: dict[str, Any], first: str, where: str
) -> None:
    """If any rank has begun the update, one of the other two has begun it and the other hasn't."""
    faults: Faults = {(0, 0): (first, 6), (1, 0): ("lagging", 6), (2, 0): (where, ANY)}

    def lets_in(run: Run) -> None:
        """Otherwise rank 0 could be back, on a busy machine, before the others have met without it."""
        run.lets_in = len(run.orders) > 1

    run = go(tmp_path, undisturbed, 4, faults, meanwhile=lets_in)
    assert [absent for _, absent in run.orders][:2] == [[0], [0, 2]]


@pytest.mark.parametrize("where", ["joining", "mending", "mended"])
def test_a_rank_is_lost_while_it_joins_and_joins_when_it_has_come_again(
    tmp_path: Path, undisturbed: dict[str, Any], where: str
) -> None:
    run = go(tmp_path, undisturbed, 3, {(1, 0): ("stepped", 5), (1, 1): (where, 0 if where == "joining" else ANY)})
    assert [absent for _, absent in run.orders] == [[1], [], [1], []]


def test_a_neighbour_is_lost_when_the_other_one_has_come_again(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    """The rank that came back holds the only copy of two shards."""

    def fault(run: Run) -> None:
        if len(run.orders) == 2 and run.is_whole() and run.lives[2] == 0:
            run.kill(2)
        run.holds = run.lives[2] == 0

    run = Run(tmp_path / "run", settings(tmp_path), 3, {(1, 0): ("backward", 5)})
    results = run.go(fault)
    check(run, results, undisturbed["adamw"])
    check_moments(results)


@pytest.mark.parametrize("size", [3, 4])
def test_where_both_ranks_that_hold_a_shard_are_lost_none_goes_on(tmp_path: Path, size: int) -> None:
    def fault(run: Run) -> None:
        if not run.orders and run.progress(0).get("step", 0) >= 6:
            run.kill(1, 2)

    run = Run(tmp_path / "run", settings(tmp_path), size)
    results = run.go(fault)
    left = [results[rank] for rank in range(size) if rank not in (1, 2)]
    assert left and all(
        "no rank that is left has shard 1 of the optimizer's state, which ranks 1 and 2 held" in each for each in left
    ), run.said()


@pytest.mark.parametrize("seed", range(4))
def test_ranks_are_lost_at_any_time(tmp_path: Path, undisturbed: dict[str, Any], seed: int) -> None:
    """Ranks are lost at random times, but never two that hold the same shard."""
    draw, size = random.Random(seed), (2, 3, 4, 4)[seed]
    run = Run(tmp_path / "run", settings(tmp_path), size)
    killed = set[int]()  # not known to the agent yet
    faults, due = 3, time.monotonic() + draw.uniform(0.5, 1.5)

    def meanwhile(run: Run) -> None:
        nonlocal faults, due, killed
        killed -= run.absent
        lost = run.absent | killed
        near = {(rank + step) % size for rank in lost for step in (-1, 1)}
        present = [rank for rank in range(size) if rank not in lost]
        ready = all(run.progress(rank).get("group") == run.attempt for rank in present)
        present = [rank for rank in present if rank not in near]
        if faults and time.monotonic() > due and present and ready:
            killed = {draw.choice(present)}
            run.kill(*killed)
            faults, due = faults - 1, time.monotonic() + draw.choice([0.02, 0.1, 0.5, 1.5])
        run.holds = faults > 0 or time.monotonic() < due + 0.5

    results = run.go(meanwhile)
    check(run, results, undisturbed["adamw"])
    check_moments(results)


def test_a_rank_that_joins_is_not_there_for_its_neighbour_before_it_has_its_shards(tmp_path: Path) -> None:
    """Rank 2 should give rank 1 what it lost, but is lost before it can."""
    run = Run(tmp_path / "run", settings(tmp_path), 3, {(1, 0): ("stepped", 5), (2, 0): ("welcoming", ANY)})
    results = run.go()
    assert "no rank that is left has shard 1 of the optimizer's state, which ranks 1 and 2 held" in results[0], (
        run.said()
    )


@pytest.mark.parametrize(
    "faults",
    [{(1, 0): ("lagging", 7), (2, 0): ("updated", 7)}, {(0, 0): ("sending", 7)}, {(1, 0): ("reporting", 7)}],
)
def test_what_a_hook_keeps_changes_once_in_each_step(tmp_path: Path, faults: Faults) -> None:
    hooks = settings(tmp_path, hooks=["tests.trainer.continued_runs:adds_up"])
    run = Run(tmp_path / "run", hooks, 3, faults)
    assert [result["kept"] for result in run.go()] == [sum(range(1, 21))] * 3, run.said()


@pytest.mark.parametrize("where", ["forward", "stepped"])
def test_of_several_objectives_a_step_that_is_half_made_is_not_gone_on_from(tmp_path: Path, where: str) -> None:
    task = {"name": "tests.trainer.test_objectives:Seeded"}
    both = config(tmp_path, task=task, steps=8, parallel={"strategy": "zero1"})
    run = Run(tmp_path / "run", both, 3, {(1, 0): (where, 2)})
    one, *_, other = run.go()
    if where == "forward":
        assert all(isinstance(each, dict) and each["state"].step == 8 for each in (one, other)), run.said()
    else:
        assert all("a step is half made on all ranks that are left" in each for each in (one, other)), run.said()


@pytest.mark.parametrize("where", ["updated", "sending"])
def test_of_several_optimizers_of_one_loss_all_or_none_make_a_step(tmp_path: Path, where: str) -> None:
    """Rank 2 is lost between its two optimizers' updates, or while it sends the first one's weights."""
    faults: Faults = {(1, 0): ("lagging", 1), (2, 0): (where, 1)}
    run = Run(tmp_path / "run", matrices(tmp_path, "zero1"), 3, faults)
    expected = plain_matrices()
    for result in run.go():
        assert largest_difference(result["weights"], expected) < 1e-12, run.said()


def test_what_a_continued_run_leaves_in_memory_is_gone_on_from(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    def fault(run: Run) -> None:
        if run.orders and run.is_whole() and run.progress(0).get("step", 0) > 9 and run.answers:
            run.answers = False
            run.stop(0, 1, 2)

    run = Run(tmp_path / "run", settings(tmp_path), 3, {(1, 0): ("backward", 5)})
    stopped = run.go(fault)
    assert all(result["stopped"] for result in stopped), run.said()
    left = stopped[0]["state"].step
    for checkpoint in (tmp_path / "checkpoints").iterdir():
        checkpoint.rename(tmp_path / checkpoint.name)
    again = Run(tmp_path / "run", settings(tmp_path), 3, attempt=run.attempt + 1, rejoin=False)
    results = again.go()
    assert {result["began"] for result in results} == {left}
    check_training(again, results, undisturbed["adamw"])
    check_moments(results)
    assert [again.progress(rank)["continuing"] for rank in range(3)] == ["able"] * 3


@pytest.mark.parametrize("seed", range(3))
def test_shards_differ_by_one_parameter_at_most(seed: int) -> None:
    draw = random.Random(seed)
    groups = [[draw.randint(1, 50) for _ in range(draw.randint(0, 9))] for _ in range(draw.randint(1, 3))]
    count = draw.randint(1, 5)
    found = dealt(groups, count)
    assert [sorted(number for shard in shards for number in shard) for shards in found] == [
        list(range(len(group))) for group in groups
    ]
    filled = [
        sum(group[n] for group, shards in zip(groups, found, strict=True) for n in shards[s]) for s in range(count)
    ]
    assert max(filled) - min(filled) <= max((size for group in groups for size in group), default=0)


@pytest.mark.parametrize(
    ("ranks", "local_ranks", "others"), [(4, 1, [1, 2, 3, 0]), (4, 2, [2, 3, 0, 1]), (2, 2, [1, 0])]
)
def test_a_shard_is_held_by_its_rank_and_by_one_of_the_next_worker(
    ranks: int, local_ranks: int, others: list[int]
) -> None:
    assert [holders(shard, ranks, local_ranks) for shard in range(ranks)] == list(enumerate(others))


@pytest.mark.parametrize("absent", [(), (0,), (3,), (0, 2)])
def test_every_weight_is_given_by_one_rank_that_is_present(absent: tuple[int, ...]) -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(5)])
    present = [rank for rank in range(4) if rank not in absent]
    given = list[torch.Tensor]()
    for rank in present:
        world = cast("World", SimpleNamespace(rank=rank, size=4, local_size=1, present=present))
        mirrored = Mirrored(torch.optim.AdamW(model.parameters()), world)
        held = {each for group in mirrored.optim.param_groups for each in group["params"]}
        given += held - mirrored.copies()
    assert len(given) == len(set(given)) and set(given) == set(model.parameters())


@pytest.mark.parametrize(
    ("present", "step", "expected"),
    [([0, 1, 2], 7, "finished"), ([0, 2], 7, "made"), ([0, 2], 5, "finished")],
)
def test_a_snapshot_without_a_ranks_part_takes_the_place_of_none(present: list[int], step: int, expected: str) -> None:
    """There are no snapshots in an attempt's first step, in which the run finds out what the step changes."""
    memory, called = PartsInMemory.__new__(PartsInMemory), list[str]()
    world, state = SimpleNamespace(present=present, size=3), SimpleNamespace(step=4)
    run = cast("Any", SimpleNamespace(world=world, train=state, optimizer=Mirrored.__new__(Mirrored)))
    memory._run, memory._after_step = run, []
    memory._keeper = cast(
        "Any",
        SimpleNamespace(
            continue_as=lambda *_: None,
            finished=lambda *_, **__: called.append("finished"),
            made=lambda *_, **__: called.append("made"),
        ),
    )
    memory.continue_as(2)
    state.step = step
    memory.finished()
    assert called == [expected]

"""Ranks that lose others, and that new ones join, make every step exactly once, whenever it happens."""

from __future__ import annotations

import os
import pickle
import random
import socket
import time
from datetime import timedelta
from pathlib import Path

import pytest

from tests.trainer.continuing.training import history, logged, reaches, ready, train
from tests.trainer.continuing.worlds import World, world
from tests.trainer.ranks import free_port
from trainloop.continuing.forming import Continuing
from trainloop.continuing.orders import Order

pytestmark = pytest.mark.torch

THOROUGH = os.environ.get("TRAINMASTER_SLOW") == "1"
STEP_SECONDS = 0.02


def _lose(made: World, *lost: int) -> int:
    for rank in lost:
        made.kill(rank)
    return made.assign(made.absent | {*lost})


def _take_back(made: World) -> int:
    """Start all absent ranks again, and assign them an attempt when they are ready."""
    for rank in made.absent:
        made.processes[rank].kill()
        made.processes[rank].join()
        (made.folder / f"ready-{rank}").unlink(missing_ok=True)
        made.start(rank)
    for rank in made.absent:
        ready(made, rank)
    return made.assign()


def _all_right(made: World, steps: int) -> None:
    """Check that all present ranks end with the history of an undisturbed run, and that each process made its steps in
    order.
    """
    present = [rank for rank in range(made.size) if rank not in made.absent]
    made.ended(present)
    ends = [pickle.loads(made.outs[made.numbers[rank]].read_bytes()) for rank in present]
    assert ends == [("value", history(steps, made.size))] * len(present)
    for rank in present:
        for rows in logged(made, rank):
            numbers = [step for step, _, _ in rows]
            assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_a_rank_is_lost_and_a_new_one_joins(size: int) -> None:
    steps = 60
    with world(size, train, steps, STEP_SECONDS) as made:
        reaches(made, 0, 3)
        lost = size - 1
        reaches(made, 0, attempt=_lose(made, lost))
        reaches(made, lost, attempt=_take_back(made))
        _all_right(made, steps)


def test_the_lowest_rank_is_lost() -> None:
    with world(3, train, 60, STEP_SECONDS) as made:
        reaches(made, 0, 3)
        reaches(made, 1, attempt=_lose(made, 0))
        reaches(made, 0, attempt=_take_back(made))
        _all_right(made, 60)


def test_two_ranks_are_lost_within_50_milliseconds() -> None:
    with world(4, train, 60, STEP_SECONDS) as made:
        reaches(made, 0, 3)
        _lose(made, 1)
        time.sleep(0.03)
        reaches(made, 0, attempt=_lose(made, 3))
        reaches(made, 1, attempt=_take_back(made))
        _all_right(made, 60)


def test_a_rank_that_never_comes_costs_no_timeout() -> None:
    """Rank 2 is stopped when rank 3 is lost; its agent finds it later."""
    with world(4, train, 60, STEP_SECONDS) as made:
        reaches(made, 0, 3)
        made.stop(2)
        _lose(made, 3)
        time.sleep(0.3)
        begun = time.monotonic()
        assert reaches(made, 0, attempt=_lose(made, 2)) - begun < 5
        _take_back(made)
        _all_right(made, 60)


def test_a_stopped_rank_that_is_not_dead_costs_no_timeout() -> None:
    """The survivors wait for a rank whose connections stay open; the assignment wakes them."""
    with world(3, train, 60, STEP_SECONDS) as made:
        reaches(made, 0, 3)
        made.stop(1)
        begun = time.monotonic()
        assert reaches(made, 0, attempt=made.assign([1])) - begun < 5
        made.processes[1].kill()
        _take_back(made)
        _all_right(made, 60)


def test_a_rank_whose_assignment_comes_late_is_waited_for() -> None:
    with world(3, train, 60, STEP_SECONDS) as made:
        reaches(made, 0, 3)
        made.kill(2)
        made.assign([2], wakes=[0])
        time.sleep(3.0)
        made.wake(1)
        reaches(made, 1, attempt=2)
        _take_back(made)
        _all_right(made, 60)


def test_a_port_that_is_taken_for_a_moment_is_waited_for() -> None:
    with world(3, train, 40, STEP_SECONDS) as made, socket.socket() as taken:
        reaches(made, 0, 3)
        port = free_port()
        taken.bind(("", port))
        made.kill(2)
        made.assign([2], port=port)
        time.sleep(0.5)
        taken.close()
        reaches(made, 1, attempt=2)
        _all_right(made, 40)


@pytest.mark.parametrize("lost", [0, 2])
def test_a_rank_is_lost_in_the_midst_of_the_state_that_it_gives_or_is_given(lost: int) -> None:
    """Gloo doesn't report that it received or sent only half of a message."""
    with world(3, train, 200, STEP_SECONDS, 200_000_000) as made:
        reaches(made, 0, 3)
        _lose(made, 2)
        reaches(made, 0, attempt=2)
        gives = made.folder / "gives-0"
        gives.unlink(missing_ok=True)
        _take_back(made)
        while not gives.exists():
            time.sleep(0.001)
        made.stop(2)
        while made.unread(2) < 10_000:
            made.go_on(2)
            time.sleep(0.005)
            made.stop(2)
        made.kill(lost)
        made.go_on(2)
        begun = time.monotonic()
        assert reaches(made, 1, attempt=made.assign([lost])) - begun < 5
        _take_back(made)
        _all_right(made, 200)


def test_a_newer_attempt_comes_while_the_ranks_form() -> None:
    """Rank 2 is lost repeatedly, in every stage of its joining."""
    chance = random.Random(3)
    with world(3, train, 100, STEP_SECONDS) as made:
        reaches(made, 0, 3)
        for _ in range(4):
            _lose(made, 2)
            _take_back(made)
            time.sleep(chance.uniform(0, 0.15))
        _all_right(made, 100)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(20))
def test_random_histories(seed: int) -> None:
    chance = random.Random(seed)
    size = chance.choice([2, 3, 4, 6])
    with world(size, train, 1_500, STEP_SECONDS, chance.choice([0, 10_000_000])) as made:
        reaches(made, 0, 2)
        for _ in range(8):
            for _ in range(chance.choice([1, 1, 2])):
                there = [rank for rank in range(size) if rank not in made.absent]
                if len(there) > 1:
                    lost = chance.choice(there)
                    if chance.random() < 0.3:
                        made.stop(lost)
                        made.assign(made.absent | {lost})
                    else:
                        _lose(made, lost)
                time.sleep(chance.choice([0, 0.03, chance.uniform(0, 0.3)]))
            _take_back(made)
            time.sleep(chance.uniform(0, 0.3))
        _all_right(made, 1_500)


def test_while_a_unit_makes_a_step_only_the_loss_of_a_member_keeps_it_from_that(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "group.0")
    arguments = {"joins": False, "accelerator": "", "timeout": timedelta(seconds=5)}
    made = Continuing(0, 6, 1, tmp_path / "group", **arguments)  # type: ignore[arg-type]
    made.able = True
    made._received(Order(2, 6))  # before the ranks know what belongs together
    made.train_by(2)
    made.commit()
    made._received(Order(3, 6, frozenset({3})))
    assert not made.broken and made.membership.known == 2
    made.committed()
    assert made.broken and made.membership.newest == Order(3, 6, frozenset({3}), unit=2)
    made.membership = made.membership.meets(Order(3, 6, unit=2)).formed(Order(3, 6, unit=2))
    made.commit()
    made._received(Order(4, 6, frozenset({1, 3})))
    assert made.broken and made.membership.newest == Order(4, 6, frozenset({1, 3}), unit=2)

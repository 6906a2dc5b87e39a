"""Each collective does what torch's own does if all ranks are present, and otherwise what `group.py` documents."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest

from tests.trainer.continuing.collectives import calls, of_each, results
from tests.trainer.continuing.worlds import World, trains, world
from tests.trainer.ranks import run_ranks

pytestmark = pytest.mark.torch

#: Longer than any collective takes that isn't carried out.
AT_ONCE = 0.5
ROW_1, ROW_3 = [[2.0, 2.0], [3.0, 0.5]], [[4.0, 6.0], [3.0, 2.5]]


def _all() -> dict[str, Any]:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    given = results(calls) | results(of_each)
    assert dist.get_backend() == "gloo"
    assert (dist.is_initialized(), dist.get_process_group_ranks(None)) == (True, [0, 1, 2])
    dist.destroy_process_group()
    assert not dist.is_initialized()
    return given


def _after_a_loss(forms: bool) -> dict[str, Any]:
    import torch.distributed as dist

    from trainloop.continuing.start import continuing

    dist.init_process_group("gloo")
    ours = continuing()
    assert ours is not None
    ours.able = True
    trains()
    while not ours.broken:
        dist.barrier()
    if forms:
        ours.form(0, dict, print)
    begun = time.monotonic()
    given = results(calls) | results(of_each)
    return given | {"seconds": time.monotonic() - begun, "obstacle": ours.obstacle}


def _alone() -> dict[str, Any]:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    begun = time.monotonic()
    return results(calls) | {"seconds": time.monotonic() - begun}


def _returned(made: World, number: int) -> dict[str, Any]:
    kind, value = pickle.loads(made.outs[number].read_bytes())
    assert kind == "value", value
    answer: dict[str, Any] = value
    return answer


def test_with_all_ranks_every_collective_gives_what_torchs_own_gives() -> None:
    theirs = run_ranks(3, _all)
    with world(3, _all) as made:
        made.ended(range(3))
        ours = [_returned(made, rank) for rank in range(3)]
    assert len(theirs[0]) > 40
    assert ours == theirs


@pytest.fixture(scope="module", name="without")
def _without() -> dict[int, dict[str, Any]]:
    """Returns the results of ranks 1 and 3 in the group that they form without 0 and 2."""
    with world(4, _after_a_loss, True) as made:
        made.trains(range(4))
        made.kill(0)
        made.kill(2)
        made.assign([0, 2])
        made.ended([1, 3])
        return {rank: _returned(made, rank) for rank in (1, 3)}


@pytest.mark.parametrize(
    ("name", "of_1", "of_3"),
    [
        ("all_reduce sum", [[6.0, 8.0], [6.0, 3.0]], [[6.0, 8.0], [6.0, 3.0]]),
        ("all_reduce product", [[8.0, 12.0], [9.0, 1.25]], [[8.0, 12.0], [9.0, 1.25]]),
        ("all_reduce async", [True, True, [[6.0, 8.0], [6.0, 3.0]]], [True, True, [[6.0, 8.0], [6.0, 3.0]]]),
        ("functional all_reduce", [[6.0, 8.0], [6.0, 3.0]], [[6.0, 8.0], [6.0, 3.0]]),
        ("reduce sum", None, None),
        ("broadcast", ROW_1, ROW_1),
        ("broadcast from the last", ROW_3, ROW_3),
        ("all_gather", [ROW_1, ROW_1, ROW_1, ROW_3], [ROW_1, ROW_1, ROW_1, ROW_3]),
        ("all_gather_into_tensor", [*ROW_1, *ROW_1, *ROW_1, *ROW_3], [*ROW_1, *ROW_1, *ROW_1, *ROW_3]),
        ("gather", None, None),
        ("gather to the last", None, [ROW_1, ROW_1, ROW_1, ROW_3]),
        ("reduce_scatter", [[8.0, 12.0], [6.0, 5.0]], [[12.0, 20.0], [6.0, 9.0]]),
        ("reduce_scatter_tensor", [[8.0, 12.0], [6.0, 5.0]], [[12.0, 20.0], [6.0, 9.0]]),
        ("broadcast_object_list", [{"rank": 1}, "xx"], [{"rank": 1}, "xx"]),
    ],
)
def test_without_some_ranks_their_place_has_what_the_lowest_present_one_sends(
    without: dict[int, dict[str, Any]], name: str, of_1: Any, of_3: Any
) -> None:
    assert (without[1][name], without[3][name]) == (of_1, of_3)


def test_without_some_ranks_objects_are_gathered_from_the_others(without: dict[int, dict[str, Any]]) -> None:
    one, three = {"rank": 1, "text": "xx"}, {"rank": 3, "text": "xxxx"}
    assert without[1]["all_gather_object"] == without[3]["all_gather_object"] == [one, one, one, three]
    assert without[1]["gather_object"] is None


def test_what_needs_every_rank_says_so_where_one_is_lost(without: dict[int, dict[str, Any]]) -> None:
    for name in ("all_to_all", "all_to_all_single", "functional all_to_all"):
        assert without[1][name] == "RuntimeError: all_to_all needs all ranks, and not all are present"
    assert without[1]["scatter"] == "RuntimeError: nobody has what rank 0 scatters, because it is lost"
    assert "needs all ranks" in without[1]["isend and irecv"]
    assert without[1]["obstacle"] == "it uses all_to_all, in which each rank has a part that no other can take"


def test_in_a_group_that_has_broken_no_collective_waits_or_raises() -> None:
    with world(3, _after_a_loss, False) as made:
        made.trains(range(3))
        made.kill(1)
        made.ended([0, 2])
        given = _returned(made, 2)
    assert given["seconds"] < AT_ONCE
    assert [each for each in given.values() if isinstance(each, str) and "Error" in each] == []
    own = [[3.0, 4.0], [3.0, 1.5]]
    assert given["all_reduce sum"] == given["broadcast"] == own
    assert given["all_gather"] == [own] * 3
    assert given["broadcast_object_list"] == [{"rank": 2}, "xxx"]


def test_a_rank_that_joins_is_alone_until_then() -> None:
    with world(3, _alone) as made:
        for process in made.processes.values():
            process.kill()
        made.start(2)
        made.ended([2])
        given = _returned(made, 3)
    assert given["seconds"] < AT_ONCE
    assert [name for name, each in given.items() if isinstance(each, str)] == []

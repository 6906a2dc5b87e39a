"""Torch's own layers above process groups work on a group that can continue, and keep working without a rank."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

import pytest

from tests.trainer.continuing.worlds import trains, world
from tests.trainer.ranks import run_ranks

pytestmark = pytest.mark.torch

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "find_unused_parameters": {"find_unused_parameters": True},
    "static_graph": {"static_graph": True},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.0001},
    "no_sync": {},
    "hook": {},
    "zero": {},
    "join": {},
}


def _trains(kind: str, *, continues: bool) -> list[Any]:
    """Makes three steps; if it `continues`, trains until it has lost a rank, and makes three more. Returns the
    weights.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    from trainloop.continuing.start import continuing

    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    model = DistributedDataParallel(net.double(), **OPTIONS[kind])
    if kind == "hook":
        model.register_comm_hook(None, allreduce_hook)
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.01)
    if kind == "zero":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        if kind == "no_sync":
            with model.no_sync():
                model(torch.randn(4, 6, dtype=torch.float64)).square().sum().backward()
        joins = model.join() if kind == "join" else contextlib.nullcontext()
        with joins:
            model(torch.randn(4, 6, dtype=torch.float64)).square().sum().backward()
            optimizer.step()

    for _ in range(3):
        step()
    whole = [each.tolist() for each in model.state_dict().values()]
    if not continues:
        return whole
    ours = continuing()
    assert ours is not None
    ours.able = True
    trains()
    while not ours.broken:
        optimizer.zero_grad()
        model(torch.randn(4, 6, dtype=torch.float64)).square().sum().backward()
        dist.barrier()

    def give() -> dict[str, Any]:
        return {}

    ours.form(3, give, print)
    for _ in range(3):
        step()
    assert not ours.broken
    assert ours.obstacle is None
    return [whole, [each.tolist() for each in model.parameters()]]


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_model_trains_as_on_torchs_own_group_and_then_without_a_rank(kind: str) -> None:
    theirs = run_ranks(3, _trains_alone, kind)
    with world(3, _trains_on, kind) as made:
        made.trains(range(3))
        made.kill(1)
        made.assign([1])
        made.ended([0, 2])
        (whole_0, after_0), (whole_2, after_2) = (_value(made.outs[rank].read_bytes()) for rank in (0, 2))
    assert [whole_0, whole_2] == [theirs[0], theirs[2]]
    assert after_0 == after_2


def _value(data: bytes) -> Any:
    kind, value = pickle.loads(data)
    assert kind == "value", value
    return value


def _trains_alone(kind: str) -> list[Any]:
    return _trains(kind, continues=False)


def _trains_on(kind: str) -> list[Any]:
    return _trains(kind, continues=True)


def _groups() -> dict[str, Any]:
    """Checks two rows and two columns of ranks, whose groups exist side by side, before and after rank 3 is lost."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from trainloop.continuing.start import continuing

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    first = dist.new_group([0, 1])

    def sums() -> list[float]:
        answers = []
        for group in (mesh.get_group("rows"), mesh.get_group("columns"), *([first] if rank < 2 else [])):
            number = torch.tensor([float(2**rank)])
            dist.all_reduce(number, group=group)
            answers.append(number.item())
        return answers

    before = sums()
    ours = continuing()
    assert ours is not None
    ours.able = True
    trains()
    while not ours.broken:
        dist.barrier()
    ours.form(0, dict, print)
    after = sums()
    later = dist.new_group([0, 1, 3])
    number = torch.tensor([1.0])
    if rank != 2:
        dist.all_reduce(number, group=later)
    return {"before": before, "after": after, "later": number.item(), "ranks": mesh.get_group("rows").size()}


def test_groups_beside_each_other_go_on_without_a_rank() -> None:
    with world(4, _groups) as made:
        made.trains(range(4))
        made.kill(3)
        made.assign([3])
        made.ended([0, 1, 2])
        given = [_value(made.outs[rank].read_bytes()) for rank in range(3)]
    assert [each["before"] for each in given] == [[5.0, 3.0, 3.0], [10.0, 3.0, 3.0], [5.0, 12.0]]
    assert [each["after"] for each in given] == [[5.0, 3.0, 3.0], [2.0, 3.0, 3.0], [5.0, 4.0]]
    assert [each["later"] for each in given] == [2.0, 2.0, 1.0]
    assert given[0]["ranks"] == 2


def _ends(turn: int) -> None:
    """Ends while collectives are under way; every second time without destroying the group."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    for _ in range(3):
        dist.all_reduce(torch.ones(1000))
    works = [dist.all_reduce(torch.ones(100_000), async_op=True) for _ in range(3)]
    assert all(work is not None and work.get_future() is not None for work in works)
    if turn % 2:
        dist.destroy_process_group()


def test_processes_end() -> None:
    for turn in range(4):
        with world(2, _ends, turn) as made:
            made.ended([0, 1])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_processes_end_every_time() -> None:
    for turn in range(50):
        with world(2, _ends, turn) as made:
            made.ended([0, 1])

"""Ranks call every collective of `torch.distributed` once, for tests that compare the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import ReduceOp

_REDUCTIONS = {"sum": ReduceOp.SUM, "max": ReduceOp.MAX, "min": ReduceOp.MIN, "product": ReduceOp.PRODUCT}


def world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def own(rank: int, *more: float) -> torch.Tensor:
    return torch.tensor([[rank + 1.0, 2.0 * rank, *more], [3.0, rank - 0.5, *more]], dtype=torch.float64)


Calls = Callable[[int, int], Iterator[tuple[str, Callable[[], Any]]]]


def results(of: Calls) -> dict[str, Any]:
    """Returns what each collective of `of` gives this rank, by its name; if it fails, the error's message."""
    given = dict[str, Any]()
    for name, call in of(dist.get_rank(), dist.get_world_size()):
        try:
            given[name] = plain(call())
        except Exception as error:
            given[name] = f"{type(error).__name__}: {error}"
    return given


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def calls(rank: int, size: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yields the collectives that combine all ranks' data; an absent rank has a stand-in in them."""
    last = size - 1
    for name, operation in _REDUCTIONS.items():
        yield f"all_reduce {name}", partial(_in_place, dist.all_reduce, own(rank), op=operation)
        yield f"reduce {name}", partial(_reduced, rank, 0, op=operation)
    yield "all_reduce mean", lambda: _in_place(dist.all_reduce, own(rank), op=ReduceOp.AVG)
    yield "all_reduce async", lambda: _async(rank)
    yield "all_reduce future", lambda: _future(rank)
    yield "all_reduce integers", lambda: _in_place(dist.all_reduce, torch.arange(5) + rank)
    yield "all_reduce strided", lambda: _in_place(dist.all_reduce, own(rank).t().contiguous().t())
    yield "all_reduce_coalesced", lambda: _coalesced(rank)
    yield "all_reduce in a coalescing manager", lambda: _manager(rank)
    yield "broadcast", lambda: _in_place(dist.broadcast, own(rank), src=0)
    yield "broadcast from the last", lambda: _in_place(dist.broadcast, own(rank), src=last)
    yield "all_gather", lambda: _all_gather(rank, size)
    yield "all_gather_into_tensor", lambda: _into(rank, 2 * size)
    yield "all_gather_coalesced", lambda: _all_gather_coalesced(rank, size)
    yield "gather", lambda: _gather(rank, size, 0)
    yield "gather to the last", lambda: _gather(rank, size, last)
    yield "reduce_scatter", lambda: _reduce_scatter(rank, size)
    yield "reduce_scatter_tensor", lambda: _reduce_scatter_tensor(rank, size)
    yield "barrier", lambda: dist.barrier()
    yield "barrier async", lambda: dist.barrier(async_op=True).wait()
    yield "monitored_barrier", lambda: dist.monitored_barrier()
    yield "all_gather_object", lambda: _all_gather_object(rank, size)
    yield "gather_object", lambda: _gather_object(rank, size)
    yield "broadcast_object_list", lambda: _broadcast_objects(rank)
    yield "functional all_reduce", lambda: functional.all_reduce(own(rank), "sum", world()) + 0
    yield "functional all_gather", lambda: functional.all_gather_tensor(own(rank), 0, world()) + 0
    yield "functional reduce_scatter", lambda: _functional_scatter(rank, size)
    yield "functional broadcast", lambda: functional.broadcast(own(rank), 0, world()) + 0
    yield "functional coalesced", lambda: functional.all_reduce_coalesced([own(rank)], "sum", world())[0] + 0


def of_each(rank: int, size: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yields the collectives in which each rank has its own part, which nobody else can take over."""
    yield "scatter", lambda: _scatter(rank, size)
    yield "scatter_object_list", lambda: _scatter_objects(rank, size)
    yield "all_to_all", lambda: _all_to_all(rank, size)
    yield "all_to_all_single", lambda: _all_to_all_single(rank, size)
    yield "all_to_all_single uneven", lambda: _uneven(rank, size)
    yield "functional all_to_all", lambda: _functional_all_to_all(rank, size)
    yield "send and recv", lambda: _ring(rank, size)
    yield "recv from any", lambda: _any(rank, size)
    yield "isend and irecv", lambda: _iring(rank, size)
    yield "batch_isend_irecv", lambda: _batch(rank, size)


def _in_place(call: Callable[..., Any], tensor: torch.Tensor, **options: Any) -> torch.Tensor:
    call(tensor, **options)
    return tensor


def _reduced(rank: int, to: int, **options: Any) -> Any:
    reduced = _in_place(dist.reduce, own(rank), dst=to, **options)
    return reduced if rank == to else None


def _async(rank: int) -> Any:
    tensor = own(rank)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    return [work.wait(), work.is_completed(), tensor]


def _future(rank: int) -> Any:
    work = dist.all_reduce(own(rank), async_op=True)
    assert work is not None
    return work.get_future().then(lambda future: future.value()[0] * 2).wait()


def _coalesced(rank: int) -> Any:
    tensors = [own(rank), own(rank, 4.0)]
    dist.all_reduce_coalesced(tensors)
    return tensors


def _manager(rank: int) -> Any:
    tensors = [own(rank), own(rank, 4.0)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    return tensors


def _all_gather(rank: int, size: int) -> Any:
    outputs = [torch.zeros(2, 2, dtype=torch.float64) for _ in range(size)]
    dist.all_gather(outputs, own(rank))
    return outputs


def _into(rank: int, rows: int) -> Any:
    output = torch.zeros(rows, 2, dtype=torch.float64)
    dist.all_gather_into_tensor(output, own(rank))
    return output


def _all_gather_coalesced(rank: int, size: int) -> Any:
    outputs = [[torch.zeros(2, 2, dtype=torch.float64)] for _ in range(size)]
    dist.all_gather_coalesced(outputs, [own(rank)])
    return outputs


def _gather(rank: int, size: int, to: int) -> Any:
    outputs = [torch.zeros(2, 2, dtype=torch.float64) for _ in range(size)] if rank == to else None
    dist.gather(own(rank), outputs, dst=to)
    return outputs


def _scatter(rank: int, size: int) -> Any:
    output = torch.zeros(2, 2, dtype=torch.float64)
    dist.scatter(output, [own(each + 10) for each in range(size)] if rank == 0 else None, src=0)
    return output


def _reduce_scatter(rank: int, size: int) -> Any:
    output = torch.zeros(2, 2, dtype=torch.float64)
    dist.reduce_scatter(output, [own(rank + each) for each in range(size)])
    return output


def _reduce_scatter_tensor(rank: int, size: int) -> Any:
    output = torch.zeros(2, 2, dtype=torch.float64)
    dist.reduce_scatter_tensor(output, torch.cat([own(rank + each) for each in range(size)]))
    return output


def _functional_scatter(rank: int, size: int) -> Any:
    values = torch.cat([own(rank + each) for each in range(size)])
    return functional.reduce_scatter_tensor(values, "sum", 0, world()) + 0


def _all_to_all(rank: int, size: int) -> Any:
    outputs = [torch.zeros(2, 2, dtype=torch.float64) for _ in range(size)]
    dist.all_to_all(outputs, [own(10 * rank + each) for each in range(size)])
    return outputs


def _all_to_all_single(rank: int, size: int) -> Any:
    output = torch.zeros(size, 2)
    dist.all_to_all_single(output, torch.arange(2.0 * size).view(size, 2) + 100 * rank)
    return output


def _uneven(rank: int, size: int) -> Any:
    sends = [1 + (rank + each) % 2 for each in range(size)]
    output = torch.zeros(sum(sends))
    dist.all_to_all_single(output, torch.arange(float(sum(sends))) + 100 * rank, sends, sends)
    return output


def _functional_all_to_all(rank: int, size: int) -> Any:
    ones = [1] * size
    return functional.all_to_all_single(torch.arange(float(size)) + 10 * rank, ones, ones, world()) + 0


def _ring(rank: int, size: int) -> Any:
    received = torch.zeros(2, 2, dtype=torch.float64)
    if rank % 2 == 0:
        dist.send(own(rank), (rank + 1) % size)
        source = dist.recv(received, (rank - 1) % size)
    else:
        source = dist.recv(received, (rank - 1) % size)
        dist.send(own(rank), (rank + 1) % size)
    return [source, received]


def _any(rank: int, size: int) -> Any:
    if rank == 0:
        received = [torch.zeros(2, 2, dtype=torch.float64) for _ in range(size - 1)]
        sources = [dist.recv(each) for each in received]
        dist.barrier()
        return [plain(received[sources.index(each)]) for each in sorted(sources)]
    dist.send(own(rank), 0)
    dist.barrier()  # or rank 0 takes a later message of a faster rank
    return None


def _iring(rank: int, size: int) -> Any:
    received = torch.zeros(2, 2, dtype=torch.float64)
    works = [dist.isend(own(rank), (rank + 1) % size), dist.irecv(received, (rank - 1) % size)]
    for work in works:
        assert work is not None
        work.wait()
    return received


def _batch(rank: int, size: int) -> Any:
    received = torch.zeros(2, 2, dtype=torch.float64)
    send = dist.P2POp(dist.isend, own(rank), (rank + 1) % size)
    receive = dist.P2POp(dist.irecv, received, (rank - 1) % size)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()
    return received


def _all_gather_object(rank: int, size: int) -> Any:
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * (rank + 1)})
    return objects


def _gather_object(rank: int, size: int) -> Any:
    objects: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object({"rank": rank, "text": "x" * (rank + 1)}, objects, dst=0)
    return objects


def _broadcast_objects(rank: int) -> Any:
    objects = [{"rank": rank}, "x" * (rank + 1)]
    dist.broadcast_object_list(objects, src=0)
    return objects


def _scatter_objects(rank: int, size: int) -> Any:
    output: list[Any] = [None]
    dist.scatter_object_list(output, [{"for": each} for each in range(size)] if rank == 0 else None, src=0)
    return output

"""The process group that torch, DDP and the script see stays the same while the real one behind it changes.

Its size and its rank never change. Each collective goes to the real group of the ranks that are present. One that fails
is swallowed, where somebody looks whether a step was made: it and all later ones return at once, with whatever their
tensors have, until there is a real group again. So a backward pass ends, and the step isn't made. Absent ranks count as
nothing in a reduction; where each rank has a place in what is gathered, theirs has what the lowest rank that is present
has sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, Work
from torch.futures import Future

from trainloop.continuing.real import Real
from trainloop.continuing.start import BACKEND

Tensors = list[torch.Tensor]
#: torch calls a group's methods with lists and options; its stubs have other forms, for people, too.
Base: Any = ProcessGroup


class Done(Work):
    """A collective that isn't made."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._result = result

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def get_future(self) -> Future[Any]:
        future = Future[Any]()
        future.set_result(self._result)
        return future


class Swallowed(Work):
    """A collective of the real group, whose failure is told to the group and to nobody else."""

    def __init__(self, group: Group, work: Any, result: Any, after: Callable[[], None] | None) -> None:
        super().__init__()
        self._group, self._work, self._result, self._after = group, work, result, after

    def wait(self, timeout: timedelta | None = None) -> bool:
        try:
            self._work.wait() if timeout is None else self._work.wait(timeout)
            self._finish()
        except RuntimeError as error:
            if not self._group.fail(error):
                raise
        return True

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        return True

    def synchronize(self) -> None:
        self._work.synchronize()

    def get_future(self) -> Future[Any]:
        # Of the device, so that what waits for it waits on the device.
        future = Future[Any](devices=self._group.devices)

        def done(finished: Future[Any]) -> None:
            try:
                finished.value()
                self._finish()
            except RuntimeError as error:
                if not self._group.fail(error):
                    future.set_exception(error)
                    return
            future.set_result(self._result)

        self._work.get_future().add_done_callback(done)
        return future

    def _finish(self) -> None:
        after, self._after = self._after, None
        if after is not None:
            after()


class Group(Base):  # type: ignore[misc]
    """See the module. `ranks` are the global ranks of the group, of which this process is one."""

    def __init__(self, rank: int, ranks: Sequence[int], failed: Callable[[Exception], bool]) -> None:
        """`failed` is called with the first failure, and returns whether it is swallowed."""
        super().__init__(rank, len(ranks))
        self.ranks = tuple(ranks)
        self._own, self._failed = rank, failed
        #: The real group; None: this rank is alone, or what it was in has broken.
        self._real: Real | None = None
        #: The ranks of this group that are present, as its own numbers, ascending.
        self.members: tuple[int, ...] = ()
        #: The accelerator, where there is one: what waits for a collective then waits on it.
        self.devices: list[Any] = []

    def use(self, real: Real, members: Sequence[int], devices: Sequence[torch.device]) -> None:
        """Pass collectives on to `real`, whose ranks are `members`, from now on."""
        self.members, self.devices, self._real = tuple(members), list(devices), real

    def leave(self) -> Real | None:
        """Be alone; returns the real group, of which the caller has the last reference."""
        real, self._real = self._real, None
        return real

    def fail(self, error: Exception) -> bool:
        """A collective has failed; returns whether that is swallowed, and later ones aren't made."""
        if self._real is not None and self._failed(error):
            self._real = None
        return self._real is None

    @property
    def is_whole(self) -> bool:
        """Returns whether all ranks are present."""
        return len(self.members) == len(self.ranks)

    def size(self) -> int:
        return len(self.ranks)

    def rank(self) -> int:
        return self._own

    getSize, getRank = size, rank

    def getBackendName(self) -> str:
        return BACKEND  # by the name of gloo or NCCL torch would look for theirs in this group

    def abort(self) -> None:
        if (real := self.leave()) is not None:
            real.end()

    def shutdown(self) -> None:
        self.leave()

    # Collectives, by the names that torch calls them

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:
        opts, after = self._reduction(opts, tensors)
        return self._pass(tensors, tensors, lambda real: real.allreduce(tensors, opts), after)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        opts, after = self._reduction(opts, tensors, dist.AllreduceCoalescedOptions)
        return self._pass(tensors, tensors, lambda real: real.allreduce_coalesced(tensors, opts), after)

    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        opts, after = self._reduction(opts, tensors)
        opts.rootRank = self._place_of(opts.rootRank)
        return self._pass(tensors, tensors, lambda real: real.reduce(tensors, opts), after)

    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        opts.rootRank = self._place_of(opts.rootRank)
        return self._pass(tensors, tensors, lambda real: real.broadcast(tensors, opts))

    def barrier(self, opts: Any = None) -> Work:
        # Of one number, because a real barrier of NCCL's needs to know a device.
        number = torch.zeros(1)
        return self._pass([number], [number], lambda real: real.allreduce([number], dist.AllreduceOptions()))

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        gathered = [[each[member] for member in self.members] for each in outputs]
        absent = [(each, each[self.members[0]]) for each in outputs] if self.members else []

        def fill() -> None:
            for each, stand_in in absent:
                for number, place in enumerate(each):
                    if number not in self.members:
                        place.copy_(stand_in)

        def alone() -> None:
            for each, own in zip(outputs, inputs, strict=True):
                for place in each:
                    place.copy_(own)

        after = None if self.is_whole else fill
        return self._pass(inputs, outputs, lambda real: real.allgather(gathered, inputs), after, alone)

    def all_gather_single(self, output: torch.Tensor, value: torch.Tensor, opts: Any = None) -> Work:
        return self.allgather([list(output.view(-1).chunk(self.size()))], [value.reshape(-1)])

    _allgather_base = all_gather_single

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> Work:
        root = opts.rootRank = self._place_of(opts.rootRank)
        mine = self.members.index(self._own) == root if self.members else True
        gathered = [[each[member] for member in self.members] for each in outputs] if mine else []
        return self._pass(inputs, outputs, lambda real: real.gather(gathered, inputs, opts))

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> Work:
        opts.rootRank = self._place_of(opts.rootRank)
        sent = [[each[member] for member in self.members] for each in inputs]
        return self._pass(outputs, outputs, lambda real: real.scatter(outputs, sent, opts))

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> Work:
        opts, after = self._reduction(opts, outputs, dist.ReduceScatterOptions)
        sent = [[each[member] for member in self.members] for each in inputs]
        return self._pass(outputs, outputs, lambda real: real.reduce_scatter(outputs, sent, opts), after)

    def reduce_scatter_single(self, output: torch.Tensor, value: torch.Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter([output.view(-1)], [list(value.reshape(-1).chunk(self.size()))], opts)

    _reduce_scatter_base = reduce_scatter_single

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        received = [outputs[member] for member in self.members]
        sent = [inputs[member] for member in self.members]
        return self._pass(inputs, outputs, lambda real: real.alltoall(received, sent, dist.AllToAllOptions()))

    def send(self, tensors: Tensors, target: int, tag: int) -> Work:
        return self._to(target, tensors, lambda real, place: real.send(tensors, place, tag))

    def recv(self, tensors: Tensors, source: int, tag: int) -> Work:
        return self._to(source, tensors, lambda real, place: real.recv(tensors, place, tag))

    def _to(self, rank: int, tensors: Tensors, call: Callable[[Any, int], Any]) -> Work:
        if self._real is not None and rank not in self.members:
            return Done(tensors)
        return self._pass(tensors, tensors, lambda real: call(real, self._place_of(rank)))

    def _reduction(
        self, opts: Any, tensors: Tensors, kind: Any = dist.AllreduceOptions
    ) -> tuple[Any, Callable[[], None] | None]:
        """Returns the options of a reduction among those who are present, and what makes a mean of its sum: a mean is
        over all ranks, because the absent ones' samples are among the present ones'.
        """
        opts = kind() if opts is None else opts
        if self.is_whole or opts.reduceOp != dist.ReduceOp.AVG:
            return opts, None
        opts.reduceOp = dist.ReduceOp.SUM

        def divide() -> None:
            for tensor in tensors:
                tensor.div_(self.size())

        return opts, divide

    def _place_of(self, rank: int) -> int:
        """Returns the real rank of one of this group's; the first one stands in for an absent one."""
        return self.members.index(rank) if rank in self.members else 0

    def _pass(
        self,
        tensors: Tensors,
        result: Any,
        call: Callable[[Any], Any],
        after: Callable[[], None] | None = None,
        alone: Callable[[], None] | None = None,
    ) -> Work:
        real = self._real
        if real is not None:
            try:
                return Swallowed(self, call(real.of(tensors[0].device)), result, after)
            except RuntimeError as error:
                if not self.fail(error):
                    raise
        elif alone is not None:
            alone()
        return Done(result)

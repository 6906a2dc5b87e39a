"""The process group that torch, DDP and the script see stays the same while the real group behind it changes.

The group's size and rank never change. Each collective is passed to the real group of the present ranks. A failure is
swallowed if a loop checks whether a step was made. The failed collective and all later ones then return at once, with
whatever their tensors contain, until there is a real group again. So a backward pass ends, and the step isn't made.

Absent ranks count as zero in a reduction. In a gather, the lowest present rank's values are put in their places.
Collectives in which each rank has its own part (messages to one rank, all-to-all) need all ranks. They raise if a rank
is absent, and a script that uses them can't continue.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, Work
from torch.futures import Future

from trainloop.continuing import start
from trainloop.continuing.real import Real
from trainloop.continuing.start import BACKEND

#: How often a waiting thread checks whether the collective was abandoned.
_LOOK_AGAIN = timedelta(milliseconds=20)

Tensors = list[torch.Tensor]
#: Typed as Any, because torch's stubs also describe other forms of the methods than torch itself calls.
Base: Any = ProcessGroup


class Done(Work):
    """This is the finished work of a skipped collective."""

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
    """This is a running collective of the real group whose failure only the group learns of, if it is swallowed."""

    def __init__(
        self,
        group: Group,
        work: Any,
        device: torch.device,
        result: Any,
        after: Callable[[], None] | None,
        instead: Callable[[], None] | None,
        *,
        is_simple: bool,
    ) -> None:
        """`after` is called once after success, `instead` once after a failure."""
        super().__init__()
        self._group, self._work, self._result, self._after, self._instead = group, work, result, after, instead
        self.uses = group.uses
        self._devices: list[Any] = [device] if device.type != "cpu" else []
        # NCCL's collectives are awaited on a stream. Gloo doesn't allow a second wait for a message. Gloo's
        # reduce_scatter consists of several collectives, and only `wait` observes the end of all of them.
        self._can_be_given_up = is_simple and device.type == "cpu"
        self._future: Future[Any] | None = None
        self._over = threading.Lock()  # taken when the collective ends or is abandoned, and never released
        self._given_up = False

    def wait(self, timeout: timedelta | None = None) -> bool:
        try:
            if self._can_be_given_up and self._group.swallows():
                self._group.begun(self)
                self._wait(timeout)
            elif timeout:
                self._work.wait(timeout)
            else:
                self._work.wait()
            if not self._given_up:
                self._finish()
        except RuntimeError as error:
            if not self._fail(error):
                raise
        self._group.ended(self)
        return True

    def _wait(self, timeout: timedelta | None) -> None:
        """Wait until the collective has ended or was abandoned. As in torch's C++, a timeout of zero means none."""
        until = time.monotonic() + timeout.total_seconds() if timeout else math.inf
        while not self._given_up:
            if self._work.is_completed():
                self._work.wait()
                return
            if time.monotonic() > until:
                raise RuntimeError(f"a collective didn't end within {timeout}")
            # If the collective fails, the loop's next pass raises its error.
            with suppress(RuntimeError):
                self._work.wait(_LOOK_AGAIN)

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        return True

    def synchronize(self) -> None:
        self._work.synchronize()

    def get_future(self) -> Future[Any]:
        if not self._group.swallows():
            future: Future[Any] = self._work.get_future()
            return future  # torch's own future; DDP raises its error
        if self._future is None:
            # The future has the device, so that work that needs the result waits on the device.
            self._future = Future[Any](devices=self._devices)
            self._group.begun(self)
            self._work.get_future().add_done_callback(self._done)
        return self._future

    def _done(self, finished: Future[Any]) -> None:
        if self._over.acquire(blocking=False):
            try:
                finished.value()
                self._finish()
            except RuntimeError as error:
                self._fail(error)
            self._resolve()

    def give_up(self, error: Exception) -> None:
        """Abandon the collective. The group has broken, and nothing accesses the collective's tensors any more."""
        if not self._work.is_completed() and self._over.acquire(blocking=False):
            self._fail(error)
            self._given_up = True
            self._resolve()

    def _resolve(self) -> None:
        self._group.ended(self)
        if self._future is not None:
            self._future.set_result(self._result)

    def _source_rank(self) -> int:
        return int(self._work._source_rank())

    def _finish(self) -> None:
        after, self._after = self._after, None
        if after is not None:
            after()

    def _fail(self, error: Exception) -> bool:
        """Report a failure to the group; returns whether it is swallowed."""
        if not self._group.fail(error, self.uses):
            return False
        instead, self._instead = self._instead, None
        if instead is not None:
            instead()
        return True


class Group(Base):  # type: ignore[misc]
    """This group passes collectives on to the real group. `ranks` are its global ranks, which include this rank."""

    def __init__(
        self,
        rank: int,
        ranks: Sequence[int],
        failed: Callable[[Exception], bool],
        hindered: Callable[[str], None],
        swallows: Callable[[], bool],
    ) -> None:
        """`failed` is called when a collective has failed, and returns whether the failure is swallowed.

        `swallows` returns whether a failure would be swallowed. `hindered` is called with a reason why the script can't
        continue.
        """
        super().__init__(rank, len(ranks))
        self.ranks = tuple(ranks)
        self._own, self._failed, self._hindered, self.swallows = rank, failed, hindered, swallows
        self._names = ["", ""]
        #: The number of real groups used so far, by which a late failure is attributed to the right one.
        self.uses = 0
        #: The real group; None if this rank is alone, or its real group has broken.
        self._real: Real | None = None
        #: The present ranks in ascending order, as numbers within this group.
        self.members: tuple[int, ...] = ()
        self._under_way = set[Swallowed]()
        self._given_up = 0  # `uses` of the newest real group that was abandoned

    def use(self, real: Real, members: Sequence[int]) -> None:
        """Pass later collectives on to `real`, which consists of the ranks `members`."""
        self.uses += 1
        self.members, self._real = tuple(members), real

    def leave(self) -> Real | None:
        """Drop the real group; returns this group's reference to it."""
        real, self._real = self._real, None
        return real

    def fail(self, error: Exception, uses: int) -> bool:
        """Handle a failed collective of the real group numbered `uses`.

        Returns whether the failure is swallowed, in which case later collectives are skipped.
        """
        if self._real is not None and uses == self.uses and self._failed(error):
            self._real = None
        return self._real is None or uses != self.uses

    def begun(self, work: Swallowed) -> None:
        """Record that this collective has begun and may be awaited."""
        self._under_way.add(work)
        if work.uses <= self._given_up:
            work.give_up(RuntimeError("the group has broken"))

    def ended(self, work: Swallowed) -> None:
        self._under_way.discard(work)

    def give_up(self, error: Exception, uses: int) -> None:
        """Fail the collectives that are still under way in the closed real group numbered `uses` or in earlier ones."""
        self._given_up = max(self._given_up, uses)
        for work in list(self._under_way):
            if work.uses <= uses:
                work.give_up(error)

    @property
    def is_alone(self) -> bool:
        """Returns whether there is no real group, so that collectives are skipped."""
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
        # If it were gloo's or NCCL's name, torch would expect this group to contain a gloo or NCCL group.
        return BACKEND

    def setGroupName(self, name: str) -> None:
        self._names[0] = name

    def setGroupDesc(self, name: str) -> None:
        self._names[1] = name

    def getGroupName(self) -> str:
        return self._names[0]

    def getGroupDesc(self) -> str:
        return self._names[1]

    def abort(self) -> None:
        if (real := self.leave()) is not None:
            real.end()

    def shutdown(self) -> None:
        self.leave()

    # Collectives, under torch's names.

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
        # A barrier is a reduction of one number, because NCCL's own barrier needs to know a device.
        number = torch.zeros(1)
        return self._pass([number], [number], lambda real: real.allreduce([number], dist.AllreduceOptions()))

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        self.barrier().wait()

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        gathered = [[each[member] for member in self.members] for each in outputs]
        filled, alone = self._filled(outputs), _own(outputs, inputs)
        return self._pass(inputs, outputs, lambda real: real.allgather(gathered, inputs), filled, alone)

    def all_gather_single(self, output: torch.Tensor, value: torch.Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [value])

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        places = [list(output.view(-1).chunk(self.size())) for output in outputs]
        return self._each(self.allgather, places, [value.reshape(-1) for value in inputs])

    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        return self._each(self.allgather, [list(places) for places in zip(*outputs, strict=True)], inputs)

    _allgather_base, allgather_into_tensor_coalesced = all_gather_single, all_gather_single_coalesced

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> Work:
        if self._real is not None and opts.rootRank not in self.members:
            return Done(outputs)  # the rank that would receive the values is absent
        opts.rootRank = self._place_of(opts.rootRank)
        gathered = [[each[member] for member in self.members] for each in outputs]
        filled, alone = self._filled(outputs), _own(outputs, inputs)
        return self._pass(inputs, outputs, lambda real: real.gather(gathered, inputs, opts), filled, alone)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> Work:
        if self._real is not None and opts.rootRank not in self.members:
            raise RuntimeError(f"nobody has what rank {self.ranks[opts.rootRank]} scatters, because it is lost")
        opts.rootRank = self._place_of(opts.rootRank)
        sent = [[each[member] for member in self.members] for each in inputs]
        return self._pass(outputs, outputs, lambda real: real.scatter(outputs, sent, opts))

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> Work:
        opts, after = self._reduction(opts, outputs, dist.ReduceScatterOptions)
        sent = [[each[member] for member in self.members] for each in inputs]
        alone = _own([outputs], [each[self._own] for each in inputs])
        return self._pass(
            outputs, outputs, lambda real: real.reduce_scatter(outputs, sent, opts), after, alone, is_simple=False
        )

    def reduce_scatter_single(self, output: torch.Tensor, value: torch.Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [value], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        parts = [list(value.reshape(-1).chunk(self.size())) for value in inputs]
        return self._each(self.reduce_scatter, [output.view(-1) for output in outputs], parts, opts)

    _reduce_scatter_base, reduce_scatter_tensor_coalesced = reduce_scatter_single, reduce_scatter_single_coalesced

    def _each(self, collective: Callable[..., Work], outputs: list[Any], inputs: list[Any], *opts: Any) -> Work:
        """Run a collective once for each tensor in the lists, because some backends don't support several tensors."""
        works = [collective([output], [value], *opts) for output, value in zip(outputs, inputs, strict=True)]
        for work in works[:-1]:
            work.wait()
        return works[-1]

    # Collectives that need all ranks.

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        self._need_all("all_to_all")
        return self._pass(inputs, outputs, lambda real: real.alltoall(outputs, inputs, dist.AllToAllOptions()))

    def all_to_all_single(
        self, output: torch.Tensor, value: torch.Tensor, takes: list[int], gives: list[int], opts: Any = None
    ) -> Work:
        self._need_all("all_to_all")
        opts = dist.AllToAllOptions()
        return self._pass([value], output, lambda real: real.alltoall_base(output, value, takes, gives, opts))

    alltoall_base = all_to_all_single

    def send(self, tensors: Tensors, target: int, tag: int) -> Work:
        self._need_all("send")
        return self._pass(tensors, tensors, lambda real: real.send(tensors, target, tag), is_message=True)

    def recv(self, tensors: Tensors, source: int, tag: int) -> Work:
        self._need_all("recv")
        return self._pass(tensors, tensors, lambda real: real.recv(tensors, source, tag), is_message=True)

    def recv_anysource(self, tensors: Tensors, tag: int) -> Work:
        self._need_all("recv")
        return self._pass(tensors, tensors, lambda real: real.recv_anysource(tensors, tag), is_message=True)

    def _need_all(self, what: str) -> None:
        if not start.messages.own:
            self._hindered(f"it uses {what}, in which each rank has a part that no other can take")
        if self._real is not None and not self.is_whole:
            raise RuntimeError(f"{what} needs all ranks, and not all are present")

    def _filled(self, outputs: list[Tensors]) -> Callable[[], None] | None:
        """Returns a function that fills the absent ranks' places after a gather; None if all ranks are present."""
        if self.is_whole or not self.members:
            return None

        def fill() -> None:
            for each in outputs:
                for number, place in enumerate(each):
                    if number not in self.members:
                        place.copy_(each[self.members[0]])

        return fill

    def _reduction(
        self, opts: Any, tensors: Tensors, kind: Any = dist.AllreduceOptions
    ) -> tuple[Any, Callable[[], None] | None]:
        """Returns the options of a reduction among the present ranks, and a function to call after it, or None.

        If a mean is requested and ranks are absent, the reduction is a sum, and the function divides it by the number
        of all ranks, because the present ranks process the absent ranks' samples.
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
        """Returns a rank's number in the real group; 0 if the rank is absent."""
        return self.members.index(rank) if rank in self.members else 0

    def _pass(
        self,
        tensors: Tensors,
        result: Any,
        call: Callable[[Any], Any],
        after: Callable[[], None] | None = None,
        alone: Callable[[], None] | None = None,
        *,
        is_message: bool = False,
        is_simple: bool = True,
    ) -> Work:
        real, device = self._real, tensors[0].device
        if real is not None:
            try:
                work = call(real.of(device))
                is_simple = is_simple and not is_message
                if device.type == "cpu":
                    real.begun(work, has_end=is_simple)
                return Swallowed(self, work, device, result, after, alone, is_simple=is_simple)
            except RuntimeError as error:
                # When a collective is called, gloo raises only if an argument is bad, but NCCL also raises if a peer is
                # lost. Messages can raise for a lost peer with either.
                if not is_message and device.type == "cpu":
                    raise
                if not self.fail(error, self.uses):
                    raise
        if alone is not None:
            alone()
        return Done(result)


def _own(outputs: list[Tensors], inputs: Tensors) -> Callable[[], None]:
    """Returns a function that puts this rank's own value in all places; it is called if a collective is skipped."""

    def alone() -> None:
        for each, own in zip(outputs, inputs, strict=False):
            for place in each:
                place.copy_(own)

    return alone

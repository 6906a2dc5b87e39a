"""The present ranks form a group again, in their own processes, and send the state to the ranks that lack it.

They meet in a store that the lowest living rank serves at the attempt's address and port. Ranks connect only when all
have arrived. So if a rank dies before that, the other ranks needn't wait for a timeout, because they stop waiting when
the next attempt is assigned. A rank whose unit (`membership`) is incomplete waits for an attempt in which the unit is
complete.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store

from trainloop.continuing import start
from trainloop.continuing.group import Group
from trainloop.continuing.membership import NO_STATE, Membership, exchange
from trainloop.continuing.orders import Order, Orders
from trainloop.continuing.real import Listener, Real
from trainloop.continuing.start import GroupLostError
from trainloop.continuing.store import Client, Server
from trainloop.recovery.encoding import Encoded, decode

#: Seconds that a rank with a broken group waits for the next attempt. If none comes, its agent stops the rank sooner.
PATIENCE = 20.0
#: Seconds that a rank waits for the other ranks of an attempt, each of which first ends its current step, evaluation
#: or save. A newer attempt ends the waiting.
WAITING = 600.0
#: Seconds that ranks get to connect after they have met.
MEETING = 15.0
_LOOK_AGAIN, _RARELY = 0.002, 0.05


class Continuing:
    """This class holds a process's groups, and moves them from one attempt to the next."""

    def __init__(
        self, rank: int, size: int, attempt: int, file: Path, *, joins: bool, accelerator: str, timeout: timedelta
    ) -> None:
        """`accelerator` is the backend for the accelerator's tensors, or "" if there is no accelerator."""
        self.rank, self.size, self.joins = rank, size, joins
        self.groups = list[Group]()
        self.membership = Membership(rank, None if joins else Order(attempt, size))
        #: Whether a loop checks after each step that the step was made. Failures are swallowed only if it does.
        self.able = False
        #: Whether a loop already uses this object.
        self.has_loop = False
        #: Called, from any thread, before collectives are ended after a fault, so that work queued behind them changes
        #: nothing.
        self.hold: Callable[[], None] = lambda: None
        #: Whether any rank of this rank's unit had no state, or an old state, when the ranks met.
        self.anew = joins
        self._unit = 1
        #: Whether this rank is committed to a step with its unit, and the order that must wait until the step ends.
        self.commits = False
        self._put_off: Order | None = None
        #: Why this rank's groups prevent it from continuing; None if they don't.
        self.obstacle: str | None = None
        self._accelerator, self._timeout = accelerator, timeout
        #: The device, which is set when a group is formed, because a script may choose it after creating the group.
        self._device: torch.device | None = None
        self._reals = list[Real]()
        self._forming: Sequence[Real] | None = None
        #: The store in which the group's ranks met; None if they began together, and so met in torch's store.
        self.store: Client | None = None
        #: Why the group broke, as text, because an exception's traceback would keep the real group alive.
        self._error = ""
        self._changed = threading.Condition()
        self._orders = Orders(file, rank, self._received)

    @property
    def broken(self) -> bool:
        """Returns whether the current step won't be made."""
        return self.membership.broken

    @property
    def attempt(self) -> int:
        """Returns the attempt of this rank's group, or 0 if the rank has no group."""
        return 0 if self.membership.group is None else self.membership.group.attempt

    @property
    def present(self) -> tuple[int, ...]:
        """Returns the ranks that train now.

        Until this rank has joined, returns all ranks, so that it rehearses its usual part of a step.
        """
        group = self.membership.group
        return tuple(range(self.size)) if group is None else group.present

    def create(self, store: Store, ranks: Sequence[int]) -> Group:
        """Returns a new group of these global ranks, which include this rank.

        Ranks that begin together connect. A joining rank is alone until it joins.
        """
        group = Group(ranks.index(self.rank), ranks, self._failed, self._hindered, lambda: self.able)
        if not self.joins:
            members = [rank for rank in ranks if rank in self.present]
            of_group = store if self.store is None else PrefixStore(self._name(group), self.store)
            real = self._connected(of_group, members, self._timeout)
            self._reals.append(real)
            group.use(real, [ranks.index(rank) for rank in members])
        self.groups.append(group)
        return group

    def form(
        self,
        step: int,
        give: Callable[[], Any],
        load: Callable[[Any], None],
        stopped: Callable[[], bool] = lambda: False,
        idle: Callable[[Order], None] = lambda order: None,
    ) -> int:
        """Leave the group, and form the newest attempt's group; returns the step after which all ranks continue.

        `step` is the last step that this rank has made, or `NO_STATE`. `give` returns the state after that step, which
        consists of plain values and tensors, and `load` loads another rank's state. While the rank's unit is
        incomplete, `idle` is called repeatedly with the order. Raises GroupLostError if no attempt comes, ValueError if
        no complete unit has the state, and SystemExit if the rank was replaced or `stopped` returns true.
        """
        self.committed()
        while True:
            if self.membership.broken:
                self._leave()  # takes some time, and so does the operator
            order, self._device = self._next(stopped, idle), self._current_device()
            self._finish_together()
            self._leave()
            try:
                newest, state = self._form(order, step, give)
            except (RuntimeError, OSError) as error:  # torch's stores and groups raise RuntimeErrors
                self._error = str(error)
                self._end(self._forming or ())
                self._forming = None
                continue
            if state is not None:
                load(state)
            with self._changed:
                self.membership = self.membership.formed(order)
                broken = self.membership.broken
            if broken:
                self._break("a rank was lost while the group formed", *self._in_use())
            self.joins = False
            return newest

    def _form(self, order: Order, step: int, give: Callable[[], Any]) -> tuple[int, Any]:
        with self._changed:
            self.membership = self.membership.meets(order)
        store, reals = self._unless(lambda: self.superseded(order), lambda: self._connect(order))
        self._forming = reals
        if self.superseded(order):
            raise RuntimeError(f"attempt {order.attempt} was followed by another one")
        newest, state = self._agree(reals[0], order, step, give)
        for group, real in zip(self.groups, reals, strict=True):
            members = [place for place, rank in enumerate(group.ranks) if rank in order.present]
            group.use(real, members)
        self.store, self._reals, self._forming = store, list(reals), None
        return newest, state

    def _next(self, stopped: Callable[[], bool], idle: Callable[[Order], None]) -> Order:
        """Wait for the next attempt in which this rank's unit is complete."""
        until = time.monotonic() + PATIENCE
        with self._changed:
            while (order := self.membership.forms()) is None:
                if self.membership.is_over() or stopped():
                    raise SystemExit(143)
                newest = self.membership.newest
                if newest is not None and self.rank in newest.idle:
                    if not newest.present:
                        lost = ", ".join(map(str, sorted(newest.absent)))
                        raise ValueError(f"each replica has lost a rank ({lost}), so none is whole")
                    until = time.monotonic() + PATIENCE
                    idle(newest)
                if time.monotonic() > until and not self.joins:
                    why = "the group has broken, and no next attempt was assigned"
                    raise GroupLostError(f"{why}: {self._error}")
                self._changed.wait(0.1)
            return order

    def _finish_together(self) -> None:
        """Wait until no rank needs the group any longer, unless it is broken.

        When a sender has finished, NCCL's messages may still be on their way.
        """
        if self._accelerator and self._reals and not self.membership.broken:
            gloo = self._reals[0].of(torch.device("cpu"))
            try:
                self._unless(lambda: self.membership.broken, lambda: _reduce(gloo, torch.zeros(1)))
            except RuntimeError as error:
                self._failed(error)

    def _unless(self, is_over: Callable[[], bool], do: Callable[[], Any]) -> Any:
        """Returns the result of `do`.

        `do` runs in a thread, because gloo can't be interrupted and can miss a broken connection (see `real`). Raises
        RuntimeError if `do` fails, or as soon as `is_over` returns true. In the latter case, the thread runs on until
        `do` times out.
        """
        made, problem = list[Any](), list[str]()

        def run() -> None:
            try:
                made.append(do())
            except Exception as error:
                problem.append(str(error))
            with self._changed:
                self._changed.notify_all()

        threading.Thread(target=run, daemon=True, name="forming").start()
        with self._changed:
            while not problem and not made:
                if is_over():
                    raise RuntimeError("the ranks continue in another way")
                self._changed.wait(0.05)
        if problem:
            raise RuntimeError(problem[0])
        return made.pop()

    def _connect(self, order: Order) -> tuple[Client, list[Real]]:
        until = time.monotonic() + WAITING
        present = order.present
        store = self.serve_or_find(order, until)
        if store.add("here", 1) == len(present):
            store.set("all", "here")
        store.wait(["all"], timedelta(seconds=max(0.0, until - time.monotonic())))
        if self.superseded(order):
            raise RuntimeError("another attempt has followed")
        reals = []
        for group in self.groups:
            members = [rank for rank in group.ranks if rank in present]
            of_group = PrefixStore(self._name(group), store)
            reals.append(self._connected(of_group, members, timedelta(seconds=MEETING)))
        return store, reals

    def _name(self, group: Group) -> str:
        """Returns a group's name, which is the same on all members of the group, and unique among their groups."""
        before = self.groups[: self.groups.index(group)] if group in self.groups else self.groups
        return f"{group.ranks}-{sum(each.ranks == group.ranks for each in before)}"

    def _connected(self, store: Store, members: Sequence[int], timeout: timedelta) -> Real:
        """Returns the real group of these global ranks; their order decides their numbers in the group."""
        listener, place = Listener(), members.index(self.rank)
        store.set(f"address-{place}", listener.address)
        addresses = store.multi_get([f"address-{each}" for each in range(len(members))])
        return Real(
            store,
            place,
            len(members),
            listener=listener,
            addresses=[each.decode() for each in addresses],
            backend=self._accelerator,
            device=self._device,
            timeout=timeout,
            waits=self._timeout,
        )

    def serve_or_find(self, order: Order, until: float) -> Client:
        """Returns the store of an attempt, which the lowest living rank serves.

        Raises OSError if the store isn't reachable by `until`.
        """
        serves, pause = self.rank == order.server, _LOOK_AGAIN
        while True:
            try:
                server = Server(order.port) if serves else None
                return Client(order.master, order.port, order.attempt, server)
            except OSError:
                if self.superseded(order) or time.monotonic() > until:
                    raise
                time.sleep(_RARELY if serves else pause)
                pause = min(1.1 * pause, _RARELY)

    def _agree(self, real: Real, order: Order, step: int, give: Callable[[], Any]) -> tuple[int, Any]:
        """Returns the newest step that any rank has made, and the state after it if this rank lacks it."""
        gloo, is_over = real.of(torch.device("cpu")), partial(self.superseded, order)
        steps = torch.full((len(order.present),), NO_STATE, dtype=torch.int64)
        steps[order.present.index(self.rank)] = step
        self._unless(is_over, lambda: _reduce(gloo, steps))
        by_rank = dict(zip(order.present, steps.tolist(), strict=True))
        newest, sources = exchange(by_rank, order.unit)
        own_unit = [has for rank, has in by_rank.items() if rank // order.unit == self.rank // order.unit]
        self.anew = any(has == NO_STATE or has < newest - 1 for has in own_unit)
        lacking, data = [rank for rank, source in sources.items() if source == self.rank], torch.empty(0)
        if lacking:
            encoded = Encoded(give())
            data = torch.empty(encoded.size, dtype=torch.uint8)
            encoded.copy_into(data, torch._foreach_copy_)

        def give_and_take() -> torch.Tensor | None:
            for rank in lacking:
                _send(gloo, order.present.index(rank), data)
            own = sources.get(self.rank)
            taken = None if own is None else _receive(gloo, order.present.index(own))
            # Loading replaces a rank's own state. So the rank first waits until all ranks that lack one have received
            # one.
            _reduce(gloo, torch.zeros(1))
            return taken

        taken = self._unless(is_over, give_and_take)
        return newest, None if taken is None else decode(taken)

    def superseded(self, order: Order) -> bool:
        newest = self.membership.newest
        return newest is not None and newest.attempt > order.attempt

    def train_by(self, unit: int) -> None:
        """Set the size of a unit: the number of neighbouring ranks that hold a state together.

        Call this before the rank can continue.
        """
        with self._changed:
            self._unit, newest = unit, self.membership.newest
            self.membership = replace(self.membership, newest=newest and replace(newest, unit=unit))

    def commit(self) -> None:
        """Commit to the step, because this rank has received everything from other units.

        The step will be made unless the rank's own unit is lost. Raises GroupLostError if the group has broken.
        """
        with self._changed:
            start.check()
            self.commits = self._unit > 1

    def committed(self) -> None:
        """End the commitment, whether or not the step was made, and process an order that had to wait for that."""
        with self._changed:
            self.commits, order = False, self._put_off
            self._put_off = None
        if order is not None:
            self._received(order)

    def _received(self, order: Order) -> None:
        order = replace(order, unit=self._unit)
        with self._changed:
            if self.commits and self.rank in order.present:
                self._put_off = order
                return
            before = self.membership
            self.membership = before.received(order)
            news = self.membership is not before
            breaks = self.membership.broken and not before.broken and self.able
            # Read the current groups before the lock is released, because the main thread may then form the next ones.
            lost = self._in_use()
            self._changed.notify_all()
        if breaks:
            self._error = f"attempt {order.attempt} continues without a rank of this group"
            self._break(self._error, *lost)
        if news:
            self._end(self._forming or ())

    def _failed(self, error: Exception) -> bool:
        """Record, in any thread, that a collective has failed; returns whether the failure is swallowed."""
        if not self.able:
            return False
        with self._changed:
            first = not self.membership.broken
            self.membership = self.membership.failed()
            if first:
                self._error = str(error)
            lost = self._in_use()
        self.hold()  # even if another thread was first, because that thread may not have called `hold` yet
        if first:
            self._break(str(error), *lost)
            shown = str(error).partition("\n")[0][:200]
            print(f"rank {self.rank}: a collective failed, so this step isn't made: {shown}", flush=True)
        return True

    def _hindered(self, why: str) -> None:
        self.obstacle = self.obstacle or why

    def _in_use(self) -> tuple[list[tuple[Group, int]], list[Real]]:
        return [(group, group.uses) for group in self.groups], list(self._reals)

    def _break(self, why: str, groups: Sequence[tuple[Group, int]], reals: Sequence[Real]) -> None:
        """End all collectives, so that nobody waits for them any longer, and let no group begin another one."""
        self.hold()  # first, because a device may be waiting for a collective that ends
        for group, uses in groups:
            group.fail(RuntimeError(why), uses)
        for real in reals:
            real.close()
        for group, uses in groups:
            group.give_up(RuntimeError(why), uses)

    def _leave(self) -> None:
        """Drop the real groups; when the last reference to a real group is gone, it no longer accesses memory."""
        for group in self.groups:
            group.leave()
        for real in self._reals:
            real.let_go()
        self._reals = []

    def _end(self, reals: Sequence[Real]) -> None:
        for real in reals:
            real.end()

    def _current_device(self) -> torch.device | None:
        """Returns the calling thread's accelerator. In all threads but the main one, that is the first accelerator."""
        present = torch.accelerator.current_accelerator() if self._accelerator else None
        return present and torch.device(present.type, torch.accelerator.current_device_index())


def _reduce(gloo: Any, tensor: torch.Tensor) -> None:
    gloo.allreduce(tensor, dist.ReduceOp.MAX).wait()


def _send(gloo: Any, place: int, data: torch.Tensor) -> None:
    _wait_for(gloo.send([torch.tensor([data.numel()])], place, 0))
    _wait_for(gloo.send([data], place, 0))


def _receive(gloo: Any, place: int) -> torch.Tensor:
    length = torch.zeros(1, dtype=torch.int64)
    _wait_for(gloo.recv([length], place, 0))
    data = torch.empty(int(length), dtype=torch.uint8)
    _wait_for(gloo.recv([data], place, 0))
    return data


def _wait_for(message: Any) -> None:
    """Wait for a message. Without this timeout, gloo would use the one for connecting, which is shorter."""
    message.wait(timedelta(seconds=WAITING))

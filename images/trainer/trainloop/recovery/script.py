"""With three lines, a script that has its own loop over steps keeps its state, and continues from it:

    from trainloop.recovery import Recovery

    recovery = Recovery(model, optimizer)
    for step in recovery.steps(10_000):
        ...

The state is kept in memory, and on a disk if TRAINMASTER_CHECKPOINT_DIR names one. Progress is reported, and an agent
that diagnoses a hang gets the stacks. SIGTERM ends the run after a step and a save, with exit code 143.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trainloop.continuing import start
from trainloop.continuing.start import GroupLostError
from trainloop.distributed.diagnostics import announce, dump_stacks_on_signal
from trainloop.progress import Progress
from trainloop.recovery import generators, sealed
from trainloop.recovery.agreement import Found, Group, Questions, newest
from trainloop.recovery.continuation import passes, seed, share
from trainloop.recovery.encoding import Encoded, EncodingError
from trainloop.recovery.keeper import EXIT_STOPPED, Keeper, Kept
from trainloop.recovery.place import Place, memory_directory
from trainloop.recovery.script_state import ScriptState, Stateful
from trainloop.recovery.steps import Made
from trainloop.recovery.tensors import on_device, state_of

#: The number of states that stay on the disk, the newest ones.
_KEPT_ON_DISK = 2


if TYPE_CHECKING:
    from trainloop.recovery.continuation import Continuation


class Recovery:
    """This class keeps and restores the state of a script's model, optimizer and other named objects.

    Every rank makes a Recovery after the process group exists, with the model as it is trained: the bare model, the
    model in DistributedDataParallel (also with ZeroRedundancyOptimizer), or a model sharded by `fully_shard`. `others`
    are a scheduler, a scaler and the like, under names of your choice. `every` is the number of steps between two
    states on the disk. They are written to the directory `path`, or else to TRAINMASTER_CHECKPOINT_DIR, or else not at
    all.

    A run that continues equals an uninterrupted run bit for bit if its data depends only on the step. With more than
    two ranks, DistributedDataParallel sums gradients in its first step in another order than in later steps.
    `rehearsal` removes that difference too: the first step after a recovery is made twice, and counts once.

    Under Trainmaster, ranks that survive a fault continue in their processes if the script takes its micro-batches from
    `parts`, which are then shared out again. With `fewer_samples` they continue even without `parts`, but without the
    lost ranks' samples, until the lost ranks are back.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        every: int = 1000,
        path: str | os.PathLike[str] | None = None,
        rehearsal: bool = False,
        fewer_samples: bool = False,
        **others: Stateful,
    ) -> None:
        self.step = self._first = 0
        self._source: int | None = None  # the attempt that the run continues from
        self._model, self._optimizer, self._others = model, optimizer, others
        keep_group(model)
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        self._place = Place.from_environment(dist.get_rank() if ranks > 1 else 0, ranks)
        self._group = Group(self._place, host_group() if ranks > 1 else None)
        self._questions = Questions(self._group)
        self._every, self._rehearses = every, rehearsal and ranks > 2
        named = path or os.environ.get("TRAINMASTER_CHECKPOINT_DIR")
        self._disk = Path(named) if named else None
        self._state = ScriptState(model, optimizer, others)
        self._device = self._state.device
        self._divided = ranks > 1 and self._state.is_part
        announce(self._device, self._place.rank, self._place.local_rank, self._group.gather)
        memory = memory_directory(self._say)
        self._keeper: Keeper | None = None
        if all(self._group.gather(memory is not None)) and memory is not None:
            alone = not any(on_device(state_of(each)) for each in others.values())
            state, optimizers = self._state, [self._state.own_optimizer]
            kept = Kept(state.host, state.whole, state.buffers, optimizers, alone, self._divided)
            self._keeper = Keeper(self._place, memory, self._device, kept, self._group, self._say)
        self._progress = Progress.from_environment(self._place.rank, self._place.local_ranks)
        self._progress.join()
        self._continuation: Continuation | None = None
        if (continuing := start.continuing()) is not None:
            # Imported only by ranks that can continue.
            from trainloop.recovery.continuation import Continuation, obstacle_of

            is_kept = self._keeper is not None
            self._continuation = Continuation(
                continuing,
                optimizer,
                fewer_samples=fewer_samples,
                scales=any(isinstance(each, torch.amp.GradScaler) for each in others.values()),
                obstacle=obstacle_of(optimizer, others, kept=is_kept, divided=self._divided),
                hold=self._keeper.hold if self._keeper is not None else lambda: None,
                progress=self._progress,
            )
        #: The seed of `parts`, which is the same on all ranks.
        self._state.seed = int(self._group.gather(torch.initial_seed())[0])
        self._reported: dict[str, float] = {}
        self._stop_requested = False
        #: The number of optimizer steps in this step of the loop, and in each earlier step; None if those differed.
        self._updates = 0
        self._updates_each: int | None = 0
        self._excepthook = sys.excepthook

    def steps(self, total: int) -> Iterator[int]:
        """Yields the numbers of the remaining steps, up to `total`.

        A step is finished when the next one is requested. A step that a fault has cut off is yielded again. If any rank
        has received SIGTERM, all ranks raise SystemExit(143) after the same step: the current one, or a later one. The
        delay is at most ten steps, and about a quarter of a second unless a single step takes longer.
        """
        continuation, joined = self._continuation, False
        if continuation is not None and continuation.joins:
            self._watch_updates()
            for _ in range(continuation.rehearsals):
                yield self.step + 1
            continuation.was_left_out(0)
            self._form()
            joined = True
        else:
            found = self._resume()
            if found is not None and self._rehearses and self.step < total:
                yield self.step + 1
                self._restore(found)
            del found
            self._watch_updates()
        self._begin(joined=joined)
        formed = joined
        try:
            while self.step < total or formed:
                stop = 0
                if not formed:
                    known = 0 if continuation is None else continuation.known
                    asking = self._questions.begin(self.step + 1, int(self._stop_requested), known)
                    yield self.step + 1
                    stop, formed = self._close(asking, total)
                # When a group has formed, all its ranks get here after the same step, by whichever way.
                due = bool(stop) or self.step == total or self.step % self._every == 0
                formed = due and self._save_or_form()
                if stop and not formed and self.step < total:
                    self._end(finished=False)
                    raise SystemExit(EXIT_STOPPED)
            self._end(finished=True)
        finally:
            if continuation is not None:
                continuation.over()

    def _close(self, asking: Callable[[], list[int]] | None, total: int) -> tuple[int, bool]:
        """Close the yielded step.

        Returns whether all ranks are asked to stop after the step (1) or not (0), and whether a new group has formed.
        """
        continuation = self._continuation
        if continuation is not None and continuation.was_left_out(self._updates):
            self._updates = 0
            self._form(left_out=True)
            return 0, True
        updates = self._count_updates()
        self.step += 1
        self._finished()
        self._progress.step(self.step, totalSteps=total, **self._reported)
        if continuation is not None:
            if self._keeper is not None and (obstacle := self._keeper.obstacle) is not None:
                continuation.hinder(obstacle)
            continuation.made(updates)
        stop, newest = (0, 0) if asking is None else asking()
        if self.step == total and continuation is not None and self._is_made():
            # No rank leaves before all ranks have made the last step, because it may have to send its state to a rank
            # that hasn't.
            with suppress(GroupLostError):
                self._group.gather(None)
        # DDP reorders its buckets in the second step, so this rank must have made two. A joining rank has already made
        # them alone.
        is_ready = self.step >= min(self._first + 2, total)
        if is_ready and continuation is not None and (continuation.broken or newest > continuation.attempt):
            self._form()
            return 0, True
        return stop, False

    def parts(self, count: int | None = None) -> Iterator[int]:
        """Yields the micro-batches of this step that this rank computes, as numbers below `count`.

        By default each rank computes one part. The parts of lost ranks are distributed among the other ranks. Gradients
        are reduced in the backward pass of a rank's last part. Each part uses its own random numbers.

        DistributedDataParallel divides the sum over all parts by the number of ranks. So if there are n times as many
        parts as ranks, divide each part's loss by n. Raises ValueError if there are fewer parts than ranks.
        """
        rank, ranks, step = self._place.rank, self._place.ranks, self.step + 1
        present = range(ranks) if self._continuation is None else self._continuation.shares()
        own = share(count or ranks, ranks, present, rank)
        yield from passes(self._model, own, lambda part: seed(self._state.seed, step, part, self._device))

    def made(self) -> None:
        """Record that this step has made its last change.

        Later work until the next step, such as averaging a loss over the ranks or an evaluation, changes no state, so a
        fault there costs no step. Call this if the script has `others` and its ranks wait for each other during such
        work. Without `others`, the optimizer's step counts as the last change.
        """
        if self._keeper is not None:
            self._keeper.made(self.step + 1)

    def report(self, **numbers: float) -> None:
        """Report numbers of this step, such as `loss` or any other metric, with the next progress report."""
        self._reported = numbers

    def save(self) -> None:
        """Write the state to the disk, if one is set. A failing write doesn't stop the run. Collective."""
        if self._continuation is None or not self._continuation.joins:
            with suppress(GroupLostError):  # `steps` then forms a new group and repeats the step if needed
                self._save()

    def _save(self) -> None:
        if self._disk is None:
            return
        if self._continuation is not None and not self._is_made():
            raise GroupLostError("the device hasn't made this step")
        place, disk = self._place, self._disk
        parts, part = place.part(self._divided)
        own = {"random": generators.capture(self._device), "buffers": self._state.buffers.named()}
        ranks = self._group.gather(b"".join(Encoded(own).chunks()).hex())
        writes = part == place.rank if self._continuation is None else self._continuation.writes
        if not writes:
            return
        self._progress.enter("checkpoint")
        try:
            disk.mkdir(parents=True, exist_ok=True)
            state = Encoded({"state": self._state.whole(self._state.host()), "ranks": ranks})
            sealed.write(disk, state, place.job, place.attempt, self.step, parts, part)
            here, _ = sealed.sealed_files(disk, place.job)
            mine = sorted((seal for seal in here if (seal.part, seal.parts) == (part, parts)), reverse=True)
            for seal in mine[_KEPT_ON_DISK:]:
                sealed.remove(here[seal])
        except (OSError, EncodingError) as error:
            self._say(f"the state of step {self.step} can't be written to {disk}: {error}")
        self._progress.enter("train")

    def _resume(self) -> Found | None:
        """Restore the newest state that any rank has; returns it.

        Raises RuntimeError if there are states but none fits this model, because nobody would expect the run to start
        from scratch then.
        """
        self._progress.enter("setup", message="looking for a state to continue from")
        memory = self._keeper.directory if self._keeper else None
        problems = list[str]()
        for found in newest(self._place, self._group, self._say, memory, self._disk):
            problem = None
            try:
                self._restore(found)
            except (ValueError, KeyError, TypeError, RuntimeError, AttributeError) as error:
                problem = f"step {found.step} of attempt {found.attempt} isn't of this model: {error!r}"
                self._say(f"state passed over: {problem}")
            problems = [text for text in self._group.gather(problem) if text]
            if not problems:
                self.step, self._source = found.step, found.attempt
                if self._place.rank == 0:
                    self._say(f"continues after step {found.step}, of attempt {found.attempt}")
                return found
        if problems:
            raise RuntimeError(f"no state can be restored: {problems[0]}")
        return None

    def _restore(self, found: Found) -> None:
        [part] = found.parts if len(found.parts) == 1 else [self._place.rank]
        if self._divided != (found.count > 1):
            raise ValueError(f"it is in {found.count} part(s), for {self._place.ranks} rank(s)")
        self._state.load({**found.state(part), "buffers": found.buffers(self._place.rank)})
        own = found.own_of(self._place.rank)
        if own is not None:
            generators.restore(own["random"], self._device)
        elif found.step:
            self._say("the random state of this rank was lost with its pod: it keeps the one that it has")

    def _form(self, *, left_out: bool = False) -> None:
        """Form the next attempt's group, in which ranks that lack the newest step receive it.

        If the last step was `left_out`, or if the device hasn't made it, the host's changes in that step are reverted.
        """
        assert self._continuation is not None
        drawn, made = generators.packed(self._device), None
        if self._keeper is not None and not self._continuation.joins:
            made = self._keeper.newest(left_out=left_out)
            if left_out or made.step != self.step:
                self._go_back(made)
        self.step = self._continuation.form(self.step, self._state.give, self._take, lambda: self._stop_requested)
        if self._keeper is not None and made is not None and made.step < self.step:
            # Other ranks had made a step that this rank hadn't, but this rank has drawn the step's random numbers.
            own = self._keeper.own(self.step)
            generators.restore(generators.as_tensor(drawn) if own is None else own["random"], self._device)
        self._place = replace(self._place, attempt=self._continuation.attempt)
        self._questions.restart(self.step)
        if self._keeper is not None:
            self._keeper.continue_as(self._continuation.attempt, self.step)

    def _save_or_form(self) -> bool:
        """Save; returns whether a fault has interrupted the save and a new group has formed."""
        try:
            self._save()
        except GroupLostError:
            self._form()
            return True
        return False

    def _is_made(self) -> bool:
        """Wait for the device; returns whether it has made the host's last step."""
        return self._keeper is None or self._keeper.is_made(self.step)

    def _finished(self) -> None:
        # If a rank is lost, the exchange about a snapshot fails. The next group counts the snapshot's steps again.
        with suppress(GroupLostError):
            if self._keeper is not None:
                self._keeper.finished(self.step)

    def _go_back(self, made: Made) -> None:
        """Restore the state that the host had after the step `made`."""
        assert self._keeper is not None
        self.step = made.step
        self._state.put_back(made.host)
        self._keeper.put_back_own(made.step)

    def _take(self, saved: dict[str, Any]) -> None:
        """Load another rank's state, which isn't written to memory until it is complete."""
        if self._keeper is not None:
            self._keeper.changing()
        self._state.load(saved)

    def _begin(self, *, joined: bool) -> None:
        self._progress.begin(self.step)
        self._first = -2 if joined else self.step
        self._questions.restart(self.step)
        if "TRAINMASTER_ATTEMPT" in os.environ:
            dump_stacks_on_signal(self._place.rank)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._request_stop)
        if self._keeper is not None:
            keeper = self._keeper
            if not joined:
                keeper.begin(self.step, self._source)
            sys.excepthook = self._on_error
            atexit.register(keeper.save)  # for a script that ends early, even if it catches the error

    def _watch_updates(self) -> None:
        self._optimizer.register_step_pre_hook(self._updating)
        self._optimizer.register_step_post_hook(self._updated)
        if self._continuation is not None:
            register_optimizer_step_pre_hook(self._another_updating)

    def _another_updating(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if self._continuation is not None and optimizer not in (self._optimizer, self._state.own_optimizer):
            self._continuation.hinder("another optimizer than Recovery's makes steps")

    def _updating(self, _optimizer: object, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        if self._continuation is not None:
            if any(each is not None for each in (*arguments[1:], *options.values())):
                self._continuation.hinder("its optimizer's step is given a closure, which computes gradients within it")
            if self._continuation.leaves_out():
                return
        if self._keeper is not None:
            self._keeper.changing()

    def _updated(self, *_: object) -> None:
        if self._continuation is not None and self._continuation.left_out:
            return
        self._updates += 1
        # If each earlier step had the same number of updates, the update with that number is this step's last change.
        if not self._others and self._updates == self._updates_each and self._keeper is not None:
            # torch's optimizers draw no random numbers. If the script draws some later, they are kept when the step
            # ends.
            self._keeper.made(self.step + 1, as_before=True)

    def _count_updates(self) -> int:
        """Returns the number of optimizer steps in the loop's step that just ended."""
        updates = self._updates
        if self._updates_each == 0:
            self._updates_each = self._updates
        elif self._updates != self._updates_each:
            self._updates_each = None
        self._updates = 0
        return updates

    def _end(self, *, finished: bool) -> None:
        self._progress.enter("finish")
        sys.excepthook = self._excepthook
        if self._keeper is not None:
            atexit.unregister(self._keeper.save)
            if finished:
                self._keeper.end()
            else:
                self._keeper.save()
                self._keeper.close()

    def _on_error(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        assert self._keeper is not None
        self._keeper.save()
        self._excepthook(kind, error, trace)

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        self._stop_requested = True

    def _say(self, sentence: str) -> None:
        print(f"rank {self._place.rank}: {sentence}", flush=True)


def host_group() -> dist.ProcessGroup | None:
    """Returns a group for collectives on the host; None, which means the default group, if that one offers them."""
    return None if "cpu:gloo" in str(dist.get_backend_config()) else dist.new_group(backend="gloo")


_groups = list[dist.ProcessGroup]()


def keep_group(model: nn.Module) -> None:
    """Keep DistributedDataParallel's process group until the interpreter ends, to prevent a deadlock.

    DDP's destructor holds Python's lock. If DDP has the last reference to the group, as after `destroy_process_group`,
    the destructor joins gloo's threads. They may need the lock to release objects that a collective kept from its
    caller (torch 2.13). In a rank that starts cold, torch's own modules have another reference, because DDP imports
    them while the group exists. In a rank that was forked with these modules imported, there is none.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        _groups.append(model.process_group)

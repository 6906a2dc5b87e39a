"""A run continues in its own processes when ranks are lost, and lets new ranks join, if the agent can assign attempts.

A step is made only after all data from other ranks has arrived and is valid. So when the group breaks, each present
rank has the state after the last step that it has made, or receives the state from a rank that is a step ahead. The
ranks form the group of the next attempt (`continuing`) and divide the lost ranks' samples among themselves. Then they
repeat the interrupted step with the same samples, so that the batch is unchanged. An interrupted evaluation or save is
repeated too.

A joining rank builds the model and everything else, makes a few passes without using the results, and waits. The other
ranks sum numbers in each step, and the sum reports a newer attempt. So all of them let the rank join after the same
step.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from trainloop import seeding
from trainloop.checkpoints import storage
from trainloop.checkpoints.checkpointer import Checkpointer
from trainloop.checkpoints.memory import NothingInMemory
from trainloop.checkpoints.surviving import InMemory
from trainloop.config import Config
from trainloop.continued.strategies import obstacle, spread, strategy_of
from trainloop.continued.world import ContinuingWorld, Idle, Summed, end_idle, joined
from trainloop.continuing import start
from trainloop.distributed.device import choose_device
from trainloop.distributed.world import World, environment
from trainloop.distributed.world import joined as joined_for_good
from trainloop.errors import TrainingError
from trainloop.loader import Fetched
from trainloop.metrics import Window
from trainloop.optimization.optimizer import UpdateRule
from trainloop.parallel.balance import Balancer, build_balancer
from trainloop.recovery import generators
from trainloop.recovery.tensors import cloned, local
from trainloop.resources import fit_threads
from trainloop.state import restore_stateful
from trainloop.tasks import Task
from trainloop.trainer import Agreed, Hook, Trainer

#: Passes that a joining rank makes alone. In the second forward pass DDP reorders its buckets, which is collective.
_REHEARSALS = 2


def ways(
    config: Config,
) -> tuple[Callable[..., AbstractContextManager[World]], Callable[[Config, Any], Trainer]]:
    """Returns the context in which ranks join the group, and the trainer's class.

    If the run can continue in its processes, these are the ones that support it.
    """
    _, size, local_rank, _ = environment()
    if size == 1:
        return joined_for_good, Trainer
    reason = obstacle(config, choose_device(config.distributed.device, local_rank))
    if reason is None:
        return joined, ContinuedTrainer

    def trainer(config: Config, world: World) -> Trainer:
        made = Trainer(config, world)
        made.progress.cannot_continue(reason)
        return made

    return joined_for_good, trainer


class ContinuedTrainer(Trainer):
    """This trainer trains like `Trainer`, but continues from one attempt into the next."""

    world: ContinuingWorld

    def __init__(self, config: Config, world: ContinuingWorld, task: Task | None = None) -> None:
        super().__init__(config, world, task)
        self.continuing = world.continuing
        self.continuing.hold = self.memory.hold
        self.strategy = strategy_of(config.parallel.strategy, self.replica, self.optimizer, self.world)
        self.continuing.train_by(self.strategy.unit)
        self.continuing.obstacle = self.continuing.obstacle or self.strategy.obstacle
        self.memory.changing = partial(self._change, self.memory.changing)  # type: ignore[method-assign]
        self._summed: Summed | None = None  # the newest step's sum
        self._cut_off = False  # whether a pass has begun and hasn't ended
        self._hooks_due = False  # whether the step is made, but `after_step` hasn't been called
        #: The last step after which this rank has evaluated, and the last one after which all ranks have.
        self._evaluated = self._all_evaluated = -1
        self._all_saved = -1
        self._began = time.time()
        self._idle = Idle(self.continuing, self.progress)

    def prepare(self) -> None:
        if not self.world.is_alone:
            super().prepare()
            return
        config = self.config  # without resuming, because the state comes from the ranks that train
        anew = config.checkpoint.model_copy(update={"resume": False, "start_from": None})
        self.config, memory = config.model_copy(update={"checkpoint": anew}), self.memory
        self.memory = NothingInMemory()  # until this rank has a state
        super().prepare()
        self.config, self.memory = config, memory
        self.progress.enter("setup", message="rehearses, to join the ranks that train")
        for _ in range(_REHEARSALS):
            self.rehearse()

    def _train(self) -> bool:
        again = self.memory.resumed
        if self.world.is_alone:
            if not isinstance(self.memory, InMemory):
                raise TrainingError(f"this rank can't join the others: {self.memory.obstacle}")
            self.progress.ready()
            if self._form():
                return True
            again = True
        else:
            self._say_whether_able()
        while True:
            try:
                return self._go_on(again)
            except Exception as error:
                # Garbage from a broken collective can cause any error, for example in a hook's own collectives.
                if not self.continuing.broken:
                    raise
                print(f"rank {self.world.rank}: interrupted after step {self.state.step}: {error!r}", file=sys.stderr)
            if self._form():
                return True
            again = True

    def _go_on(self, again: bool) -> bool:
        """Train until the run ends. If `again` is true, an evaluation or a save may be due before the next step."""
        # If this attempt hasn't made a step yet, the evaluation and the checkpoint may already exist.
        between = self.memory.resumed or self.state.step > self._started_at
        stop = again and between and self._between_steps()
        while self.state.step < self.state.total and not stop:
            stop = self.train_step()
            if not stop and self._others_join():
                self._settle()
                if self._form():
                    return True
            stop = stop or self._between_steps()
        while True:
            stopped = self._end(stopped=stop or self.evaluate())
            # No rank leaves before all ranks get here, because it may have to form a group with a rank that joins.
            last = self.world.summing([])
            last()
            if stopped or not last.newer:
                if not stopped and self.world.is_main:
                    end_idle(self.continuing)
                return stopped
            if self._form():
                return True

    def _others_join(self) -> bool:
        """Returns whether a newer attempt begins after this step; the result is the same on all ranks."""
        if self.continuing.able and self.memory.obstacle is not None:
            self._say_whether_able()
        # Ranks that began together need two steps before another rank can join, because DDP reorders its buckets.
        return self._summed is not None and self._summed.newer and self.state.step > self._started_at + 1

    def _agree(self, fetched: Fetched) -> Agreed:
        summed = super()._agree(fetched)
        assert isinstance(summed, Summed)
        self._summed = summed
        # The group is checked only after the backward pass, because DDP expects one after each forward pass.
        return summed.unchecked

    def _forward_backward(self, rule: UpdateRule, fetched: Fetched, agreed: Agreed) -> torch.Tensor:
        self.continuing.committed()
        self._fetched = fetched
        loss = super()._forward_backward(rule, fetched, agreed)
        if self._reads() and self.world.device.type != "cpu":
            torch.accelerator.synchronize()  # because the device's numbers are read now, and may be garbage
        if self.judge.loss is not None and self.world.replicas > 1:
            mean = self.judge.loss()  # computed now, because it needs all replicas, and the later work only this one
            self.judge.loss = lambda: mean
        self.continuing.commit()  # raises, before the step is judged or made, if the gradients may be garbage
        return loss

    def _passes(self, rule: UpdateRule, fetched: Fetched, agreed: Agreed) -> torch.Tensor:
        self._cut_off = True
        loss = super()._passes(rule, fetched, agreed)
        self._cut_off = False
        return loss

    def _settle(self) -> bool:
        if self.judge.verdict is not None:
            self.judge.verdict.read()
            start.check()
        return super()._settle()

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        super()._step(optimizer)
        self.strategy.stepped(is_last=self.objectives is None)

    def _advance(self, *arguments: Any) -> None:
        super()._advance(*arguments)
        self.continuing.committed()
        self.strategy.advanced()
        known = (self._evaluated, self._all_evaluated, self._all_saved)
        # After a rollback, steps up to these numbers may be repeated, so the numbers don't count then.
        self._evaluated, self._all_evaluated, self._all_saved = (n if n < self.state.step else -1 for n in known)
        self._hooks_due = bool(self.after_step)

    def _call(self, hooks: list[Hook]) -> None:
        if hooks is self.after_step:
            self._hooks_due = False
        super()._call(hooks)
        if hooks:
            start.check()

    def evaluate(self) -> bool:
        if self._all_evaluated == self.state.step:
            return False
        if self._evaluated == self.state.step:
            # This rank has evaluated and written the results, but others haven't evaluated, and need this rank's part.
            self._enter("evaluate", self.config.evaluation.seconds)
            self.replica.settle(self.optimizer)
            stopped = self.evaluator.evaluate(lambda: self._stop_requested) is None
            self._enter("train")
        else:
            stopped = super().evaluate()
        self._evaluated = self.state.step
        return stopped

    def save(self) -> None:
        if self._all_saved != self.state.step:
            super().save()

    def _form(self) -> bool:
        """Form the next attempt's group and prepare to continue; returns whether this rank was stopped instead."""
        while True:
            try:
                whole = self._make_whole()
                step = self.strategy.number(self.state.step, whole=whole)
                self.continuing.form(step, self._give, self._load, lambda: self._stop_requested, self._idle)
            except ValueError as error:
                sentence = f"{error}: none can continue"
                self.progress.cannot_continue(sentence)
                raise TrainingError(sentence) from error
            except SystemExit as ended:
                if self._stop_requested:
                    return True
                if not ended.code:
                    self.memory.end()
                raise
            try:
                self._begin_anew()
                return False
            except Exception:
                if not self.continuing.broken:
                    raise

    def _make_whole(self) -> bool:
        """Return to the end of the last step that was made; returns whether this rank has the state at that point."""
        if self.world.is_alone:
            return False
        whole = self._hooks_due or not self.memory.half_made
        if self.strategy.interrupt(self.state.updates, whole=whole):
            self._advance(self._fetched, "step")
        if self._hooks_due and not self.strategy.unfinished:
            try:
                self._hooks_due = False
                super()._call(self.after_step)
                self.memory.finished()
            except Exception as error:
                if not self.continuing.broken:
                    raise
                print(f"rank {self.world.rank}: a hook after step {self.state.step}: {error!r}", file=sys.stderr)
        self._random = generators.packed(self.world.device)
        self.optimizer.zero_grad(set_to_none=True)
        self.exchange.skip()
        self.judge.loss = None
        if self._cut_off:
            # `_cut_off` is still set if a collective within a pass, for example the task's, has failed.
            self._cut_off = False
            self.strategy.drop_pass(self.rehearse)
        if self.continuing.broken and self.replica.wrapped and self.state.step <= self._started_at + 1:
            # A joining rank has already reordered its buckets, but this rank may have made too few steps to do so.
            for _ in range(_REHEARSALS):
                self.rehearse()
        if not self.memory.half_made and not self.strategy.unfinished:
            self.memory.go_back()
        return not self.memory.half_made

    def _change(self, changing: Callable[[], None]) -> None:
        """Let the optimizer's step begin, unless the group has broken after the passes."""
        if self.continuing.commits:
            start.check()
        changing()

    def _give(self) -> dict[str, Any]:
        """Returns the state, to be sent to a rank that lacks it; if the state is sharded, this rank's part of it."""
        return {
            "model": local(self.replica.model.state_dict()),
            "optimizer": self.strategy.optimizer_state(),
            "unfinished": self.strategy.unfinished,
            "train": vars(self.state).copy(),
            "anomaly": (self.objectives or self.detector).state(),
            "stateful": {name: local(each.state_dict()) for name, each in self.stateful.items()},
            "weights": list(self.balancer.weights),
            "startedAt": self._started_at,
            "resumed": self.memory.resumed,
            "evaluated": self._evaluated,
            "verdict": [self.judge.can_return, self.judge.rollbacks],
            "parents": [self.checkpoints.parent, self.checkpoints.parents] if self.checkpoints else [None, {}],
        }

    def _load(self, state: dict[str, Any]) -> None:
        self.memory.changing()
        self.strategy.load(state["model"], state["optimizer"], unfinished=state["unfinished"])
        self._hooks_due = state["unfinished"] and bool(self.after_step)
        self.state.load(cloned(state["train"]))
        (self.objectives or self.detector).load(state["anomaly"])
        kept = {name: each.state_dict() for name, each in self.stateful.items()}
        restore_stateful(self.stateful, spread(cloned(state["stateful"]), kept), self.log.warn)
        self.balancer.weights = state["weights"]
        self._started_at, self.memory.resumed = state["startedAt"], state["resumed"]
        self._evaluated = state["evaluated"]
        self.judge.can_return, self.judge.rollbacks = state["verdict"]
        if self.checkpoints:
            self.checkpoints.parent, self.checkpoints.parents = state["parents"]
        if self.strategy.seeds_again(anew=self.continuing.anew):
            seeding.seed_all(self.config.seed.value, seeding.RANK, self.world.data_rank, self.state.step)
        else:
            # This rank hadn't made this step, but it has drawn the step's random numbers.
            own = self.memory.random_after(self.state.step)
            generators.restore(generators.as_tensor(self._random) if own is None else own, self.world.device)
        if not state["unfinished"]:
            self.memory.loaded()

    def _begin_anew(self) -> None:
        """Prepare for the first step in a new group, in which all ranks are at the same step."""
        attempt, present, state = self.continuing.attempt, self.world.present, self.state
        os.environ["TRAINMASTER_ATTEMPT"] = str(attempt)
        self.continuing.able = self.continuing.obstacle is None  # the state in memory is set up below
        self._mend()
        self.progress.joined_again(state.step)
        if self.log.main != self.world.is_main:
            self.log.become(self.world.is_main)
            if self.world.is_main and self._evaluated == state.step and not self._is_written():
                self._evaluated = -1  # because the rank that should have written the results is lost
        self.log.attempt = attempt
        self._share_out(present)
        self.loader.start(state.position, state.place)
        # The window restarts, because the numbers that lost ranks collected since the last line are gone.
        self._window, self._ended = Window(), None
        nodes, absent = self.world.gather(platform.node()), sorted(set(range(self.world.size)) - set(present))
        if not absent:
            fit_threads(nodes.count(platform.node()), self.config.data.workers)
        [evaluated] = self.world.sum([self._evaluated == state.step])
        self.memory.continue_as(attempt)
        self._say_whether_able()
        if evaluated == len(present):
            self._all_evaluated = state.step
        if self.checkpoints:
            self.checkpoints.find_writer()
            self._adopt_checkpoint(self.checkpoints)
        self.log.write("event", {"event": "continued", "step": state.step, "absent": absent})
        others = f" without rank(s) {', '.join(map(str, absent))}" if absent else ", with all ranks"
        self.log.info(f"continued as attempt {attempt} after step {state.step}{others}")

    def _is_written(self) -> bool:
        """Returns whether the run's metrics contain the evaluation after this step."""
        # Imported on use, because few runs need it.
        from trainloop.report import read_metrics

        lines = read_metrics(self.log.file) if self.log.file.exists() else []
        return any(line.get("kind") == "evaluation" and line.get("step") == self.state.step for line in lines)

    def _mend(self) -> None:
        """Bring all ranks' shards to the same update. This completes a step in which only weights were missing."""
        unfinished = self.strategy.unfinished
        self.strategy.mend(self.state.updates)
        if unfinished:
            if self._hooks_due:
                self._hooks_due = False
                super()._call(self.after_step)
            self.memory.loaded()

    def _share_out(self, present: Sequence[int]) -> None:
        """Divide absent ranks' samples among the present ranks, in proportion to the present ranks' own samples."""
        weights = self.balancer.weights
        everyone = len(present) == self.world.size
        self.balancer = build_balancer(self.config.balance, self.world) if everyone else Balancer(weights)
        self.balancer.weights = weights
        there = {rank // self.world.tensor for rank in present}
        self.loader.weights = [weight if rank in there else 0.0 for rank, weight in enumerate(weights)]

    def _adopt_checkpoint(self, checkpoints: Checkpointer) -> None:
        """Count this step's checkpoint as saved if all ranks know of it, or if all writers have completed it."""
        step, own = self.state.step, ""
        if checkpoints.is_writer:
            # Checkpoints from an older run don't count.
            here = [one for one in storage.survey(checkpoints.path).whole if one.step == step]
            own = here[0].name if here and here[0].created >= self._began else "none"
        known, found = zip(*self.world.gather((checkpoints.has_saved(step), own)), strict=True)
        names = {*found} - {""}
        if all(known) or (len(names) == 1 and names != {"none"}):
            self._all_saved, self.judge.can_return = step, True
            checkpoints.parent = checkpoints.parent if all(known) else names.pop()

    def _say_whether_able(self) -> None:
        reason = self.continuing.obstacle or self.memory.obstacle
        self.continuing.able = reason is None
        if reason is None:
            self.progress.able(self.continuing.attempt)
        else:
            self.progress.cannot_continue(reason)

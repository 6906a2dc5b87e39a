"""The trainer runs the training loop; `Trainer.train_step` is the algorithm, and other modules contain its parts.

Hooks extend the loop without changing its code. A hook is a function that takes the trainer, and that is added to one
of the lists `before_step`, `after_step`, `after_evaluation` and `before_save`. If a hook must keep state across a
restart (an average of the weights, a scheduler), it adds an object with `state_dict` and `load_state_dict` to
`trainer.stateful`. The state must be the same on every rank. It may contain only tensors and plain values, because a
checkpoint is read without pickle. A DTensor is saved as a complete tensor.
"""

from __future__ import annotations

import os
import platform
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import FrameType
from typing import Any

import torch

from trainloop import seeding
from trainloop.checkpoints import snapshots
from trainloop.checkpoints.checkpointer import Checkpointer
from trainloop.checkpoints.memory import NothingInMemory
from trainloop.config import Config, dump_config
from trainloop.data import RankStep, length_of
from trainloop.distributed.watchdog import Watchdog
from trainloop.distributed.world import World
from trainloop.errors import TrainingError
from trainloop.evaluation import Evaluator
from trainloop.loader import Fetched, Loader, on_device, sampler_of
from trainloop.metrics import MetricsLog, StepNumbers, Window, report_path
from trainloop.optimization.anomaly import AnomalyDetector, Decision
from trainloop.optimization.optimizer import Update, UpdateRule, build_optimizer, clip_gradients, set_rates
from trainloop.optimization.precision import Precision
from trainloop.optimization.schedule import Schedule
from trainloop.optimization.verdict import Judge
from trainloop.parallel.balance import build_balancer
from trainloop.parallel.blocks import prepared
from trainloop.parallel.communication import GradientExchange
from trainloop.parallel.gradients import compare_parameters, ghosts, recording
from trainloop.parallel.model import build_model, build_replica, delayed, divided, follow_freezing
from trainloop.progress import Progress, Section
from trainloop.recovery.place import DIRECTORY_VARIABLE
from trainloop.resources import MemoryPressure, explaining_out_of_memory, fit_threads, memory
from trainloop.state import RunState, Stateful, TrainState
from trainloop.tasks import Task, build_task, imported

# : If a smaller fraction of a run's steps made an update, a warning is logged when the run ends.
LEAST_UPDATES = 0.9
#: Decisions after which a step makes an update.
MADE = ("step", "forced")

# : Waits for all ranks. Returns three numbers: the count by which a step's loss is divided, the number of ranks that
# : were asked to stop, and the number of ranks that are short of memory.
Agreed = Callable[[], list[float]]
Hook = Callable[["Trainer"], object]


class Trainer:
    """The trainer trains a task with all ranks together. Every method is collective."""

    @explaining_out_of_memory("building the model")
    def __init__(self, config: Config, world: World, task: Task | None = None) -> None:
        if config.parallel.data or config.parallel.tensor > 1:
            world = divided(world, config.parallel)
        self.config, self.world, self.fingerprint = config, world, config.fingerprint()
        self.progress = Progress.from_environment(world.rank, world.local_size)
        self.progress.join()
        self.progress.enter("data")
        self.task = task or build_task(config.task)
        self.progress.enter("setup")
        self.checkpoints = Checkpointer.from_settings(config.checkpoint, world)
        self.report_path = report_path(config.metrics, self.checkpoints.path if self.checkpoints else None)
        self.state = TrainState()
        self.log = MetricsLog(config.metrics, self.report_path, world.is_main, self.state, self.progress)
        fit_threads(world.gather(platform.node()).count(platform.node()), config.data.workers)
        self.precision = Precision(config.precision, world)
        seeding.seed_all(config.seed.value, seeding.MODEL)
        if config.seed.deterministic:
            seeding.make_deterministic()
        dtype = self.precision.parameters
        model, values = build_model(config.parallel, self.task.model, world, dtype, self.log.info)
        model = prepared(config.blocks, model)
        self._parameters = sum(parameter.numel() for parameter in model.parameters())
        self.delayed = delayed(config.delayed, model)
        self.exchange = GradientExchange(config.communication, world.device)
        by_turns = hasattr(self.task, "objectives")
        plan = getattr(self.task, "parallel_plan", None)
        self.replica = build_replica(config.parallel, model, world, self.exchange, values, plan, by_turns=by_turns)
        self.optimizer = self.replica.spread(build_optimizer(self.task, self.replica.model, config.optimizer))
        self.evaluator = Evaluator(config.evaluation, self.task, self.replica.model, self.precision, world)
        self.detector = AnomalyDetector(config.anomaly)
        carries = bool(self.delayed.named) or config.communication.compression in ("onebit", "powersgd")
        reduced, warn = self.replica.reduced, self.log.warn
        self.judge = Judge(config.anomaly, self.precision, world, warn, reduced=reduced, carries=carries)
        # Parameters are looked up before any forward pass, because after a forward pass without a backward pass,
        # FSDP2's root holds full parameters instead of shards.
        self.trained = self.delayed.immediate(self.replica.model)
        self.objectives = None
        if by_turns:
            from trainloop.objectives import Objectives  # few tasks have them

            settings = (config.optimizer, config.anomaly)
            self.objectives = Objectives(self.task, *settings, self.replica, self.delayed, self._rate)
            self.optimizer = self.objectives.optimizer
        self.balancer = build_balancer(config.balance, world)
        self.watchdog = Watchdog(config.watchdog, world)
        self.pressure = MemoryPressure(world.device)
        self.before_step, self.after_step = list[Hook](), list[Hook]()
        self.after_evaluation, self.before_save = list[Hook](), list[Hook]()
        self.stateful: dict[str, Stateful] = {}
        for name in config.hooks:
            imported("hooks", name)(self)
        self.memory = NothingInMemory()
        if config.checkpoint.memory.enabled and os.environ.get(DIRECTORY_VARIABLE):
            from trainloop.checkpoints.surviving import build  # only runs in a pod need it

            strategy = config.parallel.strategy
            self.memory = build(self.run_state, strategy, self.log, self.checkpoints, self.after_step)
        self._stop_requested = False
        self._ended: Window | None = None  # its line is written once its numbers have arrived

    def _rate(self, update: int) -> float:
        return self.schedule.factor(update)  # the schedule exists only once the data's length is known

    @property
    def run_state(self) -> RunState:
        """Returns the stateful parts of the run."""
        history = self.objectives or self.detector
        parts = (self.replica, self.optimizer, self.precision, history, self.judge, self.delayed, self.exchange)
        return RunState(self.world, self.config.seed.value, self.state, *parts, self.stateful)

    def run(self) -> bool:
        """Trains until the run ends, and returns False. If a rank is stopped, saves and returns True on all ranks."""
        before = {number: signal.signal(number, self._request_stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            with self.watchdog, self.memory:
                self.prepare()
                return self._train()
        except TrainingError as error:
            # A warning also appears in the progress report, so that the operator can show it.
            self.log.warn(str(error))
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @explaining_out_of_memory("continuing from a checkpoint")
    def prepare(self) -> None:
        """Prepares the first step: loads the newest checkpoint, sets sizes, and starts to read data."""
        resumed, settings = False, self.config.checkpoint
        if settings.resume or settings.start_from:
            self.progress.enter("checkpoint", message="looking for a checkpoint")
            parts = (self.run_state, self.checkpoints, self.memory, self.log, self.evaluator.sample_loss)
            resumed = snapshots.resume(settings, *parts)
        if not resumed:
            seeding.seed_all(self.config.seed.value, seeding.RANK, self.world.data_rank)
        batch, seed, max_norm = self.config.batch, self.config.seed.value, self.config.optimizer.max_norm
        self.state.batch = batch.size or self.state.batch or batch.global_size(self.world.data_size)
        equal, device = self.replica.equal_passes, self.world.device
        sampler = sampler_of(self.task, self.state.batch, batch.micro_size(self.world.data_size), seed, equal, device)
        self.loader = Loader(self.config.data, self.task, sampler, self.world)
        self.state.total = self.config.steps or sampler.steps_in(self.config.epochs or 0)
        self.schedule = Schedule(self.config.schedule, self.state.total, self.state.batch)
        loss, rate = self.task.loss, self.schedule.factor
        self._rule = UpdateRule(loss, self.optimizer, self.detector, self.trained, max_norm, rate)
        if self.schedule.warmup > self.state.total:
            self.log.warn(f"schedule.warmup is {self.schedule.warmup} updates, more than all {self.state.total} steps")
        for text in self.loader.start(self.state.position, self.state.place):
            self.log.warn(text)
        if resumed:
            if (before := self.state.precision) not in ("", now := self.precision.compute):
                self.log.warn(
                    f"steps until here were computed in {before}, and are in {now} from here on: set "
                    f"precision.compute to {before} to continue as before"
                )
            self.rehearse()
        self.state.precision = self.precision.compute
        self._window, self._ended = Window(), None
        self._started_at = self.state.step
        about: dict[str, Any] = {"task": self.config.task.name, "samples": length_of(self.task.train)}
        about |= {"ranks": self.world.size, "device": self.world.device.type, "backend": self.world.backend}
        about |= {"batch": self.state.batch, "precision": self.precision.compute, "torch": torch.__version__}
        about |= {"parameters": self._parameters, "maxNorm": self.config.optimizer.max_norm}
        self.log.started(self.state.step, self.state.total, about)
        if self.config.precision.compute != self.precision.compute == "bf16":
            self.log.info("computes in bf16, with weights in fp32; precision.compute: fp32 for fp32 throughout")
        self.progress.begin(self.state.step)
        if any(map(self.evaluator.is_a_mean, self.objectives.losses if self.objectives else [self.task.loss])):
            self.log.warn("the task's loss is a mean, it seems: it must be the sum over what the task counts")
        self.memory.begin()

    def _train(self) -> bool:
        stop = self.memory.resumed and self._between_steps()
        while self.state.step < self.state.total and not stop:
            stop = self.train_step() or self._between_steps()
        return self._end(stopped=stop or self.evaluate())

    def _between_steps(self) -> bool:
        """Evaluates and saves if that is due after this step; returns whether the run should stop."""
        if self._due(self.config.evaluation.every_steps) and self.evaluate():
            return True
        if self._due(self.config.checkpoint.every_steps):
            self.save()
        return False

    @explaining_out_of_memory("making the optimizer's step")
    def train_step(self) -> bool:
        """Makes an optimizer step on the next global batch; returns whether the run should stop after it."""
        self._call(self.before_step)
        if self.config.hooks:
            follow_freezing(self.replica, self.optimizer, self.config.parallel)
        began = time.perf_counter()
        fetched = self._fetch()
        agreed = self._agree(fetched)
        at_once = self._reads()
        if self.objectives is None:
            loss, norm, rate, decision = self.update(self._rule, fetched, agreed, at_once)
        else:
            make = partial(self.update, fetched=fetched, agreed=agreed, at_once=True)
            loss, norm, rate, decision = self.objectives.update(make)
        count, stops, shorts = agreed()
        self._advance(fetched, decision)
        if not self.after_step:
            self.memory.finished()
        seconds, times = time.perf_counter() - began, self.exchange.times
        self._report(StepNumbers(loss, norm, rate, seconds, count, fetched.step, fetched.waited, times))
        if at_once or not self.judge.on_device:
            self._write_line()
        self._check_ranks(fetched)
        if shorts:
            self._relieve(int(shorts))
        self._goes_back(decision)
        if stops:
            self._settle()
        if self.after_step:  # these change the hooks' state
            self._call(self.after_step)
            self.memory.finished()
        return stops > 0

    def update(self, rule: UpdateRule, fetched: Fetched, agreed: Agreed, at_once: bool) -> Update:
        """Makes an update by `rule` unless the verdict skips it; the verdict is read `at_once` or a step later."""
        loss = self._forward_backward(rule, fetched, agreed)
        if self._settle():  # if the previous step's verdict led back to a checkpoint, this step continues from there
            loss = self._forward_backward(rule, fetched, agreed)
        self.precision.unscale(rule.optimizer)
        norm = clip_gradients(rule.parameters, rule.max_norm)
        decision = self.judge.decide(rule, self.state.step + 1, norm, at_once)
        self.memory.changing()
        rate = set_rates(rule.optimizer, rule.factor(self.state.updates))
        self._skip() if decision in ("skip", "rollback") else self._step(rule.optimizer)
        rule.optimizer.zero_grad(set_to_none=True)
        return loss, norm, rate, decision

    @explaining_out_of_memory("evaluating")
    def evaluate(self) -> bool:
        """Evaluates the model if there is an evaluation set; returns whether a stop request cut the evaluation off."""
        if self.task.evaluation is None or length_of(self.task.evaluation) == 0:
            return False
        self._enter("evaluate", self.config.evaluation.seconds)
        self.replica.settle(self.optimizer)
        results = self.evaluator.evaluate(lambda: self._stop_requested)
        if results is None:
            return True
        self.state.results = results
        self._call(self.after_evaluation)
        self.log.write("evaluation", {"step": self.state.step, **results})
        if self.log.main:
            self.progress.report(**{f"eval_{name}": value for name, value in results.items()})
        shown = "  ".join(f"{name} {value:.4f}" for name, value in results.items())
        self.log.info(f"evaluation at step {self.state.step}  {shown}")
        if (best := self.config.checkpoint.best) and best not in results:
            self.log.warn(f"checkpoint.best is {best!r}, which isn't among the results: none is kept as the best")
        self._enter("train")
        return False

    @explaining_out_of_memory("saving a checkpoint")
    def save(self) -> None:
        """Saves a checkpoint if a directory is configured. A failure is reported, and training continues."""
        if self.checkpoints is None:
            return
        self._settle()
        self._enter("checkpoint", self.config.checkpoint.seconds)
        began = time.perf_counter()
        self._call(self.before_save)
        parts = (self.fingerprint, dump_config(self.config), self.evaluator.sample_loss)
        problems = snapshots.save(self.run_state, self.checkpoints, self.log.attempt, *parts)
        self.judge.can_return |= not problems
        stall = time.perf_counter() - began
        self._window.stalled += stall
        self.log.write("checkpoint", {"step": self.state.step, "stallSeconds": stall, "problems": problems})
        self._enter("train")
        for problem in problems:
            self.log.warn(f"{problem}; training continues without it")

    def _call(self, hooks: list[Hook]) -> None:
        for hook in hooks:
            hook(self)

    def _fetch(self) -> Fetched:
        self.watchdog.at("fetching data", self.state.step)
        fetched = self.loader.fetch()
        if fetched.warning:
            self.log.warn(fetched.warning)
        return fetched

    def _agree(self, fetched: Fetched) -> Agreed:
        """Starts to sum the step's counts over all ranks; returns a function that waits for the sums."""
        own = fetched.batches[: len(fetched.batches) - fetched.step.padding]
        counted = sum(self.task.count(batch) for batch in own)
        short = self.state.step % self.config.metrics.every_steps == 0 and self.pressure.rises()
        return self.world.summing([counted / self.world.tensor, float(self._stop_requested), float(short)])

    def _relieve(self, ranks: int) -> None:
        """Empties the caches of all ranks together, because some of them are short of memory."""
        self.pressure.relieve()
        here = f", here: {self.pressure.reason}" if self.pressure.reason else ""
        self.log.warn(f"{ranks} of {self.world.size} rank(s) are short of memory{here}; all have emptied their caches")

    @explaining_out_of_memory("in the forward and backward pass")
    def _forward_backward(self, rule: UpdateRule, fetched: Fetched, agreed: Agreed) -> torch.Tensor:
        """Accumulates the gradient of the mean loss over the global batch.

        Returns this rank's own loss. The mean of this loss over ranks is the global mean loss.
        """
        self.watchdog.at("forward and backward", self.state.step, waits=True)
        self.exchange.begin(self.state.step, self.precision.scale() if self._logs(self.state.step + 1) else None)
        first = self.state.step == self._started_at and self.config.gradients.ghosts != "off"
        recorder = recording(self.replica.model) if first else nullcontext(set[str]())
        with recorder as reached, self.compiling(fetched.step):
            loss = self._passes(rule, fetched, agreed)
        self.exchange.end()
        if first:
            self._check_for_ghosts(reached | rule.elsewhere)
        return loss

    def compiling(self, step: RankStep) -> AbstractContextManager[Any]:
        """Returns the context of a step's passes.

        An epoch's shorter last step is compiled for its own shapes. Otherwise one graph for varying shapes would
        replace the graph of all other steps.
        """
        shorter = step.all_samples < self.state.batch and self.loader.sampler.steady
        if not shorter or not self.config.blocks.compile:
            return nullcontext()
        return torch._dynamo.config.patch(automatic_dynamic_shapes=False)  # type: ignore[no-any-return]

    def rehearse(self) -> None:
        """Makes a pass over a coming micro-batch and discards its results.

        DDP reorders its buckets in the first forward pass after the first backward pass. So without this pass a resumed
        run would reduce its first step in other chunks than an uninterrupted run, and with four ranks (not with two)
        sums would differ. Blocks are also compiled in this pass, for the shapes of most steps, as in an uninterrupted
        run. If an evaluation or an epoch's last step came first, all other steps would get a graph for varying shapes.
        """
        if self.objectives or not (self.replica.wrapped or self.config.blocks.compile):
            return
        model, device, random = self.replica.model, self.world.device, seeding.capture(self.world.device)
        buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
        self.exchange.begin(self.state.step)
        if (fetched := self.loader.peek()) is not None:
            with self.compiling(fetched.step), self.replica.synchronising(last=True):
                with self.precision.autocast():
                    loss = self.task.loss(self.replica.forward, on_device(fetched.batches[0], device))
                loss.backward()  # type: ignore[no-untyped-call]
        self.exchange.skip()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        seeding.restore(random, device)

    def _passes(self, rule: UpdateRule, fetched: Fetched, agreed: Agreed) -> torch.Tensor:
        total: torch.Tensor | None = None
        for index, batch in enumerate(fetched.batches):
            last = index == len(fetched.batches) - 1
            with self.replica.synchronising(last):
                with self.precision.autocast():
                    loss = rule.loss(self.replica.forward, on_device(batch, self.world.device))
                if total is None:
                    # The sum was started before the forward pass, and is needed from here on.
                    count = max((self.exchange.wait(agreed) if self.world.size > 1 else agreed())[0], 1.0)
                if index >= len(fetched.batches) - fetched.step.padding:
                    loss = loss * 0.0
                loss = loss * (self.world.data_size / count)
                total = loss.detach() if total is None else total + loss.detach()
                if last and self.judge.active:
                    self.judge.loss = self.world.averaging(total)  # in parallel with the backward pass
                self.precision.backward(loss)
        assert total is not None
        return total

    def _settle(self) -> bool:
        """Writes the last step's line and applies the device's pending verdict.

        Returns whether the run has returned to a checkpoint. Call this when the next forward and backward passes are
        queued, so that the device has work in the meantime.
        """
        self._write_line()
        decision = self.judge.settle(self.detector, self.state.step)
        self.state.updates += decision in MADE
        return self._goes_back(decision)

    def _goes_back(self, decision: Decision | None) -> bool:
        """Returns to a checkpoint if the decision is `rollback`; returns whether it did."""
        if decision == "rollback":
            from trainloop.checkpoints.restoring import roll_back  # few runs need it

            most = self.config.anomaly.rollbacks
            roll_back(self.run_state, self.checkpoints, self.memory, self.log, most)
        return decision == "rollback"

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        with self.delayed.stepping(self.state.step + 1, self.config.optimizer.max_norm) as sent:
            self.precision.step(optimizer, self.judge.verdict.left_out if self.judge.verdict else None)
        self.exchange.times.sent += sent

    def _skip(self) -> None:
        """Reverts everything that an odd step's gradients have changed."""
        self.precision.skip()
        self.exchange.skip()

    def _advance(self, fetched: Fetched, decision: Decision | None) -> None:
        self.state.step += 1
        self.state.updates += decision in MADE
        self.state.position, self.state.place = fetched.step.position, dict(fetched.step.place)
        self.exchange.times.sent += self.replica.after_step(self.state.step)

    def _logs(self, step: int) -> bool:
        """Returns whether a line is due after `step`."""
        return step in (self._started_at + 1, self.state.total) or step % self.config.metrics.every_steps == 0

    def _reads(self) -> bool:
        """Returns whether this step's numbers are needed now: for an evaluation, a checkpoint, or the run's end."""
        step, others = self.state.step + 1, (self.config.evaluation.every_steps, self.config.checkpoint.every_steps)
        due = step == self.state.total or any(each and step % each == 0 for each in others)
        return due or self.objectives is not None

    def _check_for_ghosts(self, reached: set[str]) -> None:
        problem = ghosts(self.replica.model, reached, self.world)
        if problem and self.config.gradients.ghosts == "fail" and not self.config.parallel.find_unused_parameters:
            raise TrainingError(problem)
        if problem:
            self.log.warn(problem)

    def _check_ranks(self, fetched: Fetched) -> None:
        """Compares parameters that must be the same on all ranks, and adapts the ranks' shares to their speed."""
        every = self.config.gradients.checksum_every
        if every and self.world.size > 1 and self.replica.replicated and self.state.step % every == 0:
            compare_parameters(self.replica.model, self.world)
        weights = self.balancer.add(self.exchange.times, fetched.step.samples)
        if weights is not None:
            self.loader.weights = weights
            self.log.write("event", {"event": "shares", "step": self.state.step, "shares": weights})

    def _report(self, numbers: StepNumbers) -> None:
        """Reports a finished step; its numbers leave the device only when a line is due."""
        self._window.steps.append(numbers)
        self.progress.wait_for_data(numbers.waited)
        self.progress.step(self.state.step, stepSeconds=numbers.seconds)
        if self._logs(self.state.step):
            self._window.end(self.state)
            self._ended, self._window = self._window, Window()

    def _write_line(self) -> None:
        """Writes the line if one is due."""
        window, self._ended = self._ended, None
        if window is None:
            return
        line, own_norm = window.line(self.world, length_of(self.task.train))
        line.update(memory(self.world.device))
        line.update(self.objectives.line() if self.objectives else {})
        if peak := self.config.metrics.peak_tflops:
            # A token needs 6 x parameters operations (Kaplan et al. 2020). Other units are counted like tokens.
            line["mfu"] = 6 * self._parameters * line["termsPerSecond"] / (peak * 1e12 * self.world.size)
        self.log.step(window.state.step, window.state.total, line)
        reported = {name: line[name] for name in ("epoch", "loss", "etaSeconds")}
        reported |= {"totalSteps": window.state.total, "learningRate": line["lr"], "gradNorm": own_norm}
        # The line covers all ranks, but the progress file covers only this rank, because its readers sum over ranks.
        reported["samplesPerSecond"] = line["samplesPerSecond"] * window.share / self.world.tensor
        # With FSDP2, computing includes waits for other ranks, so the time isn't reported.
        reported["computeSeconds"] = None if self.replica.equal_passes else line["rankComputeSeconds"][self.world.rank]
        # The main rank reports the line's other numbers as metrics.
        others = {name: value for name, value in line.items() if isinstance(value, int | float) and name != "lr"}
        self.progress.step(window.state.step, **({**others, **reported} if self.log.main else reported))

    def _due(self, every: int | None) -> bool:
        """Returns whether an action that runs every `every` steps is due now; the end of the run isn't included."""
        return every is not None and self.state.step % every == 0 and self.state.step < self.state.total

    def _end(self, stopped: bool) -> bool:
        self.save()
        self._enter("finish", self.config.checkpoint.seconds)
        for problem in self.checkpoints.close() if self.checkpoints else []:
            self.log.warn(problem)
        step, updates = self.state.step, self.state.updates
        if updates < LEAST_UPDATES * step:
            self.log.warn(f"only {updates} of {step} steps made an update, the others were left out")
        if stopped:
            saved = "saved" if self.checkpoints else "nothing saved, no checkpoint directory is set"
            self.log.info(f"stopped by a signal after step {step}, {saved}")
            self.log.write("event", {"event": "stopped", "step": step, "updates": updates})
        else:
            self._export()
            self.log.write("result", {"step": step, "updates": updates, **self.state.results})
            self.progress.result(self.state.results)
            self.memory.end()
        return stopped

    def _export(self) -> None:
        """Exports the trained weights alone, in a form that other programs read.

        Raises TrainingError if neither a checkpoint nor the weights could be saved, because the run has failed then.
        """
        if self.checkpoints is None:
            return
        left = self.checkpoints.has_saved(self.state.step)
        if self.config.checkpoint.export:
            # Imported here, because not every attempt reaches the run's end.
            from trainloop.checkpoints.export import export_weights

            left |= export_weights(self.replica.model, self.checkpoints, self.log.warn)
        if not any(self.world.gather(left)):
            raise TrainingError(
                f"nothing of the run's end could be saved in {self.checkpoints.path}: make room there, and start it "
                "again"
            )

    def _enter(self, section: Section, seconds: float | None = None) -> None:
        self.watchdog.at(section, self.state.step, limit=seconds, waits=True)
        self.progress.enter(section, seconds=seconds)

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        """Handles SIGTERM and Ctrl-C by requesting a stop after this step, or during an evaluation."""
        self._stop_requested = True

"""A run's state is kept in memory by `recovery`, and restored from there, to the bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainloop import seeding
from trainloop.checkpoints.memory import NothingInMemory
from trainloop.checkpoints.snapshots import TrainState
from trainloop.checkpoints.storage import Checkpoint
from trainloop.distributed.world import World, has_agent
from trainloop.errors import Diverged
from trainloop.optimization.anomaly import AnomalyDetector
from trainloop.recovery import generators
from trainloop.recovery.agreement import Found, Group, newest
from trainloop.recovery.keeper import Keeper, Kept
from trainloop.recovery.place import Place, memory_directory
from trainloop.recovery.slots import Buffers
from trainloop.recovery.tensors import OptimizerState, as_now, cloned, load, on_host, state_of

if TYPE_CHECKING:
    from trainloop.trainer import Trainer


def build(trainer: Trainer) -> NothingInMemory:
    """Returns what keeps the state of `trainer` in memory; nothing does where that can't be done to the bit."""
    config, world = trainer.config, trainer.world
    directory = memory_directory(_say(world.rank))
    method = config.communication.compression
    unsuited = {
        "communication.local_steps": config.communication.local_steps > 1,
        "delayed.pattern": config.delayed.pattern is not None,
        f"communication.compression {method}": method in ("powersgd", "onebit"),
    }
    reasons = [name for name, found in unsuited.items() if found]
    if reasons:
        trainer.log.info(f"no state is kept in memory with {' and '.join(reasons)}: it is different on every rank")
    # All ranks, or none.
    if not all(world.gather(directory is not None)) or reasons or directory is None:
        return NothingInMemory()
    if world.size > 1 and config.parallel.strategy != "ddp":
        from trainloop.checkpoints.surviving_parts import PartsInMemory  # with DTensor

        return PartsInMemory(trainer, directory)
    return InMemory(trainer, directory)


class InMemory(NothingInMemory):
    """Keeps the state of a model that every rank has whole."""

    #: Whether each rank has a part of the state, and whether all parts are needed to go on from any.
    divided = False
    all_parts = False

    def __init__(self, trainer: Trainer, directory: Path) -> None:
        world = trainer.world
        self.trainer, self._say = trainer, _say(world.rank)
        self._place = self._placed(world)
        self._group = Group(self._place)
        self._source: int | None = None  # the attempt that the run goes on from, by memory
        model, members = trainer.replica.model, getattr(trainer.optimizer, "members", [trainer.optimizer])
        # Looked up between steps: within one FSDP2 has whole copies in the place of the root's parameters.
        self._parameters = dict(model.named_parameters())
        self._buffers = Buffers(model, model.state_dict(keep_vars=True))
        #: Those that make the steps: for ZeRO-1 those of this rank's part.
        self._optimizers = [getattr(each, "optim", each) for each in members]
        self._states = [OptimizerState(each, world.device) for each in self._optimizers]
        # A scaler's scale, and what hooks change, change besides.
        alone = not (trainer.precision.scaler.is_enabled() or trainer.stateful or trainer.after_step)
        kept = Kept(self._host, self._state, self._buffers, self._optimizers, alone, self.divided)
        self._keeper = Keeper(self._place, directory, world.device, kept, self._group, self._say)
        self._ended = False

    def _placed(self, world: World) -> Place:
        return Place.from_environment(world.rank, world.size, world.unit)

    def begin(self) -> None:
        self._keeper.begin(self.trainer.state.step, self._source)

    @property
    def obstacle(self) -> str | None:
        return self._keeper.obstacle

    @property
    def half_made(self) -> bool:
        return self._keeper.half_made

    def hold(self) -> None:
        self._keeper.hold()

    def go_back(self) -> None:
        """Wait for the device, and put back what the run has changed since the last step that was made."""
        made, results = self._keeper.newest(), self.trainer.state.results
        self._load_host(self._host_after(made.host))
        self.trainer.state.results = results  # an evaluation waits for the device, and comes after a step
        self._keeper.put_back_own(made.step)

    def random_after(self, step: int) -> torch.Tensor | None:
        """Returns this rank's random state after `step`, which it has drawn for, though it may not have made it."""
        own = self._keeper.own(step)
        return own["random"].clone() if own is not None else None

    def loaded(self) -> None:
        """The state that the run has is another rank's, and whole."""
        self._keeper.made(self.trainer.state.step)

    def go_on(self, attempt: int) -> None:
        self._keeper.go_on(attempt, self.trainer.state.step)

    def changing(self) -> None:
        self._keeper.changing()

    def finished(self) -> None:
        # Between an update's begin and its end nothing draws random numbers but hooks.
        self._keeper.finished(self.trainer.state.step, as_before=not self.trainer.after_step)

    def forget(self) -> None:
        self._keeper.forget()

    def end(self) -> None:
        self._keeper.end()
        self._ended = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # A run that has diverged would do so again from here. One that is stopped goes on, maybe in this pod.
        if not self._ended and not isinstance(error, Diverged) and (error is None or isinstance(error, Exception)):
            self._keeper.save()
        self._keeper.close()

    def _host(self) -> dict[str, Any]:
        """Returns what the host has of the state, and changes before the weights change, in the next step. Hooks'
        states are among it: they change after a step, and not in one.
        """
        trainer = self.trainer
        return {
            "train": vars(trainer.state).copy(),
            "anomaly": as_now((trainer.objectives or trainer.detector).state()),
            "verdict": trainer.judge.verdict,
            "optimizers": [each.now() for each in self._states],
            "stateful": {name: as_now(each.state_dict()) for name, each in trainer.stateful.items()},
        }

    def moments(self, host: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Returns the optimizers' state by name, as there was of it when the host had `host`."""
        pairs = zip(self._states, host["optimizers"], strict=True)
        state = {of: own for each, now in pairs for of, own in each.moments(now).items()}
        return {name: state[each] for name, each in self._parameters.items() if each in state}

    def tensors(self, host: dict[str, Any]) -> dict[str, Any]:
        """Returns weights and moments, as far as this rank keeps them."""
        model = self.trainer.replica.model
        buffers = {name for name, _ in model.named_buffers()}
        weights = {name: tensor for name, tensor in model.state_dict().items() if name not in buffers}
        return {"model": weights, "optimizer": self.moments(host)}

    def _host_after(self, host: dict[str, Any]) -> dict[str, Any]:
        """Returns what the host has after the step of which `host` is, when it has followed the device's verdict."""
        trainer, updates, anomaly, verdict = self.trainer, host["train"]["updates"], host["anomaly"], host["verdict"]
        if verdict is not None and trainer.objectives is None:
            # The device's verdict on that step, which the host hasn't followed yet.
            detector = AnomalyDetector(trainer.config.anomaly)
            detector.load(anomaly)
            loss, norm = verdict.read()
            made = verdict.limits.keep(loss, norm)
            if math.isfinite(norm) or not trainer.precision.scaler.is_enabled():
                made = detector.judge(loss, norm, verdict.limits) in ("step", "forced")
            anomaly, updates = detector.state(), updates + bool(made)
        train = {**host["train"], "updates": updates}
        return {"train": train, "anomaly": anomaly, "stateful": host["stateful"]}

    def _state(self, host: dict[str, Any]) -> dict[str, Any]:
        """Returns the state after the step of which `host` is."""
        trainer = self.trainer
        return {
            **self.tensors(host),
            **self._host_after(host),
            "scaler": state_of(trainer.precision.scaler),
            "logAttempt": trainer.log.attempt,
            "parent": trainer.checkpoints.parent if trainer.checkpoints else None,
            "canReturn": trainer.judge.can_return,
        }

    def resume(self, newest_on_disk: Checkpoint | None) -> bool:
        trainer, least = self.trainer, (0, 0)
        if newest_on_disk is not None:
            # Without an agent all attempts have the same number.
            attempt = newest_on_disk.about.get("attempt") if has_agent() else self._place.attempt
            least = (attempt if isinstance(attempt, int) else 0, newest_on_disk.step)
        memory, all_parts = self._keeper.directory, self.all_parts
        for found in newest(self._place, self._group, self._say, memory, than=least, all_parts=all_parts):
            problem, loads = None, None
            try:
                loads = self.loading(found)
                TrainState(**found.first()["train"])
            except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
                problem = f"step {found.step} isn't of this run's model and optimizer: {error!r}"
                self._say(f"state passed over: {problem}")
            if any(trainer.world.gather(problem)) or loads is None:
                continue
            loads()
            self._restore(found)
            self.resumed, self._source = True, found.attempt
            trainer.log.info(f"resumed from memory after step {found.step} of attempt {found.attempt}")
            about = {"world": trainer.world.size, "checkpoint": "memory"}
            trainer.log.write("event", {"event": "resumed", "step": found.step, **about})
            return True
        return False

    def loading(self, found: Found) -> Callable[[], None]:
        """Returns what loads weights and moments. Raises ValueError or KeyError where they aren't this run's."""
        replica, saved = self.trainer.replica, found.state()
        own = {name: tensor.shape for name, tensor in replica.model.named_parameters()}
        for name, shape in own.items():
            if saved["model"][name].shape != shape:
                raise ValueError(f"{name} has shape {list(saved['model'][name].shape)}")
        for name, values in saved["optimizer"].items():
            for key, value in values.items():
                if isinstance(value, torch.Tensor) and value.dim() and value.shape != own[name]:
                    raise ValueError(f"{key} of {name} has shape {list(value.shape)}")

        def load() -> None:
            replica.load_model({**saved["model"], **self.buffers(found.buffers(replica.world.rank))})
            replica.load_optimizer(self.trainer.optimizer, saved["optimizer"])
            for state in (own for each in self._optimizers for own in each.state.values()):
                # Where weights are on the host, torch has kept what it was given, and that is the file's.
                state.update({key: cloned(value) for key, value in state.items() if on_host(value)})

        return load

    def buffers(self, left: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns the model's buffers, those that were left before those of the model."""
        return {name: left.get(name, tensor) for name, tensor in self._buffers.named().items()}

    def _load_host(self, saved: dict[str, Any]) -> None:
        trainer = self.trainer
        trainer.state = TrainState(**saved["train"])
        if trainer.stateful or saved["stateful"]:
            from trainloop.checkpoints import stateful

            stateful.restore(trainer, cloned(saved["stateful"]))
        (trainer.objectives or trainer.detector).load(saved["anomaly"])
        trainer.judge.loss = trainer.judge.verdict = None

    def _restore(self, found: Found) -> None:
        trainer, saved, world = self.trainer, found.first(), self.trainer.world
        self._load_host(saved)
        if saved["scaler"]:
            load(trainer.precision.scaler, saved["scaler"])
        trainer.judge.can_return = saved["canReturn"]
        if trainer.checkpoints is not None:
            trainer.checkpoints.parent = saved["parent"]
        if not has_agent():
            trainer.log.attempt = saved["logAttempt"] + 1
        own = found.own_of(world.rank)
        if own is not None:
            generators.restore(own["random"], world.device)
        else:
            self._say(f"there is no random state of this rank after step {found.step}: it is seeded anew")
            seeding.seed_all(trainer.config.seed.value, seeding.RANK, world.data_rank, found.step)


def _say(rank: int) -> Any:
    return lambda sentence: print(f"rank {rank}: {sentence}", flush=True)

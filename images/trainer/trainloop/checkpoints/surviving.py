"""A run's state is kept in memory with `recovery`, and restored from memory bit for bit.

If each rank holds a part of the state (ZeRO-1, FSDP2), all parts of the same step are needed; a snapshot consists of
them. With FSDP2 a rank needs only its own part if the number of ranks is unchanged. Otherwise each rank assembles its
shards from all parts, as from a sharded checkpoint. With ZeRO-1 every rank needs all weights, and writes a share of
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trainloop import seeding
from trainloop.checkpoints.checkpointer import Checkpointer
from trainloop.checkpoints.memory import NothingInMemory
from trainloop.checkpoints.storage import Checkpoint
from trainloop.distributed.world import World, has_agent
from trainloop.errors import Diverged
from trainloop.metrics import MetricsLog
from trainloop.optimization.anomaly import AnomalyDetector
from trainloop.parallel.copies import copies, is_mirrored
from trainloop.recovery import generators
from trainloop.recovery.agreement import Found, Group, newest
from trainloop.recovery.keeper import Keeper, Kept
from trainloop.recovery.place import Place, memory_directory
from trainloop.recovery.slots import Buffers
from trainloop.recovery.tensors import OptimizerState, as_now, cloned, load, on_host, state_of
from trainloop.state import RunState, TrainState, restore_stateful


def build(
    run: RunState, strategy: str, log: MetricsLog, checkpoints: Checkpointer | None, after_step: Sequence[object]
) -> NothingInMemory:
    """Returns the object that keeps a run's state in memory.

    If the state couldn't be restored bit for bit, the object keeps nothing. `after_step` lists the hooks that may
    change the state after a step.
    """
    directory, settings = memory_directory(_say(run.world.rank)), run.exchange.settings
    unsuited = {
        "communication.local_steps": settings.local_steps > 1,
        "delayed.pattern": bool(run.delayed.named),
        f"communication.compression {settings.compression}": settings.compression in ("powersgd", "onebit"),
    }
    reasons = [name for name, found in unsuited.items() if found]
    if reasons:
        log.info(f"no state is kept in memory with {' and '.join(reasons)}: it is different on every rank")
    # Either all ranks keep a state, or none does.
    if not all(run.world.gather(directory is not None)) or reasons or directory is None:
        return NothingInMemory()
    if run.world.size > 1 and strategy != "ddp":
        return PartsInMemory(run, log, checkpoints, after_step, directory, sharded=strategy == "fsdp")
    return InMemory(run, log, checkpoints, after_step, directory)


class InMemory(NothingInMemory):
    """This class keeps the state of a model that is complete on every rank."""

    #: Whether each rank holds only a part of the state, and whether every rank needs all parts to continue.
    divided = False
    all_parts = False

    def __init__(
        self,
        run: RunState,
        log: MetricsLog,
        checkpoints: Checkpointer | None,
        after_step: Sequence[object],
        directory: Path,
    ) -> None:
        world = run.world
        self._run, self._log, self._checkpoints, self._after_step = run, log, checkpoints, after_step
        self._say = _say(world.rank)
        self._place = self._placed(world)
        self._group = Group(self._place)
        self._source: int | None = None  # the attempt whose state in memory the run continues from
        model, members = run.replica.model, getattr(run.optimizer, "members", [run.optimizer])
        # Parameters are looked up here, between steps, because within a step FSDP2 replaces those of the root by full
        # copies.
        self._parameters = dict(model.named_parameters())
        self._buffers = Buffers(model, model.state_dict(keep_vars=True))
        #: The optimizers that make the steps; for ZeRO-1, those that update this rank's part.
        self._optimizers = [getattr(each, "optim", each) for each in members]
        self._states = [OptimizerState(each, world.device) for each in self._optimizers]
        # Whether the optimizers alone change the state: a scaler would change its scale too, and hooks their own state.
        alone = not (run.precision.scaler.is_enabled() or run.stateful or after_step)
        kept = Kept(self._host, self._state, self._buffers, self._optimizers, alone, self.divided)
        self._keeper = Keeper(self._place, directory, world.device, kept, self._group, self._say)
        self._ended = False

    def _placed(self, world: World) -> Place:
        return Place.from_environment(world.rank, world.size, world.unit)

    def begin(self) -> None:
        self._keeper.begin(self._run.train.step, self._source)

    @property
    def obstacle(self) -> str | None:  # type: ignore[override]
        return self._keeper.obstacle

    @property
    def half_made(self) -> bool:  # type: ignore[override]
        return self._keeper.half_made

    def hold(self) -> None:
        self._keeper.hold()

    def go_back(self) -> None:
        made, results = self._keeper.newest(), self._run.train.results
        self._load_host(self._host_after(made.host))
        # Results stay valid: an evaluation runs after a step and waits for the device.
        self._run.train.results = results
        self._keeper.put_back_own(made.step)

    def random_after(self, step: int) -> torch.Tensor | None:
        own = self._keeper.own(step)
        return own["random"].clone() if own is not None else None

    def loaded(self) -> None:
        self._keeper.made(self._run.train.step)

    def continue_as(self, attempt: int) -> None:
        self._keeper.continue_as(attempt, self._run.train.step)

    def changing(self) -> None:
        self._keeper.changing()

    def finished(self) -> None:
        # Between `changing` and this call, only hooks can draw random numbers.
        self._keeper.finished(self._run.train.step, as_before=not self._after_step)

    def forget(self) -> None:
        self._keeper.forget()

    def end(self) -> None:
        self._keeper.end()
        self._ended = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # A diverged run would diverge again from this state. A stopped run may continue in this pod.
        if not self._ended and not isinstance(error, Diverged) and (error is None or isinstance(error, Exception)):
            self._keeper.save()
        self._keeper.close()

    def _host(self) -> dict[str, Any]:
        """Returns the host's part of the state, which the next step changes before it changes the weights.

        The part includes the states of hooks, although those change only after a step.
        """
        run = self._run
        return {
            "train": vars(run.train).copy(),
            "anomaly": as_now(run.history.state()),
            "verdict": run.judge.verdict,
            "optimizers": [each.now() for each in self._states],
            "stateful": {name: as_now(each.state_dict()) for name, each in run.stateful.items()},
        }

    def moments(self, host: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Returns the optimizers' state, by parameter name, after the step to which `host` belongs."""
        pairs = zip(self._states, host["optimizers"], strict=True)
        state = {of: own for each, now in pairs for of, own in each.moments(now).items()}
        return {name: state[each] for name, each in self._parameters.items() if each in state}

    def tensors(self, host: dict[str, Any]) -> dict[str, Any]:
        """Returns the weights and moments that this rank keeps."""
        model = self._run.replica.model
        buffers = {name for name, _ in model.named_buffers()}
        weights = {name: tensor for name, tensor in model.state_dict().items() if name not in buffers}
        return {"model": weights, "optimizer": self.moments(host)}

    def _host_after(self, host: dict[str, Any]) -> dict[str, Any]:
        """Returns the host's part after the step to which `host` belongs, with the device's verdict on it applied."""
        run, updates, anomaly, verdict = self._run, host["train"]["updates"], host["anomaly"], host["verdict"]
        if verdict is not None and isinstance(run.history, AnomalyDetector):
            # Apply the device's verdict on that step, because the host hasn't done so yet.
            detector = AnomalyDetector(run.history.settings)
            detector.load(anomaly)
            loss, norm = verdict.read()
            made = verdict.limits.keep(loss, norm)
            if math.isfinite(norm) or not run.precision.scaler.is_enabled():
                made = detector.judge(loss, norm, verdict.limits) in ("step", "forced")
            anomaly, updates = detector.state(), updates + bool(made)
        train = {**host["train"], "updates": updates}
        return {"train": train, "anomaly": anomaly, "stateful": host["stateful"]}

    def _state(self, host: dict[str, Any]) -> dict[str, Any]:
        """Returns the state after the step to which `host` belongs."""
        return {
            **self.tensors(host),
            **self._host_after(host),
            "scaler": state_of(self._run.precision.scaler),
            "logAttempt": self._log.attempt,
            "parent": self._checkpoints.parent if self._checkpoints else None,
            "canReturn": self._run.judge.can_return,
        }

    def resume(self, newest_on_disk: Checkpoint | None) -> bool:
        world, least = self._run.world, (0, 0)
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
            if any(world.gather(problem)) or loads is None:
                continue
            loads()
            self._restore(found)
            self.resumed, self._source = True, found.attempt
            self._log.info(f"resumed from memory after step {found.step} of attempt {found.attempt}")
            about = {"world": world.size, "checkpoint": "memory"}
            self._log.write("event", {"event": "resumed", "step": found.step, **about})
            return True
        return False

    def loading(self, found: Found) -> Callable[[], None]:
        """Returns a function that loads weights and moments. Raises ValueError or KeyError if they don't fit."""
        replica, saved = self._run.replica, found.state()
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
            replica.load_optimizer(self._run.optimizer, saved["optimizer"])
            for state in (own for each in self._optimizers for own in each.state.values()):
                # If the weights are on the host, torch has kept the given tensors, whose memory is the mapped file.
                state.update({key: cloned(value) for key, value in state.items() if on_host(value)})

        return load

    def buffers(self, left: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns the model's buffers, overridden by the values in `left`."""
        return {name: left.get(name, tensor) for name, tensor in self._buffers.named().items()}

    def _load_host(self, saved: dict[str, Any]) -> None:
        run = self._run
        run.train.load(saved["train"])
        restore_stateful(run.stateful, cloned(saved["stateful"]), self._log.warn)
        run.history.load(saved["anomaly"])
        run.judge.loss = run.judge.verdict = None

    def _restore(self, found: Found) -> None:
        run, saved = self._run, found.first()
        self._load_host(saved)
        if saved["scaler"]:
            load(run.precision.scaler, saved["scaler"])
        run.judge.can_return = saved["canReturn"]
        if self._checkpoints is not None:
            self._checkpoints.parent = saved["parent"]
        if not has_agent():
            self._log.attempt = saved["logAttempt"] + 1
        own = found.own_of(run.world.rank)
        if own is not None:
            generators.restore(own["random"], run.world.device)
        else:
            self._say(f"there is no random state of this rank after step {found.step}: it is seeded again")
            seeding.seed_all(run.seed, seeding.RANK, run.world.data_rank, found.step)


class PartsInMemory(InMemory):
    """This class keeps one rank's part of the state."""

    divided = True

    def __init__(self, run: RunState, *rest: Any, sharded: bool) -> None:
        self._sharded = sharded
        # Ranks that share each layer (tensor parallelism) have some parts in common, which only one of them writes.
        self.all_parts = not sharded or run.world.tensor > 1
        super().__init__(run, *rest)
        # The model's state is looked up once, like `_parameters`. If a writing thread called `state_dict`, it would
        # free whole copies that the training thread may be reading.
        self._model = run.replica.model.state_dict(keep_vars=True)
        self._first = -1  # the first step of this attempt

    def _placed(self, world: World) -> Place:
        place = super()._placed(world)
        # If another rank has a copy of this rank's shard, snapshots needn't be sent to a neighbour. So all ranks count
        # as local.
        return replace(place, local_ranks=world.size) if is_mirrored(self._run.optimizer) else place

    def continue_as(self, attempt: int) -> None:
        self._first = self._run.train.step + 1
        super().continue_as(attempt)

    def finished(self) -> None:
        run, world = self._run, self._run.world
        pauses = is_mirrored(run.optimizer) and len(world.present) < world.size
        if not pauses or run.train.step == self._first:
            super().finished()
        else:
            # Make no snapshot, because it would lack the absent ranks' parts, and replace a complete one.
            self._keeper.made(run.train.step, as_before=not self._after_step)

    def tensors(self, host: dict[str, Any]) -> dict[str, Any]:
        from trainloop.checkpoints.shards import is_mine, own_pieces  # imports DTensor, which takes a second

        world, others = self._run.replica.world, copies(self._run.optimizer)
        moments = {name: own for name, own in self.moments(host).items() if self._parameters[name] not in others}
        buffers = {f"model/{name}" for name in self._buffers.names}

        def writes(name: str) -> bool:
            return self._sharded or name.startswith("optimizer/") or (name not in buffers and is_mine(name, world))

        return {"pieces": list(own_pieces(self._model, moments, world, writes))}

    def loading(self, found: Found) -> Callable[[], None]:
        from trainloop.checkpoints.shards import Shards

        replica = self._run.replica
        parts = [(f"the part of rank {rank}", found.state(rank)["pieces"]) for rank in sorted(found.parts)]
        shards = Shards(self._keeper.directory, parts)
        first = min(found.parts)
        # A part of an FSDP2 state contains the buffers too, but these values may be from the middle of a step.
        lost = self._sharded and found.own_of_part(first) is None
        left = {} if lost else self.buffers(found.buffers(first))
        model = {**shards.model_state(replica, left), **left}
        optimizer = shards.optimizer_state(replica)

        def load() -> None:
            replica.load_model(model)
            replica.load_optimizer(self._run.optimizer, optimizer)

        return load


def _say(rank: int) -> Callable[[str], None]:
    return lambda sentence: print(f"rank {rank}: {sentence}", flush=True)

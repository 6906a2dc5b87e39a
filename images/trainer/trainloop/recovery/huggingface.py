"""A callback keeps the state of Hugging Face's Trainer in memory, and the Trainer's own resume continues from it:

    recovery = RecoveryCallback(trainer)
    trainer.train(resume_from_checkpoint=recovery.checkpoint())

`checkpoint` returns a directory in the Trainer's own form, which it writes to memory from the state that the ranks have
agreed on. If the Trainer's newest checkpoint is newer, it returns that one. So data, logs and schedules continue as
from any checkpoint.
SIGTERM ends the run after a step and a save, with exit code 143.
"""

from __future__ import annotations

import copy
import os
import random
import shutil
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerState
from transformers.trainer_utils import get_last_checkpoint

from trainloop.distributed.diagnostics import announce, dump_stacks_on_signal
from trainloop.progress import Progress
from trainloop.recovery import generators
from trainloop.recovery.agreement import Found, Group, newest
from trainloop.recovery.keeper import EXIT_STOPPED, Keeper, Kept
from trainloop.recovery.place import Place, memory_directory
from trainloop.recovery.script import host_group, keep_group
from trainloop.recovery.slots import Buffers
from trainloop.recovery.tensors import OptimizerState, as_now, cloned


class RecoveryCallback(TrainerCallback):
    """This callback keeps the state of a Trainer whose ranks all hold the full model.

    So there must be a single rank, or the Trainer must use DistributedDataParallel.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._place = Place.from_environment(trainer.args.process_index, trainer.args.world_size)
        self._device = trainer.args.device  # reading this property joins the process group
        self._group = Group(self._place, host_group() if dist.is_initialized() else None)
        self._progress = Progress.from_environment(self._place.rank, self._place.local_ranks)
        announce(self._device, self._place.rank, self._place.local_rank, self._group.gather)
        memory = memory_directory(self._say)
        self._memory = memory if all(self._group.gather(memory is not None)) else None
        self._keeper: Keeper | None = None
        self._made: Path | None = None
        self._source: int | None = None
        self._random: torch.Tensor | None = None  # the generators' state at the beginning of the first step
        self._stop_requested = self._stopped = False
        self._state = TrainerState()
        self._excepthook = sys.excepthook
        trainer.add_callback(self)

    def checkpoint(self) -> str | None:
        """Returns the directory to resume from; None for a new run. Collective."""
        output = str(self._trainer.args.output_dir)
        saved: str | None = get_last_checkpoint(output) if Path(output).is_dir() else None  # type: ignore[no-untyped-call]
        step = int(saved.rpartition("-")[2]) if saved else -1
        on_disk = max(self._group.gather(step))
        for found in newest(self._place, self._group, self._say, self._memory) if self._memory else ():
            if found.step < on_disk:
                continue
            problem = None
            try:
                self._made = self._make(found)
            except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
                problem = f"state passed over: step {found.step} isn't of this Trainer: {error!r}"
                self._say(problem)
            if not any(self._group.gather(problem)):
                self._source = found.attempt
                self._say(f"continues after step {found.step}, of attempt {found.attempt}")
                return str(self._made)
        return saved

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Begin after the step that the Trainer has loaded."""
        if self._made is not None:
            shutil.rmtree(self._made, ignore_errors=True)
        self._progress.begin(state.global_step)
        if self._place.ranks > 1:
            self._progress.cannot_continue("Hugging Face's Trainer can't hand over a lost rank's samples to the others")
        if "TRAINMASTER_ATTEMPT" in os.environ:
            dump_stacks_on_signal(self._place.rank)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._request_stop)
        keep_group(kwargs["model"])
        if self._memory is None:
            return
        model, optimizer, scheduler = (kwargs[name] for name in ("model", "optimizer", "lr_scheduler"))
        model = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
        self._commit(state)
        inner = optimizer
        while hasattr(inner, "optimizer"):  # accelerate's wrapper around torch's optimizer
            inner = inner.optimizer
        numbers = OptimizerState(inner, self._device)

        def host() -> dict[str, Any]:
            own = {"optimizer": numbers.host(), "scheduler": as_now(scheduler.state_dict())}
            return {**own, "trainer": self._state}

        def whole(host: dict[str, Any]) -> dict[str, Any]:
            named = {"model": dict(model.named_parameters()), "optimizer": numbers.whole(host["optimizer"])}
            return {**host, **named, "trainer": asdict(host["trainer"])}

        kept = Kept(host, whole, Buffers(model), [inner])
        self._keeper = Keeper(self._place, self._memory, self._device, kept, self._group, self._say)
        self._keeper.begin(state.global_step, self._source)
        sys.excepthook = self._on_error

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        # If it resumes within an epoch, the Trainer has drawn a random number for its new loader.
        if self._random is not None and not float(state.epoch or 0).is_integer():
            generators.restore(self._random, self._device)
        self._random = None

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self._keeper is not None:
            self._keeper.changing()

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._commit(state)
        if self._keeper is not None:
            self._keeper.finished(state.global_step)
        self._progress.step(state.global_step, totalSteps=state.max_steps)
        self._stopped = self._group.begin_to_ask(int(self._stop_requested))() == [1]
        if self._stopped:
            control.should_save = control.should_training_stop = True

    def on_log(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._commit(state)
        log = state.log_history[-1] if state.log_history else {}
        # These are a step's loss and norm, or an evaluation's results such as eval_loss.
        self._progress.report(
            **{name: each for name, each in log.items() if isinstance(each, float) and name != "step"}
        )
        if self._keeper is not None:
            self._keeper.made(state.global_step)  # keeps the step's log too

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._progress.enter("finish")
        sys.excepthook = self._excepthook
        stopped = self._stopped and state.global_step < state.max_steps
        if self._keeper is not None:
            if not stopped:
                self._keeper.end()
            else:
                self._keeper.save()
                self._keeper.close()
        if stopped:
            raise SystemExit(EXIT_STOPPED)

    def _commit(self, state: TrainerState) -> None:
        """Keep the state that the Trainer changes between two updates."""
        self._state = copy.copy(state)
        self._state.log_history = list(state.log_history)

    def _make(self, found: Found) -> Path:
        """Make a checkpoint in the Trainer's form; each rank writes its own, and reads only that one."""
        assert self._memory is not None
        # Cloned, because torch saves the whole storage behind a tensor.
        saved, own = cloned(found.state()), found.own_of(self._place.rank)
        model = self._trainer.model
        assert model is not None
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        if {name: tensor.shape for name, tensor in saved["model"].items()} != shapes:
            raise ValueError("its weights have other names or shapes")
        buffers = found.buffers(self._place.rank)
        weights = {name: {**saved["model"], **buffers}.get(name, one) for name, one in model.state_dict().items()}
        directory = self._memory / f"trainer-{self._place.rank}" / f"checkpoint-{found.step}"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True, mode=0o700)
        torch.save(cloned(weights), directory / "pytorch_model.bin")  # contains only the weights
        torch.save(saved["optimizer"], directory / "optimizer.pt")
        torch.save(saved["scheduler"], directory / "scheduler.pt")
        TrainerState(**saved["trainer"]).save_to_json(str(directory / "trainer_state.json"))
        if own is not None:
            # The generators' saved state decides the order of the data, which must be the same as in the first attempt.
            self._random = own["random"]
            here = generators.capture(self._device)
            generators.restore(own["random"], self._device)
            state: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state()}
            state["cpu"] = torch.get_rng_state()
            if self._device.type == "cuda":
                state["cuda"] = torch.cuda.get_rng_state()
            name = f"rng_state_{self._place.rank}.pth" if self._place.ranks > 1 else "rng_state.pth"
            torch.save(state, directory / name)
            generators.restore(here, self._device)
        return directory

    def _on_error(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        assert self._keeper is not None
        self._keeper.save()
        self._excepthook(kind, error, trace)

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        self._stop_requested = True

    def _say(self, sentence: str) -> None:
        print(f"rank {self._place.rank}: {sentence}", flush=True)

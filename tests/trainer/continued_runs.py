"""Runs lose ranks and continue in the processes that are left; this module does an agent's work for them."""

from __future__ import annotations

import json
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from tests.trainer.ranks import free_port, start_rank
from tests.trainer.toy import Toy, weights
from trainloop import run
from trainloop.checkpoints import saving
from trainloop.config import Config
from trainloop.continued.trainer import ContinuedTrainer
from trainloop.continued.world import joined
from trainloop.loader import Fetched
from trainloop.parallel.copies import Mirrored
from trainloop.recovery.tensors import cloned, local
from trainloop.trainer import Trainer

#: Where a rank meets its fault, and after which step; `ANY`: in the first step.
Fault = tuple[str, int]
ANY = -1


@dataclass
class Run:
    """Describes and starts a run of several ranks, and plays its agent."""

    folder: Path
    settings: Config
    size: int
    #: The faults of a rank's first process, and of those that join in its place.
    faults: dict[tuple[int, int], Fault] = field(default_factory=dict)
    #: Whether lost ranks are started again, and whether an attempt is assigned when some are lost.
    rejoin: bool = True
    answers: bool = True
    #: Whether ranks that are ready are let in.
    lets_in: bool = True
    #: Whether they are let in only after the others have made the last step.
    last_moment: bool = False
    #: Whether the run mustn't end yet.
    holds: bool = False
    #: The function that a rank calls in place of `train`, with the same arguments.
    function: Callable[[Config, Path, Fault | None], Any] | None = None
    attempt: int = 1
    absent: set[int] = field(default_factory=set)
    processes: dict[int, BaseProcess] = field(default_factory=dict)
    lives: dict[int, int] = field(default_factory=dict)
    #: Each assignment's attempt and absent ranks.
    orders: list[tuple[int, list[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.port, self.group = free_port(), self.folder / "group"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.group.unlink(missing_ok=True)
        if self.last_moment:
            (self.folder / "last-moment").touch()
        for rank in range(self.size):
            Path(f"{self.group}.{rank}").unlink(missing_ok=True)
            os.mkfifo(f"{self.group}.{rank}")

    def go(self, meanwhile: Callable[[Run], None] = lambda run: None, seconds: float = 100) -> list[Any]:
        """Run to the end, waiting for all ranks that are started again; call `meanwhile` repeatedly.

        Returns what each rank's last process returned.
        """
        until = time.monotonic() + seconds
        try:
            for rank in range(self.size):
                self._start(rank)
            while any(process.is_alive() for rank, process in self.processes.items() if rank not in self.absent):
                assert time.monotonic() < until, f"the run hangs: {self.said()}"
                meanwhile(self)
                self._look()
                if not self.rejoin or (self.orders and self.is_whole() and not self.holds):
                    (self.folder / "may-end").touch()
                time.sleep(0.005)
        finally:
            for process in self.processes.values():
                process.kill()
                process.join()
        return [self._result(rank) for rank in range(self.size)]

    def kill(self, *ranks: int) -> None:
        for rank in ranks:
            self.processes[rank].kill()

    def stop(self, *ranks: int) -> None:
        for rank in ranks:
            self.processes[rank].terminate()

    def is_whole(self) -> bool:
        """Returns whether all ranks train in the newest attempt."""
        return not self.absent and all(self.progress(rank).get("group") == self.attempt for rank in range(self.size))

    def progress(self, rank: int) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / f"progress-{rank}").read_text())
        except (OSError, ValueError):
            return {}
        return found

    def said(self) -> str:
        return "\n".join(log.read_text() for log in sorted(self.folder.glob("said-*")))

    def samples(self) -> dict[int, list[int]]:
        """Returns the samples of each step, from the last time that it was made."""
        lines = [json.loads(line) for log in self.folder.glob("log-*") for line in log.read_text().splitlines()]
        made = dict[int, int]()
        for kind, step, attempt, _ in lines:
            if kind == "made":
                made[step] = max(attempt, made.get(step, 0))
        found = dict[int, list[int]]()
        for kind, step, attempt, samples in lines:
            if kind == "passes" and made.get(step) == attempt:
                found.setdefault(step, []).extend(samples)
        return {step: sorted(samples) for step, samples in sorted(found.items())}

    def _look(self) -> None:
        lost = {
            rank
            for rank, process in self.processes.items()
            if process.exitcode == -signal.SIGKILL and (rank not in self.absent or self.lives[rank] < 0)
        }
        joining = {rank for rank in self.absent if self.processes[rank].exitcode == -signal.SIGKILL}
        ready = {rank for rank in self.absent - joining if self.progress(rank).get("continuing") == "ready"}
        if not self.answers:
            return
        if lost:
            self._assign(self.absent | lost)
        if self.rejoin:
            for rank in lost | joining:
                self._start(rank)
        if self.last_moment and ready:
            (self.folder / "may-end").touch()
        if ready and not lost and self.lets_in and (not self.last_moment or (self.folder / "ends").exists()):
            self._assign(self.absent - ready)

    def _assign(self, absent: set[int]) -> None:
        self.attempt, self.absent = self.attempt + 1, set(absent)
        self.orders.append((self.attempt, sorted(absent)))
        order = {"attempt": self.attempt, "worldSize": self.size, "absent": sorted(absent)}
        temporary = self.group.with_name(".group")
        temporary.write_text(json.dumps({**order, "master": "127.0.0.1", "port": free_port()}))
        temporary.replace(self.group)
        for rank in set(range(self.size)) - absent:
            try:
                fifo = os.open(f"{self.group}.{rank}", os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                continue
            os.write(fifo, b"1")
            os.close(fifo)

    def _start(self, rank: int) -> None:
        life = self.lives[rank] = self.lives.get(rank, -1) + 1
        progress = self.folder / f"progress-{rank}"
        progress.unlink(missing_ok=True)
        mine = {
            "TRAINMASTER_ATTEMPT": str(self.attempt),
            "TRAINMASTER_JOB_UID": "job",
            "TRAINMASTER_GROUP_FILE": str(self.group),
            "TRAINMASTER_PROGRESS_FILE": str(progress),
            "TRAINMASTER_MEMORY_DIR": str(self.folder / f"memory-{rank}"),
            **({"TRAINMASTER_JOINS": "1"} if rank in self.absent else {}),
        }
        (self.folder / f"memory-{rank}").mkdir(exist_ok=True)
        out = self.folder / f"out-{rank}"
        out.unlink(missing_ok=True)
        what = (mine, self.function or train, self.settings, self.folder, self.faults.get((rank, life)))
        self.processes[rank] = start_rank(_rank, rank, self.size, self.port, out, *what)

    def _result(self, rank: int) -> Any:
        process, out = self.processes[rank], self.folder / f"out-{rank}"
        if process.exitcode or not out.exists():
            return signal.Signals(-process.exitcode).name if process.exitcode else "no answer"
        kind, value = pickle.loads(out.read_bytes())
        return value if kind == "value" else f"error: {value}"


class FaultyTrainer(ContinuedTrainer):
    """Meets a fault on purpose, and records the samples of each step."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.fault: Fault | None = None
        self.records: Any = None
        measure, write = self.evaluator._measure, saving.write

        def measured(samples: list[Any]) -> dict[str, Any]:
            self.meets("measuring")
            return measure(samples)

        def written(*what: Any) -> Any:
            self.meets("writing")
            checkpoint = write(*what)
            self.meets("written")
            return checkpoint

        self.evaluator._measure = measured  # type: ignore[method-assign]
        self.after_evaluation.append(lambda _: self.meets("measured"))
        saving.write = written  # type: ignore[assignment]
        for member in getattr(self.optimizer, "members", [self.optimizer]):
            if isinstance(member, Mirrored):
                member.update, member.send = self._faulty(member)  # type: ignore[method-assign]

    def _faulty(self, member: Mirrored) -> tuple[Any, Any]:
        update, send = member.update, member.send

        def updated() -> None:
            update()
            self.meets("updated")

        def sent(ranks: Any = None) -> None:
            shards = member.shards
            if self.fault is not None and self.fault[0] == "sending":
                member.shards = shards[:1]
                send(ranks)
                self.meets("sending")
                member.shards = [[], *shards[1:]]
            send(ranks)
            member.shards = shards
            self.waits("late")

        return updated, sent

    def meets(self, where: str) -> None:
        if self.fault in ((where, self.state.step), (where, ANY)):
            os.kill(os.getpid(), signal.SIGKILL)

    def waits(self, where: str) -> None:
        """Continue only when another rank is lost."""
        until = time.monotonic() + 20
        while (where, self.state.step) == self.fault and not self.continuing.broken and time.monotonic() < until:
            time.sleep(0.001)

    def record(self, kind: str, step: int, samples: list[int]) -> None:
        self.records.write(json.dumps([kind, step, self.continuing.attempt, samples]) + "\n")

    def _passes(self, rule: Any, fetched: Fetched, agreed: Any) -> Any:
        self.meets("forward")
        own = fetched.step.micro[: len(fetched.step.micro) - fetched.step.padding]
        if self.world.rank % self.world.tensor == 0:  # its neighbours have the same samples
            self.record("passes", self.state.step + 1, [sample for micro in own for sample in micro])
        loss = super()._passes(rule, fetched, agreed)
        self.meets("backward")
        self.waits("lagging")
        return loss

    def _step(self, optimizer: Any) -> None:
        self.meets("optimizer")
        super()._step(optimizer)
        self.meets("stepped")

    def _advance(self, *arguments: Any) -> None:
        super()._advance(*arguments)
        self.record("made", self.state.step, [])

    def _report(self, *arguments: Any) -> None:
        self.meets("reporting")
        super()._report(*arguments)

    def evaluate(self) -> bool:
        folder = Path(os.environ["TRAINMASTER_GROUP_FILE"]).parent
        if self.state.step == self.state.total and (folder / "last-moment").exists():
            (folder / "ends").touch()
            while self.continuing.membership.known <= self.continuing.attempt and len(self.world.present) < 2:
                time.sleep(0.005)
        self.meets("evaluate")
        stopped = super().evaluate()
        self.meets("evaluated")
        return stopped

    def save(self) -> None:
        self.meets("save")
        super().save()
        self.meets("saved")

    def _make_whole(self) -> bool:
        self.meets("forming")
        return super()._make_whole()

    def _begin_anew(self) -> None:
        self.meets("formed")
        super()._begin_anew()

    def _mend(self, *arguments: Any) -> None:
        self.meets("mending")
        if len(self.world.present) == self.world.size:
            self.meets("welcoming")
        super()._mend(*arguments)
        self.meets("mended")

    def _load(self, state: dict[str, Any]) -> None:
        self.state.step = 0
        self.meets("joining")
        super()._load(state)


class LaggingTrainer(FaultyTrainer):
    """Goes back as if the device had left out the last steps that the host queued: two steps on rank 0, one step on the
    others. So rank 0 is given the state.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        memory: Any = self.memory
        self._keeper, self._newest = memory._keeper, memory._keeper.newest
        self._keeper.newest = self._made
        self._states = dict[int, Any]()

    def _report(self, *arguments: Any) -> None:
        super()._report(*arguments)
        state = (self.replica.model_state(), self.replica.optimizer_state(self.optimizer))
        self._states[self.state.step] = cloned(state)

    def _made(self, **options: Any) -> Any:
        made = self._newest(**options)
        steps = self._keeper._steps._made
        for _ in range(2 - (self.world.rank > 0) if self.continuing.broken else 0):
            if len(steps) > 1 and steps[-2].step in self._states:
                steps.pop()
                made = steps[-1]
                model, optimizer = self._states[made.step]
                self.replica.load_model(model)
                self.replica.load_optimizer(self.optimizer, cloned(optimizer))
        return made


class HeldTrainer(FaultyTrainer):
    """Makes its first step once the file `data` exists."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.before_step.append(_wait_for_data)


def _wait_for_data(_: Trainer) -> None:
    while not Path(os.environ["TRAINMASTER_GROUP_FILE"]).with_name("data").exists():
        time.sleep(0.005)


def held(settings: Config, folder: Path, fault: Fault | None) -> dict[str, Any]:
    return train(settings, folder, fault, HeldTrainer)


def lagging(settings: Config, folder: Path, fault: Fault | None) -> dict[str, Any]:
    return train(settings, folder, fault, LaggingTrainer)


def _wait(may_end: Path, trainer: Any) -> None:
    """Takes a little time in each step, and waits before the last steps for ranks that will join."""
    time.sleep(0.005)
    if trainer.state.step >= trainer.state.total - 4:
        group = trainer.continuing
        while not may_end.exists() and group.membership.known <= group.attempt and not group.broken:
            time.sleep(0.005)


def _rank(
    variables: dict[str, str],
    function: Callable[[Config, Path, Fault | None], Any],
    settings: Config,
    folder: Path,
    fault: Fault | None,
) -> Any:
    os.environ.update(variables)
    for descriptor in (1, 2):
        os.dup2(os.open(folder / f"said-{os.environ['RANK']}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    try:
        return function(settings, folder, fault)
    except BaseException:
        traceback.print_exc()
        raise


def train(
    settings: Config, folder: Path, fault: Fault | None, kind: type[FaultyTrainer] = FaultyTrainer
) -> dict[str, Any]:
    """Train as a rank that meets a fault; returns what it has trained."""
    with joined(settings.distributed) as world:
        trainer = kind(settings, world)
        trainer.fault = fault
        trainer.records = (folder / f"log-{world.rank}").open("a", buffering=1)
        trainer.before_step.append(partial(_wait, folder / "may-end"))
        stopped = trainer.run()
        about = {
            "began": trainer._started_at,
            "kept": sum(each.state_dict()["steps"] for each in trainer.stateful.values()),
            "moments": moments(trainer.optimizer),
        }
        return {"weights": weights(trainer), "state": trainer.state, "stopped": stopped, **about}


def moments(optimizer: Any) -> dict[int, list[Any]]:
    """Returns what a rank holds of each shard of the optimizer's state, if there are shards."""
    if not isinstance(optimizer, Mirrored):
        return {}
    return {shard: optimizer.moments(shard) for shard in optimizer.shards_of(optimizer.world.rank)}


def from_outside(settings: Config, folder: Path, fault: Fault | None) -> bool:
    """Do what `python -m trainloop` does."""
    return run.train(settings)


class Slow(Toy):
    """Takes a little time for each loss."""

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        time.sleep(0.02)
        return super().loss(model, batch)


class _Sum:
    """Adds up the numbers of the steps."""

    def __init__(self) -> None:
        self.steps = 0

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


class _Follows(_Sum):
    """Keeps the newest step's weights; of sharded weights, this rank's parts."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.follow()

    def follow(self) -> None:
        self.weights = {name: each.detach().clone() for name, each in self.model.named_parameters()}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.weights = state["weights"]
        for name, each in self.model.named_parameters():
            assert type(each.data) is type(self.weights[name])
            assert torch.equal(local(each), local(self.weights[name]))


def follows(trainer: Trainer) -> None:
    """Registers a hook that keeps tensors and counts its calls."""
    kept = _Follows(trainer.replica.model)
    trainer.stateful["weights"] = kept

    def follow(trainer: Trainer) -> None:
        kept.steps += 1
        kept.follow()

    trainer.after_step.append(follow)


def adds_up(trainer: Trainer) -> None:
    """Registers a hook whose state changes exactly once in each step."""
    kept = _Sum()
    trainer.stateful["steps"] = kept

    def add(trainer: Trainer) -> None:
        kept.steps += trainer.state.step

    trainer.after_step.append(add)

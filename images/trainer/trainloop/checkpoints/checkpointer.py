"""The checkpointer decides which rank writes, when a checkpoint counts as saved, and which checkpoint all ranks load.

The directory is either shared by all ranks (an RWX volume) or on each node's own disk (an emptyDir). To find out, each
rank leaves a file; the lowest rank whose file a rank can see is the *writer* for that rank. Only writers write the
state gathered from all ranks. Before a checkpoint is loaded, it is sent to all directories that lack it. So a pod with
an empty disk continues from its peers' checkpoint.

In the mode `sync`, training continues after the checkpoint is renamed; in the mode `thread`, it already continues after
the copy to host memory.
"""

from __future__ import annotations

import functools
import itertools
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from trainloop.checkpoints import retention, saving, storage
from trainloop.checkpoints.memory import MemorySettings
from trainloop.checkpoints.storage import Checkpoint, CheckpointError, verify
from trainloop.distributed.world import World
from trainloop.errors import ConfigError
from trainloop.settings import Settings, section


class CheckpointSettings(Settings):
    """These settings decide where, when and how the run is saved."""

    path: str | None = Field(None, description="Directory; null: TRAINMASTER_CHECKPOINT_DIR, SAVE_CHECKPOINT, or none.")
    every_steps: int = Field(1000, gt=0, description="Steps between checkpoints; the run's end is always saved.")
    keep: int = Field(5, ge=1, description="Newest checkpoints to keep; the best one is kept beside them.")
    best: str | None = Field(None, description="Evaluation result whose best checkpoint is kept, such as accuracy.")
    best_is: Literal["max", "min"] = Field("max", description="Whether more of `best` is better.")
    mode: Literal["sync", "thread"] = Field(
        "sync", description="sync: training waits for the write. thread: a thread writes while it continues."
    )
    format: Literal["full", "sharded"] = Field(
        "full", description="full: whole tensors, by one rank. sharded: each rank its part, in a shared directory."
    )
    storage: Literal["auto", "shared"] = Field(
        "auto", description="shared: all ranks see the directory. auto: find out if they do, or nodes have their own."
    )
    seconds: float = Field(1800, gt=0, description="How long a save may take before it counts as a hang.")
    resume: bool = Field(True, description="Continue from the newest valid checkpoint.")
    start_from: str | None = Field(
        None,
        description="Tag or name of a checkpoint to start from, DIRECTORY/NAME for another directory's. A restart "
        "continues from what was saved since.",
    )
    export: bool = Field(True, description="Leave the weights alone as model.safetensors at the end of the run.")
    verify_loss: bool = Field(True, description="Store a few samples' loss, and compare it after loading.")
    memory: MemorySettings = section(MemorySettings)


class Checkpointer:
    """A checkpointer saves and finds checkpoints for all ranks. Methods are collective unless documented otherwise."""

    def __init__(self, settings: CheckpointSettings, world: World, path: Path) -> None:
        self.settings, self.world, self.path = settings, world, path
        try:
            storage.make_directory(path)
        except OSError as error:
            raise ConfigError(f"checkpoint.path {path} can't be made: {error.strerror}") from error
        if not os.access(path, os.W_OK | os.X_OK):
            raise ConfigError(f"checkpoint.path {path} can't be written to: name a directory where this user may write")
        self._pending: Callable[[], Checkpoint] | None = None
        self._found = storage.Survey([], {})  # the directory's content when the pending save began
        self.find_writer()
        if settings.format == "sharded" and any(writer != world.first for writer in world.gather(self.writer)):
            others = f"ranks don't see the same {path}: mount a shared (RWX) volume, or set it to full"
            raise ConfigError(f"checkpoint.format is 'sharded', but {others}")
        #: The name of the last checkpoint that was loaded or saved, from which the run continues.
        self.parent: str | None = None
        self.parents: dict[str, str | None] = {}  # the parent of each checkpoint in the directory
        self.start: Checkpoint | None = None  # the checkpoint that `start_from` names
        self._damaged: set[str] = set()  # names of checkpoints that this rank has skipped
        self._thread: saving.WritingThread | None = None
        if settings.mode == "thread":
            self._thread = saving.WritingThread()
        if self.is_writer:
            storage.clean(path)

    @classmethod
    def from_settings(cls, settings: CheckpointSettings, world: World) -> Checkpointer | None:
        """Returns a checkpointer for the directory in the settings or the environment; None if neither names one."""
        path = settings.path or os.environ.get("TRAINMASTER_CHECKPOINT_DIR") or os.environ.get("SAVE_CHECKPOINT")
        if settings.start_from and not path:
            raise ConfigError(f"checkpoint.start_from is {settings.start_from!r} without a directory: set path too")
        return cls(settings, world, Path(path).expanduser()) if path else None

    @property
    def is_writer(self) -> bool:
        """Returns whether this rank writes to the directory that it sees (not collective)."""
        return self.writer == self.world.rank

    def save(
        self,
        step: int,
        state: dict[str, Any],
        about: dict[str, Any],
        partial: Path | None = None,
        configuration: str = "",
    ) -> list[str]:
        """Save `state`, which is the same on every rank, as the checkpoint of `step`.

        The files that ranks have written into `partial` are included, and `about` and `parent` are added to the
        manifest. Returns messages about problems with this checkpoint or the previous one.

        A failed save is no reason to stop training, so the caller reports the messages and continues.
        """
        problems = self.wait()
        version = max(self.world.gather(storage.next_version(self.path, step) if self.is_writer else 1))
        if self.is_writer:
            start = {"start_from": self.settings.start_from} if self.settings.start_from else {}
            about = {"parent": self.parent, **start, **about}
            self._found = storage.survey(self.path)
            what = (self.path, step, state, about, partial, configuration, version, self._found)
            self._pending = self._thread.save(*what) if self._thread else functools.partial(saving.write, *what)
        return problems + (self.wait() if self.settings.mode == "sync" else [])

    def wait(self) -> list[str]:
        """Wait until the pending checkpoint is on the disk, then delete the superseded checkpoints.

        Returns messages about problems, the same ones on every rank.
        """
        pending, self._pending = self._pending, None
        written = problem = None
        try:
            if pending:
                written = pending()
                # Since the survey, `trainloop checkpoints` or a save on a full disk may have deleted checkpoints.
                there = [one for one in self._found.whole if one.path.is_dir()]
                best = retention.best([written, *there], self.settings.best, self.settings.best_is)
                found = self._found._replace(whole=there)
                retention.prune(written, found, self.settings.keep, best, self._damaged)
        except (CheckpointError, OSError) as error:
            problem = str(error)
        outcomes = self.world.gather((written and written.name, problem))
        for name in {name for name, _ in outcomes if name}:
            self.parents[name], self.parent = self.parent, name
        return [text for _, text in outcomes if text]

    def has_saved(self, step: int) -> bool:
        """Returns whether the last checkpoint that was loaded or saved is of `step` (not collective)."""
        return self.parent is not None and self.parent.startswith(f"step-{step:09d}.")

    def any_there(self) -> bool:
        """Returns whether the directory contains a complete or partial checkpoint."""
        return any(self.world.gather(any(storage.survey(self.path))))

    def to_go_on_from(self) -> Iterator[Checkpoint]:
        """Yields the checkpoints from which the run may continue when it starts.

        The last written one comes first, because it is the last state that the run had.

        If `start_from` is set, these are the checkpoints of runs that started with the same `start_from`, followed by
        the checkpoint that it names. Each rank logs the unusable checkpoints that it sees.
        """
        start, rows = self.settings.start_from, list[tuple[Any, ...]]()
        if self.is_writer:
            whole, broken = storage.survey(self.path)
            rows = [(o.created, o.name, *map(o.about.get, ("parent", "start_from", "attempt"))) for o in whole]
            self._pass_over(*broken.values())
        rows = sorted(itertools.chain(*self.world.gather(rows)), key=lambda row: row[:2], reverse=True)
        # If a parent was deleted, another checkpoint may have its name. That one isn't the parent, because it was
        # written after the child.
        when = {name: created for created, name, *_ in rows}
        self.parents = {name: parent for created, name, parent, *_ in rows if when.get(str(parent), 0) <= created}
        own = dict[str, Any]()
        for _, name, _, origin, attempt in rows:
            if self.settings.resume and start in (None, origin):
                own.setdefault(name, attempt)
        for name, attempt in own.items():
            if (checkpoint := storage.named(self.path, name)) is not None:
                # The attempt is needed to compare this checkpoint with a state in memory.
                yield replace(checkpoint, about={"attempt": attempt})
        if start is not None:
            from trainloop.checkpoints.spreading import agreed  # few runs need it

            self.start = agreed(self.path, start.rstrip("/"), self.world)
            yield self.start

    def valid(self, candidates: Iterable[Checkpoint]) -> Iterator[tuple[Checkpoint, dict[str, Any]]]:
        """Yields each of `candidates` that verifies, with its state.

        Every rank gets the same sequence. Damaged checkpoints are skipped. `parent` is set to the checkpoint that was
        yielded last.
        """
        self.wait()
        for checkpoint in candidates:
            # All ranks can read a checkpoint in another directory, so one rank verifies it.
            own = checkpoint.directory == self.path
            there = (self.is_writer if own else self.world.is_main) and checkpoint.path.is_dir()
            problem = verify(checkpoint.path) if there else None
            self._pass_over(problem)
            hold = self.world.gather(there and problem is None)
            holders = [rank for rank in self.world.present if hold[rank]]
            lacks = self.is_writer and self.world.rank not in holders
            if holders and own and any(self.world.gather(lacks)):
                from trainloop.checkpoints.spreading import spread  # needed if nodes use their own disks

                spread(self.world, checkpoint, holders[0], lacks=lacks)
            state, problem = self._read(checkpoint) if holders else ({}, None)
            self._pass_over(problem)
            if holders and not any(self.world.gather(problem is not None)):
                self.parent = checkpoint.name if own else str(checkpoint.path)
                yield checkpoint, state
            else:
                self._damaged.add(checkpoint.name)

    def _pass_over(self, *problems: str | None) -> None:
        for problem in filter(None, problems):
            print(f"checkpoint passed over: {problem}", flush=True)

    def _read(self, checkpoint: Checkpoint) -> tuple[dict[str, Any], str | None]:
        """Returns the checkpoint's state, or the problem with it (not collective)."""
        try:
            return storage.load(checkpoint), None
        except CheckpointError as error:
            return {}, str(error)

    def close(self) -> list[str]:
        """Wait for the pending save, and end the writing thread."""
        problems = self.wait()
        if self._thread:
            self._thread.close()
        return problems

    def find_writer(self) -> None:
        """Choose the writer: the lowest rank whose files this rank can see."""
        self.writer = self.world.first
        if self.world.size == 1 or self.settings.storage == "shared" or self.writer < 0:
            return
        nonce = self.world.from_rank(0, secrets.token_hex(8))
        mark = self.path / f".seen-{nonce}-{self.world.rank}"
        mark.touch()
        self.world.barrier()
        seen = [int(other.name.rsplit("-", 1)[1]) for other in self.path.glob(f".seen-{nonce}-*")]
        self.world.barrier()
        mark.unlink()
        self.writer = min(seen)

"""A checkpoint is written while training waits, or, with `checkpoint.mode: thread`, in a thread while it continues.

For the thread, the state is first copied into host memory, which is allocated once, and pinned if there is an
accelerator. The accelerator copies on a separate stream, in parallel with the next passes. The thread waits until the
copy is complete, and so does the optimizer's next step on the device.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trainloop.checkpoints import retention, storage
from trainloop.checkpoints.storage import CONFIGURATION, STATE, Checkpoint, CheckpointError, Survey
from trainloop.recovery.tensors import mapped


def write(
    directory: Path,
    step: int,
    state: dict[str, Any],
    about: dict[str, Any],
    partial: Path | None = None,
    configuration: str = "",
    version: int | None = None,
    found: Survey | None = None,
) -> Checkpoint:
    """Write a checkpoint of `step` with `state`, which consists of nested dicts and lists of plain values and tensors.

    `about` is added to the manifest, and `configuration` (YAML) is written beside it. Files already in `partial` become
    part of the checkpoint. The default `version` is the next free one. `found` is a survey of the directory, if the
    caller has made one. Raises CheckpointError if writing fails.
    """
    checkpoint = Checkpoint(step, version or storage.next_version(directory, step), directory)
    partial, needed = partial or storage.partial_name(directory, step), storage.size_of(state)
    newest = (found or storage.survey(directory)).whole[:1]
    for last in (False, True):
        try:
            partial.mkdir(parents=True, exist_ok=True)
            if not storage.has_room(partial, needed):
                raise storage.disk_full()
            # Open the file here, because if torch opens it, torch hides the disk's error.
            with (partial / STATE).open("wb") as stream:
                torch.save(state, stream)
            if configuration:
                (partial / CONFIGURATION).write_text(configuration)
            # The time must be later than the newest checkpoint's, which may have been written by a node whose clock is
            # ahead.
            created = max([time.time(), *(one.created + 0.001 for one in newest)])
            storage.write_manifest(partial, step, about, created)
            storage.place(partial, checkpoint)
        except (OSError, RuntimeError) as error:
            if (partial / STATE).is_file():
                needed = max(needed, (partial / STATE).stat().st_size)
                (partial / STATE).unlink()  # frees its bytes for the next try
            if last or not retention.make_room(directory, error, needed, about.get("parent")):
                # Write the message before the ranks' files are deleted. Their bytes are needed too, and must not count
                # as free.
                sentence = retention.refusal(directory, step, error, needed)
                shutil.rmtree(partial, ignore_errors=True)
                raise CheckpointError(sentence) from error
        else:
            break
    return replace(checkpoint, created=created, about=about)


class WritingThread:
    """A writing thread writes one checkpoint after another."""

    def __init__(self) -> None:
        # A thread suffices (no process is needed), because torch and hashlib release the interpreter's lock.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._copies = HostCopies()

    def save(self, directory: Path, step: int, state: dict[str, Any], *more: Any) -> Callable[[], Checkpoint]:
        """Begin a `write` in the thread; returns a function that waits until the checkpoint is written.

        Tensors of `state` on an accelerator mustn't change until the optimizer's next step.

        Call this only when the previous checkpoint is written.
        """
        copied, done = self._copies.begin(state)

        def written() -> Checkpoint:
            if done is not None:
                done.synchronize()
            return write(directory, step, copied, *more)

        return self._thread.submit(written).result

    def close(self) -> None:
        self._thread.shutdown()
        self._copies.close()


class HostCopies:
    """This class copies a state's tensors to the host, and reuses the same memory each time."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[Any, ...], torch.Tensor] = {}
        self._stream: torch.Stream | None = None
        self._done: torch.Event | None = None  # the end of the newest copy; None once the device's queue waits for it
        self._copied: Any = None  # the state that is being copied, whose memory mustn't be reused until then
        self._hook = register_optimizer_step_pre_hook(lambda *_: self.before_change())

    def begin(self, state: dict[str, Any]) -> tuple[dict[str, Any], torch.Event | None]:
        """Begin to copy `state` after the device's queued work.

        Returns the copy and an event, which marks the copy's completion; the event is None if the copy is already
        complete. Call this only when the previous copy is no longer needed.
        """
        device = next(iter(_devices(state)), None)
        if device is None:
            return self._copy((), state), None
        self._stream = self._stream or torch.Stream(device)
        self._stream.wait_stream(torch.accelerator.current_stream(device))
        with self._stream:
            copy = self._copy((), state)
        self._done, self._copied = self._stream.record_event(), state
        return copy, self._done

    def before_change(self) -> None:
        """Makes the device complete the copy before later changes to the state."""
        if self._done is not None:
            self._done.wait()
            self._done = self._copied = None

    def close(self) -> None:
        self._hook.remove()

    def _copy(self, path: tuple[Any, ...], value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            buffer = self._buffers.get(path)
            if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
                buffer = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.device.type != "cpu")
                self._buffers[path] = buffer
            return buffer.copy_(value, non_blocking=True)
        if isinstance(value, dict):
            return {name: self._copy((*path, name), item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._copy((*path, index), item) for index, item in enumerate(value))
        return value


def _devices(state: Any) -> set[torch.device]:
    """Returns the accelerators that hold tensors in nested values."""
    found = set[torch.device]()
    mapped(state, lambda tensor: found.add(tensor.device))
    return {device for device in found if device.type != "cpu"}

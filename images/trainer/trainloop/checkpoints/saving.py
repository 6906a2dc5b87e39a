"""A state is written to the disk in one of three ways: at once, by a thread, by a process.

The asynchronous ways first copy the state into staging buffers in host memory (pinned where there is an accelerator,
shared with the writing process), which are allocated once; training goes on as soon as that copy is done.
"""

from __future__ import annotations

import shutil
import signal
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import torch
import torch.multiprocessing as multiprocessing

from trainloop.checkpoints import storage
from trainloop.checkpoints.storage import Checkpoint
from trainloop.checkpoints.verification import CheckpointError


class Saver:
    """Writes one checkpoint after another; the future ends with it, or with CheckpointError."""

    def __init__(self, mode: Literal["sync", "thread", "process"]) -> None:
        # torch's and hashlib's loops release the interpreter's lock.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._process = _WritingProcess() if mode == "process" else None
        self._staging = Staging(shared=mode == "process") if mode != "sync" else None

    def save(
        self, directory: Path, step: int, state: dict[str, Any], about: dict[str, Any], partial: Path | None = None
    ) -> Future[Checkpoint]:
        """Begin to write `state`, which may change when this returns, where the mode is asynchronous.

        Only when the one before has been written.
        """
        try:
            staged = self._staging.stage(state) if self._staging else state
        except CheckpointError as error:
            failed: Future[Checkpoint] = Future()
            failed.set_exception(error)
            return failed
        write = self._process.write if self._process else storage.write
        return self._thread.submit(write, directory, step, staged, about, partial)

    def close(self) -> None:
        self._thread.shutdown()
        if self._process:
            self._process.close()


class Staging:
    """Keeps host copies of a state's tensors from one checkpoint to the next.

    `stage` may only be called when the previous state has been written: its buffers are used again.
    """

    def __init__(self, shared: bool) -> None:
        self._shared = shared
        self._buffers: dict[tuple[Any, ...], torch.Tensor] = {}

    def stage(self, state: dict[str, Any]) -> dict[str, Any]:
        """Returns a copy of `state` whose tensors are in host memory."""
        staged = {name: self._copy((name,), value) for name, value in state.items()}
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        return staged

    def _copy(self, path: tuple[Any, ...], value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            buffer = self._buffers.get(path)
            if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
                buffer = self._buffers[path] = self._allocate(value)
            return buffer.copy_(value, non_blocking=True)
        if isinstance(value, dict):
            return {name: self._copy((*path, name), item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._copy((*path, index), item) for index, item in enumerate(value))
        return value

    def _allocate(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self._shared:
            return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type != "cpu")
        free = shutil.disk_usage("/dev/shm").free
        if tensor.nbytes > free:
            raise CheckpointError(
                f"/dev/shm has {free >> 20} MiB free, a tensor of {tensor.nbytes >> 20} MiB doesn't fit: "
                "raise resources.sharedMemory to the size of the state, or set checkpoint.mode to thread"
            )
        shared: torch.Tensor = torch.empty(tensor.shape, dtype=tensor.dtype).share_memory_()  # type: ignore[no-untyped-call]
        return shared


class _WritingProcess:
    """A process of its own writes, from memory that it shares with this one."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_write_until_closed, args=(theirs,), daemon=True, name="checkpoint")
        self._process.start()
        theirs.close()

    def write(self, directory: Path, step: int, *what: Any) -> Checkpoint:
        """Does what `storage.write` does."""
        try:
            self._connection.send((directory, step, *what))
            answer: Checkpoint | CheckpointError = self._connection.recv()
        except (EOFError, OSError) as error:
            raise CheckpointError(f"checkpoint of step {step}: the writing process has ended") from error
        if isinstance(answer, CheckpointError):
            raise answer
        return answer

    def close(self) -> None:
        self._connection.close()
        self._process.join(10)


def _write_until_closed(connection: Connection) -> None:
    """Runs the writing process, which answers each request with a Checkpoint or with what went wrong."""
    torch.set_num_threads(1)
    # The trainer decides when this process ends: a checkpoint that is being written at SIGTERM must be finished.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            connection.send(storage.write(*request))
        except CheckpointError as error:
            connection.send(error)

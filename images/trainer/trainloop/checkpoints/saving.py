"""With `checkpoint.mode: thread` a thread writes the state while training goes on.

The state is first copied into staging buffers in host memory (pinned where there is an accelerator), which are
allocated once; training goes on as soon as that copy is done.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from trainloop.checkpoints import storage
from trainloop.checkpoints.storage import Checkpoint


class WritingThread:
    """Writes one checkpoint after another."""

    def __init__(self) -> None:
        # torch's and hashlib's loops release the interpreter's lock.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._staging = Staging()

    def save(self, directory: Path, step: int, state: dict[str, Any], *more: Any) -> Callable[[], Checkpoint]:
        """Begin to do what `storage.write` does; `state` may change when this returns. Returns what waits for the end.

        Only when the one before has been written.
        """
        return self._thread.submit(storage.write, directory, step, self._staging.stage(state), *more).result

    def close(self) -> None:
        self._thread.shutdown()


class Staging:
    """Keeps host copies of a state's tensors from one checkpoint to the next.

    `stage` may only be called when the previous state has been written: its buffers are used again.
    """

    def __init__(self) -> None:
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
                buffer = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.device.type != "cpu")
                self._buffers[path] = buffer
            return buffer.copy_(value, non_blocking=True)
        if isinstance(value, dict):
            return {name: self._copy((*path, name), item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._copy((*path, index), item) for index, item in enumerate(value))
        return value

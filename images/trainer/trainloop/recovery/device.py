"""A device runs work later than the host queues it; this module defines the operations for keeping a device's state.

When a rank is dead, the other ranks' collectives never end, and work queued behind them never runs. Then a device's
memory can be read only by copies on a separate stream, into memory that was pinned before. Copies to pageable memory,
new allocations, and the first load of a kernel may wait for the device.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch


class Event(Protocol):
    """An event is complete when all work that was queued before the event was recorded is done."""

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...


class Device:
    """The CPU is a device that finishes each call before returning. `Queue` is a device that works later."""

    #: Whether the host runs ahead of the device.
    queues = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def event(self) -> Event:
        """Returns an event that is complete when everything that the calling thread has queued is done."""
        return _DONE

    def synchronize(self) -> None:
        """Wait until everything queued is done."""

    def stream(self) -> Any:
        """Returns a queue that is separate from the one used for training."""
        return None

    def enter_thread(self) -> None:
        """Select the device in a new thread, which would otherwise open and use the machine's first device."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Returns a context in which work is queued to `stream`."""
        return nullcontext()

    def wait(self, event: Event) -> None:
        """Make the calling thread's later queued work wait for `event`, without blocking the host."""

    def copy(self, places: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
        """Queue copies of tensors of one type and equal sizes.

        A device copies them all in one kernel, or without a kernel if the targets are on the host.
        """
        torch._foreach_copy_(places, sources, non_blocking=True)

    def pin(self, memory: torch.Tensor) -> str | None:
        """Pin host memory for this process's lifetime; returns the reason if that fails."""
        return None


class Queue(Device):
    """An accelerator works through a queue."""

    queues = True

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._module: Any = torch.get_device_module(device)

    def event(self) -> Event:
        event: Any = self._module.Event()
        event.record(self._module.current_stream(self.device))
        found: Event = event
        return found

    def synchronize(self) -> None:
        self._module.synchronize(self.device)

    def stream(self) -> Any:
        return self._module.Stream(device=self.device)

    def enter_thread(self) -> None:
        self._module.set_device(self.device)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._module.stream(stream)
        return context

    def wait(self, event: Any) -> None:
        self._module.current_stream(self.device).wait_event(event)

    def pin(self, memory: torch.Tensor) -> str | None:
        if self.device.type != "cuda":  # ROCm counts as cuda
            return f"{self.device.type} has no call for it"
        refused = list[str]()

        def register() -> None:
            self.enter_thread()
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            # A single call, because a copy may not cross from one registered range into another.
            if error := int(runtime.cudaHostRegister(memory.data_ptr(), memory.numel(), 1)):
                refused.append(f"cudaHostRegister of {memory.numel():,} bytes returns {error}")

        # In a separate thread, because after a failure the same thread's next kernel would raise the error.
        thread = threading.Thread(target=register)
        thread.start()
        thread.join()
        return refused[0] if refused else None


class _Done:
    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


_DONE = _Done()


def device_of(device: torch.device) -> Device:
    """Returns the Device or Queue for a torch device."""
    return Device(device) if device.type == "cpu" else Queue(device)

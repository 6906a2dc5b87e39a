"""A device works later than the host queues; keeping a state relies on what this module defines.

While a rank is dead its peers' collectives never end, and nothing that is queued behind them ever runs. The device's
memory is then read over a stream of its own, into memory that was pinned before, by copies alone: pageable memory,
memory that has to be allocated, and a kernel that is loaded for its first use may each wait for the device.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch


class Event(Protocol):
    """An event is there when all is done that was queued before it was recorded."""

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...


class Device:
    """The CPU: what was called is done when the call returns. `Queue` is a device that it isn't so with."""

    #: Whether the host runs ahead of it.
    queues = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def event(self) -> Event:
        """Returns an event behind all that the calling thread has queued."""
        return _DONE

    def synchronize(self) -> None:
        """Wait until all is done that was queued."""

    def stream(self) -> Any:
        """Returns a queue beside the one that trains."""
        return None

    def enter_thread(self) -> None:
        """Begin to use the device in a thread; a new one has the first device otherwise, and would open it."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Surrounds what is queued to `stream`."""
        return nullcontext()

    def wait(self, event: Event) -> None:
        """Let what the calling thread queues from now on wait for `event`; the host doesn't."""

    def copy(self, places: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
        """Queue copies, of one type and as many bytes each; on a device in one kernel, to the host in none."""
        torch._foreach_copy_(places, sources, non_blocking=True)

    def pin(self, memory: torch.Tensor) -> str | None:
        """Pin host memory for as long as this process lives; returns why it can't be."""
        return None


class Queue(Device):
    """An accelerator."""

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
        if self.device.type != "cuda":  # ROCm is cuda too
            return f"{self.device.type} has no call for it"
        refused = list[str]()

        def register() -> None:
            self.enter_thread()
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            # In one call, because a copy may not cross from one registered range into another.
            if error := int(runtime.cudaHostRegister(memory.data_ptr(), memory.numel(), 1)):
                refused.append(f"cudaHostRegister of {memory.numel():,} bytes returns {error}")

        # In a thread of its own: where it fails, the next kernel that the same thread starts would raise the error.
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
    """Returns what works off what is queued for `device`."""
    return Device(device) if device.type == "cpu" else Queue(device)

"""A fake device, for machines without an accelerator, whose work lags, stalls for good, or is ended.

Its memory is the host's, and each of its streams is a thread that works through its queue in order. Training queues its
work by `run`; code that keeps a state queues copies and events as on any device.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from trainloop.recovery.device import Device


class FakeEvent:
    def __init__(self) -> None:
        self.reached = threading.Event()

    def query(self) -> bool:
        return self.reached.is_set()

    def synchronize(self) -> None:
        assert self.reached.wait(20), "the host waits for what the device never gets to"


class Stream:
    """Runs a queue and the thread that works through it."""

    def __init__(self) -> None:
        self._queue = queue.SimpleQueue[Callable[[], Any]]()
        threading.Thread(target=self._work, daemon=True).start()

    def put(self, work: Callable[[], Any]) -> None:
        self._queue.put(work)

    def _work(self) -> None:
        while True:
            self._queue.get()()


class FakeDevice(Device):
    """Fakes the device. Its `collective` doesn't end before `end_collective` is called."""

    queues = True

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self._main, self._current = Stream(), threading.local()
        self.waits = threading.Event()  # set while a collective hasn't been ended
        self._ended = threading.Event()
        #: Called before each copy: a test delays the copies, or ends something meanwhile.
        self.before_copy: Callable[[], None] = lambda: None
        #: How many bytes each queued call has copied.
        self.copied = list[int]()

    def run(self, work: Callable[[], Any]) -> None:
        """Queue work on the calling thread's stream."""
        getattr(self._current, "stream", self._main).put(work)

    def collective(self) -> None:
        """Queue a collective in which a rank is dead."""

        def wait() -> None:
            self.waits.set()
            self._ended.wait()

        self.run(wait)

    def end_collective(self) -> None:
        """End the collective, as aborting the communicator or a late rank's arrival does."""
        self._ended.set()

    def synchronize(self) -> None:
        """Wait until all training work is done."""
        event = FakeEvent()
        self._main.put(event.reached.set)
        event.synchronize()

    def event(self) -> FakeEvent:
        event = FakeEvent()
        self.run(event.reached.set)
        return event

    def stream(self) -> Stream:
        return Stream()

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before = getattr(self._current, "stream", self._main)
        self._current.stream = stream
        try:
            yield
        finally:
            self._current.stream = before

    def wait(self, event: Any) -> None:
        self.run(event.reached.wait)

    def copy(self, places: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
        self.copied.append(sum(place.nbytes for place in places))

        def work() -> None:
            if sum(place.numel() for place in places) > 64:  # a state rather than a flag
                self.before_copy()
            torch._foreach_copy_(places, sources)

        self.run(work)

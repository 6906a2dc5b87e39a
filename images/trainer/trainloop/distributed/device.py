"""This module chooses a rank's device and backend, and measures the work that the device does asynchronously."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from torch import Tensor

from trainloop.errors import ConfigError


def choose_device(kind: str, local_rank: int) -> torch.device:
    """Returns this rank's device: the accelerator whose index is the local rank, or the CPU.

    Raises ConfigError if there is no device of the requested kind, or fewer devices than local ranks.
    """
    present = torch.accelerator.current_accelerator(check_available=True)
    if kind == "cpu" or (kind == "auto" and present is None):
        return torch.device("cpu")
    if present is None or (kind != "auto" and present.type != kind):
        there = present.type if present else "only the CPU"
        raise ConfigError(f"distributed.device is {kind!r} but this machine has {there}: set it to auto")
    if local_rank >= torch.accelerator.device_count():
        raise ConfigError(
            f"local rank {local_rank} has no {present.type} device, {torch.accelerator.device_count()} are visible: "
            "start one process for each device (processesPerWorker)"
        )
    torch.accelerator.set_device_index(local_rank)
    return torch.device(present.type, local_rank)


def choose_backend(name: str, device: torch.device) -> str:
    """Returns the backend for `device`, which is `name` unless `name` is `auto`.

    For `auto` it is the operator's choice, or else the device's default. Raises ConfigError if this build of torch
    lacks the backend.
    """
    name = os.environ.get("TRAINMASTER_BACKEND", "auto") if name == "auto" else name
    name = dist.get_default_backend_for_device(device) if name == "auto" else name
    known = [backend for backend in dist.Backend.backend_list if dist.is_backend_available(backend)]
    if name.lower() not in known:
        raise ConfigError(f"distributed.backend is {name!r}: this torch build has {', '.join(known)}; use one or auto")
    return name


class Clock:
    """A clock marks points in time in a device's work.

    An accelerator works asynchronously, so such a point is an event in the device's queue. The seconds between two
    events are read only when they are reported, because reading waits for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> float | torch.Event:
        if self._device.type == "cpu":
            return time.perf_counter()
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event


def seconds_between(begin: float | torch.Event, end: float | torch.Event) -> float:
    """Returns the seconds between two points in time; waits until the device has reached the second one."""
    if isinstance(begin, float):
        assert isinstance(end, float)
        return end - begin
    assert isinstance(end, torch.Event)
    end.synchronize()
    return begin.elapsed_time(end) / 1000


class Numbers:
    """This class copies scalars asynchronously from a device to memory on the host, which torch pins."""

    def __init__(self, *scalars: Tensor) -> None:
        self.there = torch.stack(scalars)
        self._here = self.there.to("cpu", non_blocking=True)
        self._arrived = torch.Event(self.there.device) if self.there.device.type != "cpu" else None
        if self._arrived is not None:
            self._arrived.record()

    def read(self) -> list[float]:
        """Returns the scalars; waits until the device has computed them."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return list(self._here.tolist())

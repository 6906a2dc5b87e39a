"""A rank's device and backend are chosen here, and what the device does is timed and read, behind the host's back."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from torch import Tensor

from trainloop.errors import ConfigError


def choose_device(kind: str, local_rank: int) -> torch.device:
    """Returns the device of this rank: the local rank's accelerator, or the CPU.

    Raises ConfigError when the wanted kind isn't there or has fewer devices than ranks.
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
    """Returns the backend for `device`: `name`, or with `auto` the operator's choice, or the device's own.

    Raises ConfigError for a backend that this build of torch doesn't have.
    """
    name = os.environ.get("TRAINMASTER_BACKEND", "auto") if name == "auto" else name
    name = dist.get_default_backend_for_device(device) if name == "auto" else name
    known = [backend for backend in dist.Backend.backend_list if dist.is_backend_available(backend)]
    if name.lower() not in known:
        raise ConfigError(f"distributed.backend is {name!r}: this torch build has {', '.join(known)}; use one or auto")
    return name


class Clock:
    """Takes moments of a device's work.

    An accelerator works behind the host's back, so there a moment is an event in the device's own queue. Seconds
    between two of them are read only when they are reported, because reading waits for the device.
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
    """Returns the seconds from one moment to another; waits for the device to reach the second one."""
    if isinstance(begin, float):
        assert isinstance(end, float)
        return end - begin
    assert isinstance(end, torch.Event)
    end.synchronize()
    return begin.elapsed_time(end) / 1000


class Numbers:
    """Scalars of a device are on their way to the host, in memory that torch pins for them."""

    def __init__(self, *scalars: Tensor) -> None:
        self.there = torch.stack(scalars)
        self._here = self.there.to("cpu", non_blocking=True)
        self._arrived = torch.Event(self.there.device) if self.there.device.type != "cpu" else None
        if self._arrived is not None:
            self._arrived.record()

    def read(self) -> list[float]:
        """Returns them; waits until the device has computed them."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return list(self._here.tolist())

"""A world describes a rank's place, device and backend, and provides the collectives that all other modules use.

Rank and world size are read from the environment, where torchrun or the Trainmaster agent sets them; without these
variables there is a single process. `World`'s collectives are for control (counts, flags, reports). They use CPU
tensors over gloo instead of the accelerator's backend, so that they never queue behind gradients on the device's
stream. `average`, in contrast, processes tensors on their own device.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypeVar, cast

import torch
import torch.distributed as dist
from pydantic import Field
from torch.distributed import Store, rendezvous

from trainloop.distributed.device import choose_backend, choose_device
from trainloop.distributed.serialization import decode, encode
from trainloop.errors import ConfigError, TrainingError
from trainloop.settings import Settings

T = TypeVar("T")

# : The size limit of a message. The largest messages are ranks' parts of an optimizer's state (ZeRO-1).
MAX_MESSAGE_BYTES = 1 << 40


class DistributedSettings(Settings):
    """These settings decide how the ranks communicate, and on which devices."""

    backend: str = Field("auto", description="nccl, gloo, hccl, …; auto: TRAINMASTER_BACKEND, or the device's own.")
    device: str = Field("auto", description="Device kind: auto (an accelerator if any), cpu, cuda, npu, xpu.")
    timeout_seconds: float = Field(600.0, gt=0, description="Seconds a collective may take before the rank gives up.")
    interface: str | None = Field(None, description="Network interface (eth0, say); null lets the library choose.")
    debug: Literal["off", "warn", "info", "detail"] = Field("off", description="What NCCL, HCCL and torch print.")


PreflightCheck = Callable[[Store, int, int], None]


@dataclass(frozen=True)
class World:
    """The world describes a rank's place in the group.

    If `size` is 1, there is no process group, and collectives return the rank's own values.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    device: torch.device
    backend: str
    store: Store | None = None  # the rendezvous' key-value store, which needs no collective
    tensor: int = 1  # number of neighbouring ranks that share each layer, and so use the same data
    replicas: int = 1  # number of copies of a sharded state; the ranks of each copy are neighbours

    @property
    def present(self) -> Sequence[int]:
        """Returns the ranks that train now."""
        return range(self.size)

    @property
    def first(self) -> int:
        """Returns the lowest rank that trains now."""
        return 0

    @property
    def is_main(self) -> bool:
        return self.rank == self.first

    @property
    def data_rank(self) -> int:
        """Returns the index of the part of the data that this rank reads; there are `data_size` parts."""
        return self.rank // self.tensor

    @property
    def data_size(self) -> int:
        return self.size // self.tensor

    @property
    def unit(self) -> int:
        """Returns the number of neighbouring ranks that together hold a complete state if the state is sharded."""
        return self.size // self.replicas

    def barrier(self) -> None:
        """Makes the host wait until all ranks have called this."""
        self.sum([0.0])

    def sum(self, values: Sequence[float]) -> list[float]:
        """Returns the element-wise sum over ranks in double precision; it is the same on every rank, bit for bit."""
        return self.summing(values)()

    def summing(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """Starts a sum over ranks on the host, as in `sum`; returns a function that waits for the result."""
        if self.size == 1:
            return lambda: list(values)
        waited = _all_reduced(torch.tensor(values, dtype=torch.float64))
        return lambda: list(waited().tolist())

    def averaging(self, number: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Starts to average a scalar tensor over ranks, on its device; returns a function that waits for the mean.

        If the tensor is on an accelerator, only the accelerator waits, and the host doesn't.
        """
        return _all_reduced(number / self.size) if self.size > 1 else lambda: number

    def gather_numbers(self, values: Sequence[float]) -> list[list[float]]:
        """Returns every rank's `values`, in rank order, on every rank. All ranks must pass equally many values."""
        count = len(values)
        others = self.size - 1 - self.rank
        flat = self.sum([0.0] * count * self.rank + list(values) + [0.0] * count * others)
        return [flat[start : start + count] for start in range(0, len(flat), count)]

    def gather(self, value: T) -> list[T]:
        """Returns every rank's `value` in rank order, on every rank.

        A value consists of plain values and tensors (see `serialization`). Received tensors are on the CPU.
        """
        if self.size == 1:
            return [value]
        message = encode(value)
        lengths = [_plausible(size) for [size] in self.gather_numbers([message.numel()])]
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: message.numel()] = message
        gathered = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(gathered, padded)
        return [decode(one[:length]) for one, length in zip(gathered, lengths, strict=True)]

    def from_rank(self, source: int, value: T) -> T:
        """Returns the `value` of rank `source` on every rank; the same types are allowed as in `gather`."""
        if self.size == 1:
            return value
        message = encode(value) if self.rank == source else torch.empty(0, dtype=torch.uint8)
        [size] = self.sum([message.numel()])
        if self.rank != source:
            message = torch.empty(_plausible(size), dtype=torch.uint8)
        dist.broadcast(message, source)
        return value if self.rank == source else cast("T", decode(message))


def _all_reduced(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Starts a sum over ranks in place; returns a function that waits for the result."""
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None

    def waited() -> torch.Tensor:
        work.wait()
        return tensor

    return waited


def _plausible(size: float) -> int:
    """Returns the size of another rank's message. Raises TrainingError if no rank can have sent such a size."""
    if not 0 < size <= MAX_MESSAGE_BYTES:
        raise TrainingError(f"what came over the network isn't a message of trainloop: {size:.0f} bytes")
    return int(size)


def ring_bytes(numbers: int, size: int, element: int) -> int:
    """Returns the bytes that a rank sends in a ring all-reduce among `size` ranks.

    The reduced tensor has `numbers` elements of `element` bytes.
    """
    return 2 * numbers * element * (size - 1) // size


def average(tensors: Iterable[torch.Tensor]) -> int:
    """Replaces floating-point `tensors` by their means over ranks, in one all-reduce; returns the bytes sent."""
    floats = [tensor.detach() for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    if not floats or not dist.is_initialized():
        return 0
    flat = torch.cat([tensor.reshape(-1) for tensor in floats]).div_(dist.get_world_size())
    dist.all_reduce(flat)
    for tensor, mean in zip(floats, torch.split(flat, [tensor.numel() for tensor in floats]), strict=True):
        tensor.copy_(mean.view_as(tensor))
    return ring_bytes(flat.numel(), dist.get_world_size(), flat.element_size())


def environment() -> tuple[int, int, int, int]:
    """Returns rank, world size, local rank and local world size from the environment.

    Without torchrun or an agent, these are (0, 1, 0, 1). Raises ConfigError if the variables contradict each other.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    if not 0 <= rank < size:
        raise ConfigError(f"RANK is {rank} with WORLD_SIZE {size}: it must be from 0 to {size - 1}")
    if size > 1 and "MASTER_ADDR" not in os.environ:
        raise ConfigError(f"WORLD_SIZE is {size} but MASTER_ADDR is not set: start the ranks with torchrun")
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return rank, size, int(os.environ.get("LOCAL_RANK", str(rank % local_size))), local_size


def has_agent() -> bool:
    """Returns whether Trainmaster's agent runs this rank. The agent then detects hangs and compares environments."""
    return "TRAINMASTER_ATTEMPT" in os.environ


# : References to groups that this process joined. DDP's reducer refers to a group too. If that reference is the last
# : one, the group's destructor waits for gloo's threads while it holds the interpreter's lock. A thread that frees a
# : tensor may need this lock, so one run in forty hung when it ended (torch 2.13). With a reference here, the
# : destructor runs without the lock.
_left: list[object] = []
# The list is cleared at exit, because a group that still exists when the interpreter shuts down aborts the process.
atexit.register(_left.clear)


@contextmanager
def joined(settings: DistributedSettings, check: PreflightCheck | None = None) -> Iterator[World]:
    """Joins the group of ranks for the `with` body, and leaves the group cleanly if the body succeeds.

    `check` is called with the rendezvous' store, rank and world size before the first collective.

    If the body raises, the process group isn't destroyed: destroying it could wait for lost peers, and the process is
    about to end.
    """
    rank, size, local_rank, local_size = environment()
    device = choose_device(settings.device, local_rank)
    backend = choose_backend(settings.backend, device)
    if size == 1:
        yield World(rank, size, local_rank, local_size, device, backend)
        return
    hand_over(settings)
    timeout = timedelta(seconds=settings.timeout_seconds)
    store, _, _ = next(rendezvous("env://", rank, size, timeout=timeout))
    store.set_timeout(timeout)
    if check is not None:
        check(store, rank, size)
    both = backend if backend == "gloo" or device.type == "cpu" else f"cpu:gloo,{device.type}:{backend}"
    dist.init_process_group(both, store=store, rank=rank, world_size=size, timeout=timeout)
    _left.append(dist.group.WORLD)
    world = World(rank, size, local_rank, local_size, device, backend, store)
    if has_agent():
        from trainloop.distributed.diagnostics import serve_flight_recorder

        serve_flight_recorder(rank, both)
    yield world
    world.barrier()
    dist.destroy_process_group()


def hand_over(settings: DistributedSettings) -> None:
    """Sets the interface and the debug level in the environment, from which the communication libraries read them."""
    if settings.interface:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, settings.interface)
    # torch's flight recorder keeps each rank's last collectives, and dumps them if one times out.
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    if settings.debug != "off":
        level = {"warn": "WARN", "info": "INFO", "detail": "INFO"}[settings.debug]
        os.environ.setdefault("NCCL_DEBUG", level)
        os.environ.setdefault("TORCH_DISTRIBUTED_DEBUG", "DETAIL" if settings.debug == "detail" else "INFO")
        os.environ.setdefault("ASCEND_GLOBAL_LOG_LEVEL", "2" if settings.debug == "warn" else "1")

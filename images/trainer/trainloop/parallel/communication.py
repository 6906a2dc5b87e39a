"""DDP's communication hook sends gradients between ranks, and measures how long that takes.

The hook is called for each bucket as its gradients become ready, in the same order on every rank. When the last one
is called this rank's own computing is done; what the backward still lasts from there on is communication that nothing
hides.

Annotations are evaluated in this module, because DDP compares those of `reduce`.
"""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from pydantic import Field
from torch import Tensor
from torch.distributed import GradBucket
from torch.futures import Future

from trainloop.parallel.compression import Compressor, Memory, Method, carried_over, compressor_for
from trainloop.settings import Settings


class CommunicationSettings(Settings):
    """These settings say what DDP sends."""

    compression: Method = Field("none", description="Of gradients; docs/training.md says what each one saves.")
    powersgd_rank: int = Field(4, ge=1, description="Columns of PowerSGD's thin matrices.")
    start_step: int = Field(0, ge=0, description="Steps without compression at first; onebit often needs hundreds.")
    local_steps: int = Field(1, ge=1, description="Local SGD: steps between two averages of the weights; 1 is DDP.")


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
    if isinstance(begin, float) or isinstance(end, float):
        return float(end) - float(begin)  # type: ignore[arg-type]
    end.synchronize()
    return begin.elapsed_time(end) / 1000


@dataclass
class StepTimes:
    """Measures one step's communication on this rank, as moments of its `Clock` and in bytes."""

    began: float | torch.Event = 0.0
    ready: float | torch.Event | None = None  # when this rank's own gradients were
    done: float | torch.Event = 0.0  # when all ranks' were reduced
    sent: int = 0

    @property
    def computed(self) -> float:
        """Returns how many seconds this rank itself computed."""
        return seconds_between(self.began, self.done if self.ready is None else self.ready)

    @property
    def exposed(self) -> float:
        """Returns how many seconds this rank waited for gradients that others hadn't sent yet."""
        return 0.0 if self.ready is None else seconds_between(self.ready, self.done)


class GradientExchange:
    """Compresses, counts bytes, and records when this rank's own computing was done; it is the hook's state."""

    def __init__(self, settings: CommunicationSettings, device: torch.device) -> None:
        self.settings = settings
        self.clock = Clock(device)
        self.times = StepTimes()
        #: The parameters' names; the strategy sets them.
        self.names: dict[Tensor, str] = {}
        #: What compression left out of the steps so far, by parameter.
        self.memory: Memory = {}
        #: Bytes that this rank has sent in this step's forward and backward passes.
        self.sent = 0
        self._compressor = compressor_for(settings.compression, settings.powersgd_rank)
        self._plain = Compressor()
        self._step = 0
        self._before: Memory = {}

    def begin(self, step: int) -> None:
        """Begin to measure: the step's first forward comes now."""
        self._step, self._before, self.sent = step, dict(self.memory), 0
        self.times = StepTimes(began=self.clock.now())

    def end(self) -> None:
        """End measuring: the step's last backward has returned, and all gradients are reduced."""
        self.times.done = self.clock.now()
        self.times.sent = self.sent
        if self.memory or self._before:
            # DDP drops what was sent for a parameter that no rank has used.
            self._take_back({name for parameter, name in self.names.items() if parameter.grad is None})

    def reduce(self, bucket: GradBucket) -> Future[Tensor]:
        """Returns the bucket's mean over ranks; this is DDP's hook."""
        if bucket.is_last():
            self.times.ready = self.clock.now()
        names = [self.names[parameter] for parameter in bucket.parameters()]
        compressor = self._plain if self._step < self.settings.start_step else self._compressor
        weights = {"left": 1} if compressor.keeps_means else {"left": 1, "mean_left": dist.get_world_size()}
        for name, gradient in zip(names, bucket.gradients(), strict=True):
            for kind, weight in weights.items():
                if (kept := self.memory.pop(f"{name}.{kind}", None)) is not None:
                    gradient.add_(kept.to(gradient.device), alpha=weight)
        future, sent = compressor.reduce(bucket, names, self.memory)
        self.sent += sent
        return future

    def skip(self) -> None:
        """Take back what this step left out, because the step isn't made; what was left out before it stays."""
        self._take_back(set(self.names.values()))

    def _take_back(self, names: set[str]) -> None:
        for key in {*self.memory, *self._before}:
            if key.rpartition(".")[0] in names:
                self.memory.pop(key, None)
                if key in self._before:
                    self.memory[key] = self._before[key]

    def load(self, memories: list[Memory], rank: int, size: int) -> bool:
        """Load all ranks' memories of a checkpoint; returns whether some of it fits no parameter and is dropped."""
        memory = memories[rank] if len(memories) == size else carried_over(memories)
        shapes = {name: parameter.shape for parameter, name in self.names.items()}
        kinds = {"left", "mean_left", "factor"}
        self.memory = {
            key: kept
            for key, kept in memory.items()
            for name, _, kind in [key.rpartition(".")]
            if name in shapes and kind in kinds and (kind == "factor" or kept.shape == shapes[name])
        }
        return len(self.memory) < len(memory)

"""DDP's communication hook sends gradients between ranks, and measures how long that takes.

The hook is called for each bucket as its gradients become ready, in the same order on every rank. When the last one
is called this rank's own computing is done; what the backward still lasts from there on is communication that nothing
hides.

Annotations are evaluated in this module, because DDP compares those of `reduce`.
"""

import time
from dataclasses import dataclass

from pydantic import Field
from torch import Tensor
from torch.distributed import GradBucket
from torch.futures import Future

from trainloop.parallel.compression import Compressor, Method, compressor_for
from trainloop.settings import Settings


class CommunicationSettings(Settings):
    """These settings say what DDP sends."""

    compression: Method = Field("none", description="Of gradients; docs/training.md says what each one saves.")
    powersgd_rank: int = Field(4, ge=1, description="Columns of PowerSGD's thin matrices.")
    start_step: int = Field(0, ge=0, description="Steps without compression at first; onebit often needs hundreds.")
    local_steps: int = Field(1, ge=1, description="Local SGD: steps between two averages of the weights; 1 is DDP.")


@dataclass
class StepTimes:
    """Measures one step's communication on this rank, in seconds and bytes."""

    began: float = 0.0
    ready: float = 0.0  # when this rank's own gradients were
    exposed: float = 0.0
    sent: int = 0

    @property
    def computed(self) -> float:
        """Returns how long this rank itself computed."""
        return self.ready - self.began


class GradientExchange:
    """Compresses, counts bytes, and records when this rank's own computing was done; it is the hook's state."""

    def __init__(self, settings: CommunicationSettings) -> None:
        self.settings = settings
        self.compressor = compressor_for(settings.compression, settings.powersgd_rank)
        self.times = StepTimes()
        self._plain = Compressor()
        self._step = 0

    def begin(self, step: int) -> None:
        """Begin to measure: the step's first forward comes now."""
        self._step = step
        self.times = StepTimes(began=time.perf_counter())

    def end(self) -> None:
        """End measuring: the step's last backward has returned, and all gradients are reduced."""
        now = time.perf_counter()
        self.times.ready = self.times.ready or now
        self.times.exposed = now - self.times.ready

    def reduce(self, bucket: GradBucket) -> Future[Tensor]:
        """Returns the bucket's mean over ranks; this is DDP's hook."""
        if bucket.is_last():
            self.times.ready = time.perf_counter()
        compressor = self._plain if self._step < self.settings.start_step else self.compressor
        future, sent = compressor.reduce(bucket)
        self.times.sent += sent
        return future

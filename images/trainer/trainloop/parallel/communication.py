"""DDP's communication hook sends gradients between ranks, and measures how long that takes.

DDP calls the hook for each bucket when its gradients are ready, in the same order on every rank. At the last call, this
rank has finished its own computing, and the rest of the backward pass is exposed communication. Only the hook sees a
rank's own gradients, because they are then replaced by the mean over the ranks.

Annotations are evaluated in this module, because DDP compares the annotations of `reduce`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch
from pydantic import Field
from torch import Tensor
from torch.distributed import GradBucket
from torch.futures import Future

from trainloop.distributed.device import Clock, seconds_between
from trainloop.parallel.compression import Compressor, Memory, Method
from trainloop.settings import Settings

if TYPE_CHECKING:
    from trainloop.parallel.lossy import Feedback


T = TypeVar("T")


class CommunicationSettings(Settings):
    """These settings decide what ranks send each other in a step."""

    compression: Method = Field(
        "none", description="Compression of gradients; docs/training.md lists what each method saves."
    )
    powersgd_rank: int = Field(4, ge=1, description="Columns of PowerSGD's thin matrices.")
    start_step: int = Field(0, ge=0, description="Steps without compression at first; onebit often needs hundreds.")
    local_steps: int = Field(1, ge=1, description="Local SGD: steps between two averages of the weights; 1 is DDP.")


@dataclass
class StepTimes:
    """This class holds points in time of one step on this rank, by its `Clock`, and the bytes that it sent."""

    began: float | torch.Event = 0.0
    idle: tuple[float | torch.Event, float | torch.Event] = (0.0, 0.0)  # when the wait for other ranks began and ended
    ready: float | torch.Event | None = None  # when this rank's own gradients were ready
    done: float | torch.Event = 0.0  # when all ranks' gradients were reduced
    sent: int = 0
    norm: Tensor | None = None  # norm of this rank's own gradients, if measured before the reduction

    @property
    def computed(self) -> float:
        """Returns the seconds that this rank spent computing."""
        whole = seconds_between(self.began, self.done if self.ready is None else self.ready)
        return whole - seconds_between(*self.idle)

    @property
    def exposed(self) -> float:
        """Returns the seconds that this rank waited for other ranks' gradients."""
        return 0.0 if self.ready is None else seconds_between(self.ready, self.done)


class GradientExchange:
    """The hook's state compresses gradients, counts bytes, and records when this rank finishes its own computing."""

    def __init__(self, settings: CommunicationSettings, device: torch.device) -> None:
        self.settings = settings
        self.clock = Clock(device)
        self.times = StepTimes()
        #: The parameters' names, which the strategy sets.
        self.names: dict[Tensor, str] = {}
        # : The accumulated error of compression, by parameter.
        self.memory: Memory = {}
        #: Bytes that this rank has sent in this step's forward and backward passes.
        self.sent = 0
        self._compressor = compressor_for(settings.compression, settings.powersgd_rank)
        self._plain = Compressor()
        self._step = 0
        #: The loss's factor in this step, and the norm of each bucket, if they are measured.
        self._scale: Tensor | None = None
        self._norms = list[Tensor]()
        self._feedback = self._with_feedback() if settings.compression in ("onebit", "powersgd") else None

    def begin(self, step: int, scale: Tensor | None = None) -> None:
        """Starts to measure a step, before its first forward pass.

        `scale` is the factor by which the loss is multiplied. If it is given, the norm of this rank's own gradients is
        measured too, which costs one read of all gradients.
        """
        self._step, self.sent, self._scale, self._norms = step, 0, scale, []
        if self._feedback is not None:
            self._feedback.begin()
        self.times = StepTimes(began=self.clock.now())

    def wait(self, waited: Callable[[], T]) -> T:
        """Calls `waited` and returns its result; the time doesn't count as this rank's computing."""
        began = self.clock.now()
        value = waited()
        self.times.idle = (began, self.clock.now())
        return value

    def end(self) -> None:
        """Stops measuring, because the step's last backward pass has returned, and all gradients are reduced."""
        self.times.done = self.clock.now()
        self.times.sent = self.sent
        if self._norms:
            self.times.norm = torch.stack(self._norms).norm() / self._scale
        if self._feedback is not None:
            self._feedback.end()

    def measure(self, gradients: Tensor) -> None:
        """If this step's gradients are measured, measures some of this rank's own before they are reduced."""
        if self._scale is not None:
            self._norms.append(torch.linalg.vector_norm(gradients))

    def reduce(self, bucket: GradBucket) -> Future[Tensor]:
        """Returns the bucket's mean over ranks; this is DDP's hook."""
        if bucket.is_last():
            self.times.ready = self.clock.now()
        self.measure(bucket.buffer())
        compressor = self._plain if self._step < self.settings.start_step else self._compressor
        names = list[str]()
        if self._feedback is not None:
            names = [self.names[parameter] for parameter in bucket.parameters()]
            self._feedback.add(bucket, names, compressor.keeps_means)
        future, sent = compressor.reduce(bucket, names, self.memory)
        self.sent += sent
        return future

    def skip(self) -> None:
        """Restores the compression errors from before this step, because the step isn't made."""
        if self._feedback is not None:
            self._feedback.skip()

    def load(self, memories: list[Memory], rank: int) -> bool:
        """Loads the memories of a checkpoint's ranks; returns whether some fit no parameter and are dropped.

        The checkpoint's errors are added to the next steps, even if those use another compression.
        """
        self.memory.clear()
        if not any(memories):
            return False
        self._feedback = self._feedback or self._with_feedback()
        return self._feedback.load(memories, rank)

    def _with_feedback(self) -> "Feedback":
        # Imported when used, because most runs use lossless compression.
        from trainloop.parallel.lossy import Feedback

        return Feedback(self.names, self.memory)


def compressor_for(method: Method, powersgd_rank: int) -> Compressor:
    """Returns a compressor by name."""
    if method in ("onebit", "powersgd"):
        from trainloop.parallel.lossy import OneBit, PowerSGD

        return OneBit() if method == "onebit" else PowerSGD(powersgd_rank)
    return Compressor({"none": None, "fp16": torch.float16, "bf16": torch.bfloat16}[method])

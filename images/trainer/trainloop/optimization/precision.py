"""Mixed precision uses autocast around forward and loss, and for fp16 the gradient scaler.

On a device that computes in bf16, bf16 is the default.

bf16 has the range of fp32 and needs no scaler. With fp16, a step is skipped if its gradients overflow. A skipped step
lowers the scale, and must not advance the schedule. Repeated overflows end the run, because if gradients overflow at
any scale, no step is ever made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from pydantic import Field

from trainloop.distributed.world import World
from trainloop.errors import Diverged
from trainloop.optimization.optimizer import step_unless
from trainloop.settings import Settings

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class PrecisionSettings(Settings):
    """These settings choose the number types in which the model computes."""

    compute: Literal["auto", "fp64", "fp32", "bf16", "fp16"] = Field(
        "auto",
        description="auto: bf16 if all accelerators support it, else fp32. bf16 and fp16 compute under autocast with "
        "fp32 weights; fp64 and fp32 are used throughout.",
    )
    tf32: bool = Field(True, description="Let fp32 matrix products use TF32 on devices that have it.")
    initial_scale: float = Field(65536.0, gt=0, description="GradScaler's first scale (fp16).")
    growth_interval: int = Field(2000, gt=0, description="Steps without overflow before the scale doubles (fp16).")
    overflows: int = Field(
        32, gt=0, description="Overflows in a row, each halves the scale, before the run ends as diverged (fp16)."
    )


def computes_in_bf16(device: torch.device) -> bool:
    """Returns whether the device computes natively in bf16, so that bf16 is faster than fp32. Few CPUs do."""
    supported = getattr(torch.get_device_module(device), "is_bf16_supported", None)
    if device.type == "cpu" or supported is None:
        return False
    return bool(supported(including_emulation=False) if device.type in ("cuda", "xpu") else supported())


class Precision:
    """This class enforces the correct order of autocast and scaling."""

    def __init__(self, settings: PrecisionSettings, world: World) -> None:
        device, self.compute = world.device, settings.compute
        if settings.compute == "auto":
            self.compute = "bf16" if all(world.gather(computes_in_bf16(device))) else "fp32"
        self.parameters = torch.float64 if self.compute == "fp64" else torch.float32
        self._device, self._most_overflows = device, settings.overflows
        self._autocast = _AUTOCAST.get(self.compute)
        self.scaler = torch.amp.GradScaler(
            device.type,
            init_scale=settings.initial_scale,
            growth_interval=settings.growth_interval,
            enabled=self.compute == "fp16",
        )
        if settings.tf32:
            torch.set_float32_matmul_precision("high")

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._autocast is None else torch.autocast(self._device.type, dtype=self._autocast)

    def scale(self) -> torch.Tensor:
        """Returns the factor by which losses, and so gradients, are currently multiplied, as a tensor on the device."""
        return self.scaler.scale(torch.ones((), device=self._device))

    def backward(self, loss: torch.Tensor) -> None:
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divides the gradients by the scale; call this before clipping or reading gradients."""
        self.scaler.unscale_(optimizer)

    def overflows(self, warn: Callable[[str], None]) -> Overflows | None:
        """Returns the counter for steps that the scaler skips, or None if there is no scaler."""
        return Overflows(self.scaler, self._most_overflows, warn) if self.scaler.is_enabled() else None

    def skip(self) -> None:
        """Skips the step after `unscale` was called."""
        self.scaler.update()

    def step(self, optimizer: torch.optim.Optimizer, left_out: torch.Tensor | None = None) -> None:
        """Makes a step unless `left_out` is 1 on the device, and updates the scale in any case.

        The gradients are equal on all ranks, so the scaler makes the same decision everywhere.
        """
        step_unless(optimizer, left_out)
        self.skip()


class Overflows:
    """This counter allows the scaler to skip at most `most` consecutive steps."""

    def __init__(self, scaler: torch.amp.GradScaler, most: int, warn: Callable[[str], None]) -> None:
        self._scaler, self._most, self._warn, self.in_a_row = scaler, most, warn, 0

    def add(self, loss: float, norm: float, judged: bool) -> bool:
        """Returns whether the scaler skips a step because the gradients aren't finite although the loss is.

        If steps aren't `judged` by their loss, the loss isn't considered. A warning is logged after the fourth skipped
        step in a row, and then whenever their number has doubled. Raises Diverged after too many.
        """
        overflowed = not math.isfinite(norm) and (math.isfinite(loss) or not judged)
        self.in_a_row = row = self.in_a_row + 1 if overflowed else 0
        if row >= self._most:
            raise Diverged(
                f"fp16's gradients overflowed in {row} steps in a row, the loss scale is down to "
                f"{self._scaler.get_scale():g}: look for numbers that aren't finite in the backward pass, or set "
                "precision.compute to bf16"
            )
        if row >= 4 and row.bit_count() == 1:
            self._warn(
                f"fp16's gradients overflowed in {row} steps in a row; the loss scale is {self._scaler.get_scale():g}"
            )
        return overflowed

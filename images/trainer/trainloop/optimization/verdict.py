"""There is a verdict on each step, the same on every rank, by its loss over all ranks and its gradient's norm.

The host judges by these numbers before the step. On an accelerator it would have to wait for them, so there it is the
device that compares them with the limits and leaves the step out. The host reads its `Verdict` after the next forward
and backward are on their way, so that neither waits for the other, and before any number of the run is used: all is as
if the host had decided at once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from trainloop.distributed.device import Numbers
from trainloop.distributed.world import World
from trainloop.optimization.anomaly import AnomalyDetector, AnomalySettings, Decision, Limits
from trainloop.optimization.optimizer import UpdateRule, can_leave_out
from trainloop.optimization.precision import Precision


class Verdict:
    """Holds a step's verdict, which the device makes: `left_out` is 1 where the optimizer is to leave the step out."""

    def __init__(self, loss: torch.Tensor, norm: torch.Tensor, limits: Limits) -> None:
        self.limits, self._numbers = limits, Numbers(loss, norm)
        # Three kernels, because each takes longer than its work. The excess over a limit is 0 where there is none, and
        # NaN where a number is NaN, or infinite.
        numbers = list(self._numbers.there.unbind())
        loss, norm = torch._foreach_sub(numbers, torch._foreach_clamp_max(numbers, [limits.loss, limits.norm]))
        self.left_out = torch.logical_or(loss, norm, out=torch.empty_like(loss, dtype=torch.float32))

    def read(self) -> tuple[float, float]:
        """Returns loss and gradient norm; waits until the device has computed them."""
        loss, norm = self._numbers.read()
        return loss, norm


class Judge:
    """Decides on one step after another, and warns of those that are left out."""

    def __init__(
        self,
        settings: AnomalySettings,
        precision: Precision,
        world: World,
        warn: Callable[[str], None],
        *,
        reduced: bool,
        carries: bool,
    ) -> None:
        """`reduced`: the backward pass reduces gradients, so their norm is the same on every rank. `carries`: the next
        step's gradients begin with what this step leaves out.
        """
        self._judges, self._world, self._warn, self._reduced = settings.enabled, world, warn, reduced
        self._overflows = precision.overflows(warn)
        #: Whether a step's loss is summed over all ranks and decided on: fp16's overflows are in any case.
        self.active = self._judges or self._overflows is not None
        #: Whether the device leaves odd steps out, if the optimizer can, and the host reads its verdict a step later.
        self.on_device = world.device.type != "cpu" and not carries
        #: Whether there is a checkpoint to go back to, and how often this process did.
        self.can_return, self.rollbacks = False, 0
        #: Waits for the loss over all ranks of the step that is being made.
        self.loss: Callable[[], torch.Tensor] | None = None
        self.verdict: Verdict | None = None  # of the newest step, where the host hasn't read it yet

    def decide(self, rule: UpdateRule, step: int, norm: torch.Tensor, at_once: bool) -> Decision | None:
        """Returns the decision on a step; None where the device decides, and `settle` returns it later."""
        if self.loss is None:
            return "step"
        loss, detector = self.loss(), rule.detector
        if not self._reduced:
            norm = self._world.averaging(norm)()
        if self.on_device and not at_once and can_leave_out(rule.optimizer):
            self.verdict = Verdict(loss, norm, detector.limits(self.can_return))
            return None
        numbers = (float(loss), float(norm))
        return self._decide(detector, step, *numbers, detector.limits(self.can_return, *numbers))

    def settle(self, detector: AnomalyDetector, step: int) -> Decision | None:
        """Returns the decision on the last step, where it was the device's and hasn't been read."""
        verdict, self.verdict = self.verdict, None
        return None if verdict is None else self._decide(detector, step, *verdict.read(), verdict.limits)

    def _decide(self, detector: AnomalyDetector, step: int, loss: float, norm: float, limits: Limits) -> Decision:
        if self._overflows is not None and self._overflows.add(loss, norm, self._judges):
            return "skip"
        decision = detector.judge(loss, norm, limits)
        if decision == "forced":
            self._warn(f"step {step} stands out like those before; without a checkpoint it is made")
        elif decision != "step":
            self._warn(f"step {step} left out: loss {loss:.4g}, gradient norm {norm:.4g} stand out")
        return decision

"""Each step gets a verdict, the same on all ranks, that is based on the loss over all ranks and the gradient norm.

Without an accelerator, the host judges these numbers before the step. With one, the host would have to wait for the
numbers, so the device compares them with the limits and skips an odd step. The host reads this `Verdict` after it has
queued the next forward and backward passes, so that neither waits for the other, and before any of the run's numbers is
used. The result is the same as if the host had decided immediately.
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
    """This is the device's verdict on a step: `left_out` is 1 if the optimizer should skip the step."""

    def __init__(self, loss: torch.Tensor, norm: torch.Tensor, limits: Limits) -> None:
        self.limits, self._numbers = limits, Numbers(loss, norm)
        # Only three kernels are used, because starting a kernel takes longer than running it. The excess over a limit
        # is 0 if there is none, and NaN if a number is NaN or infinite.
        numbers = list(self._numbers.there.unbind())
        loss, norm = torch._foreach_sub(numbers, torch._foreach_clamp_max(numbers, [limits.loss, limits.norm]))
        self.left_out = torch.logical_or(loss, norm, out=torch.empty_like(loss, dtype=torch.float32))

    def read(self) -> tuple[float, float]:
        """Returns loss and gradient norm; waits until the device has computed them."""
        loss, norm = self._numbers.read()
        return loss, norm


class Judge:
    """The judge decides on steps one by one, and warns about skipped ones."""

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
        """Sets up the judge of a run.

        `reduced` is true if the backward pass reduces gradients, so that their norm is equal on every rank. `carries`
        is true if gradients of a skipped step are included in the next step's gradients.
        """
        self._judges, self._world, self._warn, self._reduced = settings.enabled, world, warn, reduced
        self._overflows = precision.overflows(warn)
        # : Whether steps are judged by their loss over all ranks, which fp16 always requires because of overflows.
        self.active = self._judges or self._overflows is not None
        # : Whether the device skips odd steps, if the optimizer supports that; the host then reads the verdict a step
        # : later.
        self.on_device = world.device.type != "cpu" and not carries
        # : Whether there is a checkpoint to go back to, and how often this process has gone back.
        self.can_return, self.rollbacks = False, 0
        # : Waits for the current step's loss over all ranks, and returns it.
        self.loss: Callable[[], torch.Tensor] | None = None
        self.verdict: Verdict | None = None  # the verdict on the newest step, until the host has read it

    def decide(self, rule: UpdateRule, step: int, norm: torch.Tensor, at_once: bool) -> Decision | None:
        """Returns the decision on a step, or None if the device decides and `settle` returns the decision later."""
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
        """Returns the decision on the last step if the device made the decision and the host hasn't read it."""
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

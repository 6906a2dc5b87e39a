"""What Hugging Face's Trainer reports of a training is read as a rank's progress. Pure.

transformers 5 (`integrations/integration_utils.py`, `KubeflowCallback`) sends rank 0's progress where
KUBEFLOW_TRAINER_SERVER_URL is set: at the beginning, after a step if the last report is 5 s old, and at the end. The
protocol is Kubeflow Trainer's (kubeflow/trainer, KEP-2779): a percentage, the seconds that remain, and metrics by name,
whose values are texts. Others may speak it too, so nothing is taken for granted but its form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.values import is_number, mapping, mappings, number

MAX_METRICS = 64
MAX_VALUE_CHARACTERS = 64
_WHOLE = {"current_step": "step", "total_steps": "totalSteps"}
_NUMBERS = {
    "current_epoch": "epoch",
    "epoch": "epoch",
    "loss": "loss",
    "grad_norm": "gradNorm",
    "learning_rate": "learningRate",
}


class TrainerReports:
    """TrainerReports has what one attempt's Trainer has reported so far."""

    def __init__(self) -> None:
        self.progress: Optional[RankProgress] = None
        """What the reports mean; None until one has come."""
        self.is_over = False
        """Whether the training has ended: of what follows, nobody knows how long it may take."""
        self._percent: Optional[float] = None

    def receive(self, body: object) -> bool:
        """Read one report and say whether it shows progress: that the step, or where that is unknown the percentage,
        has changed. A report that isn't one says nothing."""
        status = mapping(body).get("trainerStatus")
        if not isinstance(status, Mapping):
            return False
        before, percent = self.progress, number(status.get("progressPercentage"))
        found = _metrics(status)
        begins = percent == 0 and "step" not in found
        fields = {**({} if before is None or begins else before.to_wire()), **found}
        self.is_over = percent is not None and percent >= 100
        fields["section"] = "finish" if self.is_over else "train"
        remaining = status.get("estimatedRemainingSeconds")
        if is_number(remaining):
            fields["etaSeconds"] = remaining
        self.progress = RankProgress.salvage(fields)
        step = None if self.progress is None else self.progress.step
        advanced = before is None or step != before.step or (step is None and percent != self._percent)
        self._percent = percent
        return advanced


def _metrics(status: Mapping[str, object]) -> dict[str, object]:
    found: dict[str, object] = {}
    for metric in mappings(status.get("metrics"))[:MAX_METRICS]:
        name, value = metric.get("name"), _value(metric.get("value"))
        if not isinstance(name, str) or value is None:
            continue
        if name in _WHOLE and value >= 0 and value == int(value):
            found[_WHOLE[name]] = int(value)
        elif name in _NUMBERS:
            found[_NUMBERS[name]] = value
    return found


def _value(text: object) -> Optional[float]:
    if not isinstance(text, str) or len(text) > MAX_VALUE_CHARACTERS:
        return number(text)
    try:
        return number(float(text))
    except ValueError:
        return None

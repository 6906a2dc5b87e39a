"""Where a run is, in a few numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainloop.data import Position


@dataclass
class TrainState:
    """With the weights, the optimizer and the generators all that a checkpoint holds."""

    step: int = 0  # global batches done
    updates: int = 0  # of which the optimizer made a step
    position: Position = field(default_factory=Position)
    batch: int = 0  # samples in a global batch, as at the first start
    total: int = 0  # steps of the whole run
    results: dict[str, float] = field(default_factory=dict)  # of the last evaluation

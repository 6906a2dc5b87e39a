"""Hooks extend the loop without a fork, and what they keep is part of a checkpoint.

A hook is a function of the trainer, in one of its lists `before_step`, `after_step`, `after_evaluation` and
`before_save`. What it has to keep over a restart (an average of the weights, a scheduler of one's own) is an object
with torch's `state_dict` and `load_state_dict` in `trainer.stateful`. Its state must be of tensors and plain values,
because a checkpoint is read without pickle, and the same on every rank; a DTensor is saved whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from trainloop.trainer import Trainer

Hook = Callable[["Trainer"], object]


class Stateful(Protocol):
    """Modules, optimizers and schedulers have these two."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Any, /) -> object: ...

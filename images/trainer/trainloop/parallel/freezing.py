"""A hook may freeze parameters in mid-run, or train those that were frozen.

DDP waits for the gradients of those that it began with, and ranks would step with gradients that it hasn't reduced, so
it begins anew. FSDP2 follows by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainloop.optimization.optimizer import check_complete

if TYPE_CHECKING:
    from trainloop.trainer import Trainer


def follow(trainer: Trainer) -> None:
    """Have every step look for what hooks have frozen, after those that come before it."""
    trainer.before_step.append(_reduce_what_is_trained)


def _reduce_what_is_trained(trainer: Trainer) -> None:
    """Begin to reduce the gradients of the parameters that are trained now, the same ones on every rank.

    Raises ConfigError when the optimizer lacks one of them.
    """
    replica = trainer.replica
    trained = [parameter.requires_grad for parameter in replica.model.parameters()]
    if replica.wrapped is None or not replica.reduced or replica.trained == trained:
        return
    check_complete(replica.model, trainer.optimizer)
    replica.wrap(trainer.config.parallel)

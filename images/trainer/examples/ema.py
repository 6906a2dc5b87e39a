"""A hook keeps an exponential moving average of the weights, which is measured with them and is in every checkpoint.

`hooks: ["ema:keep_average"]`, with this folder on PYTHONPATH. For `parallel.strategy` ddp and zero1: a model that FSDP2
shards can't be copied; there keep `{name: parameter.detach().clone()}` and average that (its state may be DTensors).
"""

from __future__ import annotations

from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from trainloop.evaluation import Evaluator
from trainloop.trainer import Trainer

DECAY = 0.99


def keep_average(trainer: Trainer) -> None:
    """Adds the average to a trainer that is about to start."""
    ema = AveragedModel(trainer.replica.model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    trainer.stateful["ema"] = ema
    trainer.after_step.append(lambda trainer: ema.update_parameters(trainer.replica.model))
    evaluator = Evaluator(trainer.config.evaluation, trainer.task, ema.module, trainer.precision, trainer.world)

    def measure(trainer: Trainer) -> None:
        results = evaluator.evaluate(lambda: False) or {}
        # `checkpoint.best: ema_accuracy` keeps the checkpoint whose average is the best.
        trainer.state.results.update({f"ema_{name}": value for name, value in results.items()})

    trainer.after_evaluation.append(measure)

"""The ranks' measurements are gathered, so results that aren't sums (AUC, F1) equal those of one process
(`evaluation`).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest
import torch

from tests.trainer.ranks import RankFailed, run_ranks
from tests.trainer.toy import Toy, config, train
from trainloop.config import Config
from trainloop.distributed.world import joined
from trainloop.trainer import Trainer

pytestmark = pytest.mark.torch


class Scores(Toy):
    """Scores how likely samples are of class 0, in tenths, so that there are ties; some samples have no words, some
    two.
    """

    def measure(self, model: Any, batch: Any) -> dict[str, torch.Tensor]:
        scores = (10 * model(batch["points"]).softmax(1)[:, 0]).round() / 10
        words = torch.repeat_interleave(batch["index"], batch["index"] % 3)
        rows = {"scores": scores, "true": batch["labels"] == 0, "words": words, "pairs": batch["points"][:, :2]}
        return {**super().measure(model, batch), **rows}

    def results(self, measured: Mapping[str, Any]) -> dict[str, float]:
        self.measured = dict(measured)
        scores, true = measured["scores"], measured["true"]
        guess = scores > 0.3
        return {
            **super().results(measured),
            "auc": float(_auc(scores, true)),
            "f1": float(2 * (guess & true).sum() / (guess.sum() + true.sum())),
        }


def _auc(scores: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
    """Returns the AUC by ranks; equal scores share theirs (Mann and Whitney 1947)."""
    below = (scores.unsqueeze(0) < scores.unsqueeze(1)).sum(1) + (
        (scores.unsqueeze(0) == scores.unsqueeze(1)).sum(1) + 1
    ) / 2
    positives, negatives = true.sum(), (~true).sum()
    return (below.double()[true].sum() - positives * (positives + 1) / 2) / (positives * negatives)


def _evaluated(settings: Config) -> dict[str, Any]:
    """Train; returns the weights, the results and the arguments of `results`."""
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.run()
        assert isinstance(trainer.task, Scores)
        given = trainer.task.measured
        return {"weights": trainer.replica.model_state(), "results": trainer.state.results, "given": given}


def _plainly(weights: dict[str, torch.Tensor], samples: list[Any]) -> dict[str, float]:
    """Returns accuracy, AUC and F1 in one process, by their definitions. AUC is how often a sample of the class has a
    higher score than one of another class; a tie counts as half.
    """
    model = Scores({}).model().double()
    model.load_state_dict(weights)
    with torch.no_grad():
        logits = model(torch.stack([point for _, point, _ in samples]))
    scores = [round(10 * score) / 10 for score in logits.softmax(1)[:, 0].tolist()]
    labels = [int(label) for _, _, label in samples]
    mine = [score for score, label in zip(scores, labels, strict=True) if label == 0]
    others = [score for score, label in zip(scores, labels, strict=True) if label != 0]
    assert set(mine) & set(others), "there are ties"
    wins = sum((one > other) + 0.5 * (one == other) for one, other in product(mine, others))
    right = sum(score > 0.3 for score in mine)
    return {
        "accuracy": sum(int(guess) == label for guess, label in zip(logits.argmax(1), labels, strict=True))
        / len(labels),
        "auc": wins / (len(mine) * len(others)),
        "f1": 2 * right / (sum(score > 0.3 for score in scores) + len(mine)),
    }


@pytest.mark.parametrize(
    ("ranks", "strategy", "samples"), [(1, "ddp", None), (2, "ddp", 11), (2, "fsdp", None), (4, "ddp", None)]
)
def test_auc_and_f1_are_those_of_one_process(ranks: int, strategy: str, samples: int | None) -> None:
    """Each rank's passes have 3 samples, of 20 or 11 in all, so the last pass is short: with two ranks it has 2 or 5
    samples, with four 8 or 11, and a rank may have none.
    """
    task = {"name": "tests.trainer.test_evaluation:Scores"}
    evaluation = {"batch": 3, "samples": samples}
    runs = run_ranks(ranks, _evaluated, config(task=task, parallel={"strategy": strategy}, evaluation=evaluation))
    data = Scores({}).evaluation[:samples]
    expected = _plainly(runs[0]["weights"], data)
    indices = torch.tensor([index for index, _, _ in data])
    for run in runs:
        assert {name: run["results"][name] for name in expected} == pytest.approx(expected, abs=1e-12)
        assert torch.equal(run["given"]["words"], torch.repeat_interleave(indices, indices % 3))
        assert torch.equal(run["given"]["pairs"], torch.stack([point for _, point, _ in data])[:, :2])
        assert run["given"]["true"].dtype == torch.bool and isinstance(run["given"]["correct"], float)


class Squeezes(Scores):
    """Drops the first dimension if a batch has one sample, a common mistake."""

    def measure(self, model: Any, batch: Any) -> dict[str, torch.Tensor]:
        return {name: value.squeeze() for name, value in super().measure(model, batch).items()}


def test_rows_in_one_batch_and_a_scalar_in_another_are_a_sentence_on_every_rank() -> None:
    """The third rank's only pass has one sample; the fourth's is a spare one."""
    task = {"name": "tests.trainer.test_evaluation:Squeezes"}
    with pytest.raises(RankFailed, match="TrainingError: the task's measure gives 'scores' in shapes") as failed:
        run_ranks(4, train, config(task=task, evaluation={"samples": 5, "batch": 2}))
    assert str(failed.value).count("which squeeze() would make a scalar") == 4


class Stream:
    """Gives the samples one after the other."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __iter__(self) -> Any:
        return iter(self.samples)


class StreamedEvaluation(Scores):
    """Its evaluation set has neither length nor index."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.evaluation = Stream(self.evaluation[: options.get("evaluated")])  # type: ignore[assignment]


def test_an_evaluation_set_that_is_a_stream_gives_the_same_results() -> None:
    evaluation = {"batch": 3, "samples": 19}
    listed, streamed = (
        run_ranks(2, _evaluated, config(task={"name": f"tests.trainer.test_evaluation:{name}"}, evaluation=evaluation))
        for name in ("Scores", "StreamedEvaluation")
    )
    assert streamed[1]["results"] == listed[0]["results"]
    empty = {"name": "tests.trainer.test_evaluation:StreamedEvaluation", "options": {"evaluated": 0}}
    with pytest.raises(RankFailed, match="TrainingError: the task's evaluation has no samples"):
        run_ranks(1, train, config(task=empty))

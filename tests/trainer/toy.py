"""Two small tasks have exact answers: a classifier of numbers, and a language model with padding."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from trainloop.config import Config, parse_config
from trainloop.data import Batch
from trainloop.distributed.world import joined
from trainloop.trainer import Trainer

FEATURES, CLASSES = 6, 3

#: 20 samples in batches of 8: the last step of an epoch has 4, so at four ranks with micro-batches of 1 some work more.
UNEVEN: dict[str, Any] = {"task": {"name": "tests.trainer.toy:Toy", "options": {"samples": 20}}, "steps": 7}
#: Single precision, dropout and Adam: a resume is bit-exact only if weights, moments, generators and buckets all are.
#: At depth 6 the gradients fill several buckets of 4 KiB, which DDP reorders after the first step.
EXACT: dict[str, Any] = {
    "task": {
        "name": "tests.trainer.toy:Toy",
        "options": {"dropout": 0.3, "double": False, "hidden": 40, "depth": 6},
    },
    "precision": {"compute": "fp32"},
    "parallel": {"bucket_mb": 0.004},
    "steps": 8,
}


class Toy:
    """Classify points; `options`: samples, seed, dropout, hidden, record (record which samples were trained)."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        generator = torch.Generator().manual_seed(options.get("seed", 1))
        count = options.get("samples", 40)
        points = torch.randn(count, FEATURES, generator=generator, dtype=torch.float64)
        labels = (points @ torch.randn(FEATURES, CLASSES, generator=generator, dtype=torch.float64)).argmax(1)
        self.dtype = torch.float64 if options.get("double", True) else torch.float32
        self.train = [(index, points[index].to(self.dtype), labels[index]) for index in range(count)]
        self.evaluation = self.train[: count // 2]
        self.seen: list[int] = []
        #: The number of training passes so far, and those (`poison`, on `poisoned_rank`) whose loss is multiplied by a
        #: million.
        self.calls = 0
        mine = options.get("poisoned_rank", 0) == int(os.environ.get("RANK", "0"))
        self.poisoned = set(options.get("poison", [])) if mine else set()

    def model(self) -> nn.Module:
        hidden = self.options.get("hidden", 8)
        layers = [nn.Linear(FEATURES, hidden), nn.Tanh(), nn.Dropout(self.options.get("dropout", 0.0))]
        layers += [nn.BatchNorm1d(hidden)] if self.options.get("norm") else []
        if self.options.get("unused"):
            layers[0].unused = nn.Linear(2, 2)
        layers += [
            module for _ in range(self.options.get("depth", 0)) for module in (nn.Linear(hidden, hidden), nn.Tanh())
        ]
        return nn.Sequential(*layers, nn.Linear(hidden, CLASSES))

    def collate(self, samples: list[Any]) -> Batch:
        indices, points, labels = zip(*samples, strict=True)
        return {"index": torch.tensor(indices), "points": torch.stack(points), "labels": torch.stack(labels)}

    def count(self, batch: Batch) -> int:
        return len(batch["labels"])

    def loss(self, model: Callable[..., Any], batch: Batch) -> torch.Tensor:
        if torch.is_grad_enabled():
            self.seen += batch["index"].tolist()
        self.calls += torch.is_grad_enabled()
        if torch.is_grad_enabled() and self.calls in self.poisoned:
            return self.options.get("factor", 1e6) * functional.cross_entropy(
                model(batch["points"]), batch["labels"], reduction="sum"
            )
        return functional.cross_entropy(model(batch["points"]), batch["labels"], reduction="sum")

    def measure(self, model: Callable[..., Any], batch: Batch) -> dict[str, torch.Tensor]:
        return {"correct": (model(batch["points"]).argmax(1) == batch["labels"]).sum()}

    def results(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {"accuracy": sums["correct"] / sums["count"]}


class Words(Toy):
    """Predict the next number in sequences of different lengths, so that micro-batches have different padding."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        generator = torch.Generator().manual_seed(options.get("seed", 1))
        lengths = torch.randint(2, 9, (options.get("samples", 40),), generator=generator).tolist()
        texts = [torch.randint(1, 12, (length,), generator=generator) for length in lengths]
        self.train = list(enumerate(texts))  # type: ignore[assignment]
        self.evaluation = self.train[:8]

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(12, 8, padding_idx=0), nn.Tanh(), nn.Linear(8, 12))

    def collate(self, samples: list[Any]) -> Batch:
        indices, texts = zip(*samples, strict=True)
        return {"index": torch.tensor(indices), "text": nn.utils.rnn.pad_sequence(list(texts), batch_first=True)}

    def count(self, batch: Batch) -> int:
        return int((batch["text"][:, 1:] != 0).sum())

    def loss(self, model: Callable[..., Any], batch: Batch) -> torch.Tensor:
        if torch.is_grad_enabled():
            self.seen += batch["index"].tolist()
        logits = model(batch["text"][:, :-1])
        return functional.cross_entropy(
            logits.flatten(0, 1), batch["text"][:, 1:].flatten(), ignore_index=0, reduction="sum"
        )

    def measure(self, model: Callable[..., Any], batch: Batch) -> dict[str, torch.Tensor]:
        return {}

    def results(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {}


def reports() -> str:
    """Returns the directory of metrics that no test reads; conftest.py makes and deletes it."""
    return os.environ["TRAINLOOP_TEST_REPORTS"]


def config(path: Any = None, **changes: Any) -> Config:
    """Returns a short run in double precision, with files only in `path`; `changes` replace whole sections."""
    document: dict[str, Any] = {
        "task": {"name": "tests.trainer.toy:Toy"},
        "steps": 6,
        "batch": {"size": 8},
        "optimizer": {"lr": 0.05, "max_norm": 0.5},
        "schedule": {"kind": "cosine", "warmup": 2},
        "precision": {"compute": "fp64"},
        "checkpoint": {"path": str(path / "checkpoints") if path else None, "every_steps": 1000},
        "metrics": {"path": str(path / "report") if path else reports(), "every_steps": 1, "plot": False},
    }
    return parse_config({**document, **changes})


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in trainer.replica.model_state().items()}


def train(settings: Config, steps: int | None = None) -> dict[str, Any]:
    """Train in this rank; returns weights, samples seen, learning rates. With `steps`, save and stop after those."""
    rates: list[float] = []
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.after_step.append(lambda trainer: rates.append(trainer.optimizer.param_groups[0]["lr"]))
        if steps is None:
            trainer.run()
        else:
            trainer.prepare()
            trainer.task.seen.clear()  # type: ignore[attr-defined]
            for _ in range(steps):
                trainer.train_step()
            trainer.save()
            if trainer.checkpoints is not None:
                trainer.checkpoints.close()  # a thread may still be writing
        return {
            "weights": weights(trainer),
            "seen": list(trainer.task.seen),  # type: ignore[attr-defined]
            "rates": rates,
            "results": trainer.state.results,
            "state": trainer.state,
        }


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def toy(**options: Any) -> dict[str, Any]:
    """Returns a configuration's section that trains `Toy` with these options."""
    return {"task": {"name": "tests.trainer.toy:Toy", "options": options}}

"""Plain torch trains the same models by hand: nothing here comes from trainloop, or from the tests' own toys.

A run is described by a configuration document, as a user writes it. `steps_by_hand` makes its steps in one process on
whole global batches; `local_steps_by_hand` and `delayed_steps_by_hand` do the same for local SGD and a delayed group.
`Given` gives the same model, data and loss to trainloop as a task.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

INPUTS, CLASSES, WORDS, LONGEST = 5, 3, 11, 7
Document = Mapping[str, Any]


@dataclass
class Run:
    """Holds a run's results: the weights by rank, each step's loss, gradient norm and learning rate, and the results of
    the evaluation at the end.
    """

    weights: list[dict[str, torch.Tensor]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    results: dict[str, float] = field(default_factory=dict)


class Block(nn.Module):
    """Adds a residual; its `experts` are a nested list, inside the list that contains the block."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layer = nn.Linear(width, width)
        if experts:
            self.gate = nn.Linear(width, experts)
            self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = self.norm(x)
        x = x + torch.tanh(self.layer(inside))
        if hasattr(self, "experts"):
            shares = self.gate(inside).softmax(-1)
            x = x + sum(shares[..., [n]] * torch.tanh(expert(inside)) for n, expert in enumerate(self.experts))
        return x


class Net(nn.Module):
    """Classifies points, or predicts the next word with the embedding's own weights (`words`)."""

    def __init__(self, depth: int, width: int, experts: int, words: bool) -> None:
        super().__init__()
        self.entry = nn.Embedding(WORDS, width) if words else nn.Linear(INPUTS, width)
        self.blocks = nn.ModuleList(Block(width, experts) for _ in range(depth))
        self.exit = nn.Linear(width, WORDS if words else CLASSES)
        if words:
            self.exit.weight = self.entry.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.entry(x)
        for block in self.blocks:
            x = block(x)
        return self.exit(x)


def net(depth: int = 2, width: int = 8, experts: int = 0, words: bool = False, **_: Any) -> nn.Module:
    """Returns the model in double precision; its weights are independent of any global generator."""
    model = Net(depth, width, experts, words).double()
    generator = torch.Generator().manual_seed(depth * 100 + width)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def data(samples: int, words: bool = False, **_: Any) -> list[Any]:
    """Returns pairs of a point and its class, or texts of different lengths."""
    generator = torch.Generator().manual_seed(samples)
    if words:
        lengths = torch.randint(2, LONGEST + 1, (samples,), generator=generator).tolist()
        return [torch.randint(1, WORDS, (length,), generator=generator) for length in lengths]
    points = torch.randn(samples, INPUTS, generator=generator, dtype=torch.float64)
    return [(point, torch.tensor(number % CLASSES)) for number, point in enumerate(points)]


def together(samples: Sequence[Any]) -> dict[str, torch.Tensor]:
    """Returns samples as one batch of inputs and targets; zeros pad texts and are no targets."""
    if isinstance(samples[0], torch.Tensor):
        texts = nn.utils.rnn.pad_sequence(list(samples), batch_first=True)
        return {"inputs": texts[:, :-1], "targets": texts[:, 1:]}
    points, classes = zip(*samples, strict=True)
    return {"inputs": torch.stack(points), "targets": torch.stack(classes) + 1}


def terms(batch: Mapping[str, torch.Tensor]) -> int:
    return int((batch["targets"] > 0).sum())


def summed_loss(model: Callable[..., Any], batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Returns the cross entropy, summed over `terms(batch)` targets."""
    targets = batch["targets"].flatten()
    logits = model(batch["inputs"]).flatten(0, -2)
    shift = 0 if batch["targets"].dim() > 1 else 1
    return functional.cross_entropy(logits, targets - shift, ignore_index=0 - shift, reduction="sum")


def evaluated(samples: int, words: bool = False, **_: Any) -> list[Any]:
    """Returns the samples to evaluate; no number of ranks divides their count."""
    return data(samples, words)[: samples // 2 * 2 - 1]


def highest(model: Callable[..., Any], batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Returns a number for each sample, which is independent of padding."""
    logits = model(batch["inputs"])
    return logits[:, 0].max(-1).values if batch["targets"].dim() > 1 else logits.max(-1).values


def in_order(rows: torch.Tensor) -> float:
    """Returns a number that depends on the rows' order."""
    return float((rows * torch.arange(1, len(rows) + 1)).sum())


class Given:
    """Gives the model, the data and the loss to trainloop."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.train, self.evaluation = data(**options), evaluated(**options)

    def model(self) -> nn.Module:
        return net(**self.options)

    def collate(self, samples: list[Any]) -> dict[str, torch.Tensor]:
        return together(samples)

    def count(self, batch: Mapping[str, torch.Tensor]) -> int:
        return terms(batch)

    def loss(self, model: Callable[..., Any], batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return summed_loss(model, batch)

    def parallel_plan(self, model: nn.Module, ranks: int) -> dict[str, Any]:
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import ColwiseParallel

        return {"blocks.*.layer": ColwiseParallel(output_layouts=Replicate())}

    def measure(self, model: Callable[..., Any], batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"highest": highest(model, batch)}

    def results(self, measured: Mapping[str, Any]) -> dict[str, float]:
        return {"highest": in_order(measured["highest"])}


class GivenGroups(Given):
    """Makes the optimizer itself, with a learning rate for each group."""

    def optimizer(self, model: nn.Module, settings: Any) -> torch.optim.Optimizer:
        return grouped(model, settings.lr)


def global_batch(document: Document, ranks: int) -> int:
    """Returns the samples of a step."""
    batch = document["batch"]
    return batch.get("size") or batch["per_rank"] * batch.get("accumulation", 1) * ranks


def total_steps(document: Document, ranks: int) -> int:
    in_an_epoch = math.ceil(document["task"]["options"]["samples"] / global_batch(document, ranks))
    return document.get("steps") or math.ceil(document["epochs"] * in_an_epoch)


def batches(document: Document, ranks: int) -> list[list[Any]]:
    """Returns the samples of every step: each epoch is a permutation by seed and number, and its last step may be
    smaller.
    """
    samples, size = data(**document["task"]["options"]), global_batch(document, ranks)
    steps: list[list[Any]] = []
    for epoch in range(10_000):
        order = np.random.Generator(np.random.PCG64([document["seed"]["value"], epoch])).permutation(len(samples))
        for start in range(0, len(samples), size):
            if len(steps) == total_steps(document, ranks):
                return steps
            steps.append([samples[index] for index in order[start : start + size]])
    raise AssertionError("the run is too long")


def rate(document: Document, update: int, total: int, batch: int) -> float:
    """Returns the learning rate of an update, counted from 0."""
    schedule = {"minimum": 0.0, "scaling": "none", "period_factor": 1.0, "decay": 1.0, **document["schedule"]}
    peak = document["optimizer"]["lr"]
    if schedule["scaling"] != "none":
        ratio = batch / schedule["reference_batch"]
        peak *= ratio if schedule["scaling"] == "linear" else ratio**0.5
    warmup = schedule["warmup"]
    warmup = math.ceil(warmup * total) if warmup < 1 else int(warmup)
    if update < warmup:
        return peak * (update + 1) / warmup
    after, low, top = update - warmup, schedule["minimum"], 1.0
    done = min(1.0, after / max(1, total - warmup))
    if schedule["kind"] == "constant":
        return peak
    if schedule["kind"] == "linear":
        return peak * (low + (1 - low) * (1 - done))
    if schedule["kind"] == "cosine_restarts":
        period = schedule["period"]
        while after >= round(period):
            after -= round(period)
            period *= schedule["period_factor"]
            top *= schedule["decay"]
        done = after / round(period)
    return peak * (low + max(0.0, top - low) * (1 + math.cos(math.pi * done)) / 2)


def optimizer_for(document: Document, model: nn.Module) -> torch.optim.Optimizer:
    """Returns torch's optimizer; matrices decay, biases and norms don't."""
    given = document["optimizer"]
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}[given["name"]]
    keys = ("lr", "momentum", "nesterov") if given["name"] == "sgd" else ("lr", "betas", "eps")
    parameters = list(model.parameters())
    decaying = {"params": [p for p in parameters if p.dim() > 1], "weight_decay": given["weight_decay"]}
    others = {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}
    return kind([decaying, others], **{key: given[key] for key in keys if key in given})


def grouped(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Returns an optimizer whose groups have rates of their own."""
    named = dict(model.named_parameters())
    entry = [parameter for name, parameter in named.items() if name.startswith("entry")]
    others = [parameter for name, parameter in named.items() if not name.startswith("entry")]
    return torch.optim.Adam([{"params": entry, "lr": 0.1 * lr}, {"params": others, "lr": 3 * lr}])


def clip(parameters: Sequence[nn.Parameter], limit: float | None) -> float:
    """Scale the gradients to the norm `limit` if their norm is larger; returns their norm."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = math.sqrt(sum(float(gradient.pow(2).sum()) for gradient in gradients))
    if limit is not None and norm + 1e-6 > limit:
        for gradient in gradients:
            gradient *= limit / (norm + 1e-6)
    return norm


def copied(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def results(document: Document, model: nn.Module) -> dict[str, float]:
    """Returns the results of the whole evaluation set at once."""
    batch = together(evaluated(**document["task"]["options"]))
    with torch.no_grad():
        loss = float(summed_loss(model, batch)) / terms(batch)
        return {"loss": loss, "highest": in_order(highest(model, batch))}


def steps_by_hand(document: Document, ranks: int) -> Run:
    """Returns the run of one process that makes each step on the whole global batch."""
    run, model = Run(), net(**document["task"]["options"])
    own_groups = document["task"]["name"].endswith("Groups")
    optimizer = grouped(model, document["optimizer"]["lr"]) if own_groups else optimizer_for(document, model)
    rates = [group["lr"] for group in optimizer.param_groups]
    total, size = total_steps(document, ranks), global_batch(document, ranks)
    for update, samples in enumerate(batches(document, ranks)):
        batch = together(samples)
        optimizer.zero_grad()
        loss = summed_loss(model, batch) / terms(batch)
        loss.backward()
        run.losses.append(float(loss.detach()))
        run.norms.append(clip(list(model.parameters()), document["optimizer"]["max_norm"]))
        factor = rate(document, update, total, size) / document["optimizer"]["lr"]
        for group, own in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = own * factor
        run.rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
    run.weights = [copied(model)] * ranks
    run.results = results(document, model)
    return run


def shared_out(samples: list[Any], ranks: int) -> list[list[Any]]:
    """Returns each rank's samples; if they can't be shared equally, the first ranks get one more."""
    least, more = divmod(len(samples), ranks)
    begins = [rank * least + min(rank, more) for rank in range(ranks + 1)]
    return [samples[begin:end] for begin, end in itertools.pairwise(begins)]


def local_steps_by_hand(document: Document, ranks: int) -> Run:
    """Returns the run of `ranks` models that step independently, and whose weights are averaged every few steps."""
    run, every = Run(), document["communication"]["local_steps"]
    models = [net(**document["task"]["options"]) for _ in range(ranks)]
    optimizers = [optimizer_for(document, model) for model in models]
    total, size = total_steps(document, ranks), global_batch(document, ranks)
    for update, samples in enumerate(batches(document, ranks)):
        run.rates.append(rate(document, update, total, size))
        counted = terms(together(samples))
        for model, optimizer, own in zip(models, optimizers, shared_out(samples, ranks), strict=True):
            optimizer.zero_grad()
            # A rank without samples steps too, with a gradient of zero.
            loss = summed_loss(model, together(own)) if own else 0.0 * summed_loss(model, together(samples[:1]))
            (loss * ranks / counted).backward()
            clip(list(model.parameters()), document["optimizer"]["max_norm"])
            for group in optimizer.param_groups:
                group["lr"] = run.rates[-1]
            optimizer.step()
        if (update + 1) % every == 0:
            with torch.no_grad():
                for copies in zip(*(model.parameters() for model in models), strict=True):
                    mean = torch.stack(copies).mean(0)
                    for copy in copies:
                        copy.copy_(mean)
    # An evaluation at the end measures the mean of the models.
    mean = {name: torch.stack([copied(model)[name] for model in models]).mean(0) for name in copied(models[0])}
    run.weights = [mean] * ranks
    return run


def delayed_steps_by_hand(document: Document, ranks: int) -> Run:
    """Returns the run of one process in which the group that the pattern names steps only every few steps, with the
    mean of their gradients.
    """
    run, model, every = Run(), net(**document["task"]["options"]), document["delayed"]["every"]
    optimizer, size = optimizer_for(document, model), global_batch(document, ranks)
    named = dict(model.named_parameters())
    waiting = {name: torch.zeros_like(p) for name, p in named.items() if document["delayed"]["pattern"] in name}
    total, limit = total_steps(document, ranks), document["optimizer"]["max_norm"]
    for update, samples in enumerate(batches(document, ranks)):
        batch = together(samples)
        optimizer.zero_grad()
        (summed_loss(model, batch) / terms(batch)).backward()
        run.norms.append(clip([p for name, p in named.items() if name not in waiting], limit))
        for name, held in waiting.items():
            held += named[name].grad
            named[name].grad = held / every if (update + 1) % every == 0 else None
        clip([named[name] for name in waiting], limit)
        if (update + 1) % every == 0:
            waiting = {name: torch.zeros_like(held) for name, held in waiting.items()}
        run.rates.append(rate(document, update, total, size))
        for group in optimizer.param_groups:
            group["lr"] = run.rates[-1]
        optimizer.step()
    run.weights = [copied(model)] * ranks
    return run


def scaled_steps_by_hand(document: Document) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Returns the loss scale after each step in half precision, and the weights: torch's scaler, in its order of
    operations.
    """
    model = net(**document["task"]["options"]).float()
    optimizer, settings = optimizer_for(document, model), document["precision"]
    scaler = torch.amp.GradScaler("cpu", settings["initial_scale"], growth_interval=settings["growth_interval"])
    total, size, update = total_steps(document, 1), global_batch(document, 1), 0
    scales: list[float] = []
    for samples in batches(document, 1):
        batch = together(samples)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = summed_loss(model, batch)
        scaler.scale(loss / terms(batch)).backward()
        scaler.unscale_(optimizer)
        clip(list(model.parameters()), document["optimizer"]["max_norm"])
        for group in optimizer.param_groups:
            group["lr"] = rate(document, update, total, size)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        update += scales[-1] >= before
    return scales, copied(model)

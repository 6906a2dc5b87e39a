"""The built-in tasks learn from small local data: text, causal language models, sentence pairs."""

from __future__ import annotations

import pydoc_data.topics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.local_models import DEEPSEEK, save_bert, save_pairs
from tests.trainer.ranks import run_ranks
from trainloop.config import Config, parse_config
from trainloop.distributed.world import joined
from trainloop.errors import ConfigError
from trainloop.tasks import TaskSettings, build_task
from trainloop.tasks.hub import read_pairs
from trainloop.tasks.text import SmallGPT, TextOptions, Windows, unigram_entropy
from trainloop.trainer import Trainer


@pytest.fixture(scope="module")
def english(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns real English text that comes with every Python: its own reference, 700 KB."""
    file = tmp_path_factory.mktemp("text") / "english.txt"
    file.write_text("\n".join(pydoc_data.topics.topics.values()))
    return file


def run(path: Path, task: dict[str, Any], **changes: Any) -> Config:
    document = {
        "task": task,
        "batch": {"size": 16},
        "optimizer": {"lr": 4e-3},
        "evaluation": {"samples": 64},
        "metrics": {"path": str(path), "plot": False},
        **changes,
    }
    return parse_config(document)


def results(settings: Config) -> dict[str, float]:
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.run()
        return trainer.state.results


def test_windows_predict_every_token_once() -> None:
    windows = Windows(np.arange(31, dtype=np.uint8), 10)
    assert [windows[i][1:].tolist() for i in range(len(windows))] == [list(range(s, s + 10)) for s in (1, 11, 21)]


def test_the_models_logits_do_not_depend_on_later_tokens() -> None:
    torch.manual_seed(0)
    model = SmallGPT(TextOptions.model_validate({"context": 16, "width": 16, "heads": 2, "layers": 2})).eval()
    tokens = torch.randint(0, 256, (2, 16))
    changed = tokens.clone()
    changed[:, 9:] = 0
    assert torch.allclose(model(tokens)[:, :9], model(changed)[:, :9], atol=1e-6)
    assert not torch.allclose(model(tokens)[:, 9:], model(changed)[:, 9:], atol=1e-3)


def test_unigram_entropy_of_a_fair_coin_is_log_two() -> None:
    assert unigram_entropy(np.array([0, 1] * 50)) == pytest.approx(np.log(2))


@pytest.mark.torch
def test_text_is_learnt_below_its_unigram_entropy(tmp_path: Path, english: Path) -> None:
    options = {"path": str(english), "context": 32, "layers": 2, "width": 48, "heads": 2, "dropout": 0.0}
    found = run_ranks(2, results, run(tmp_path, {"name": "text", "options": options}, steps=80))[0]
    assert found["loss"] < found["unigramLoss"] - 0.1
    assert found["perplexity"] == pytest.approx(np.exp(found["loss"]))


@pytest.mark.torch
def test_a_deepseek_model_learns_below_the_unigram_entropy_and_is_loaded_again(tmp_path: Path, english: Path) -> None:
    """It starts from scratch, in transformers' own class; a run with its LOAD_CHECKPOINT starts where it ended."""
    options = {"path": str(english), "context": 32, "architecture": "deepseek_v3", "config": DEEPSEEK}
    settings = run(tmp_path, {"name": "causal-lm", "options": options}, steps=100)
    first, second = run_ranks(1, _trained_and_loaded_again, settings, tmp_path)[0]
    assert first["loss"] < first["unigramLoss"]
    assert second == pytest.approx(first["loss"], abs=0.02)


def _trained_and_loaded_again(settings: Config, folder: Path) -> tuple[dict[str, float], float]:
    with joined(settings.distributed) as world:
        trainer = Trainer(settings, world)
        trainer.run()
        trainer.replica.model.save_pretrained(folder / "saved")  # type: ignore[operator]
        options = {**settings.task.options, "checkpoint": str(folder / "saved")}
        again = Trainer(run(folder, {"name": "causal-lm", "options": options}, steps=1), world)
        again.evaluate()
        return trainer.state.results, again.state.results["loss"]


def test_an_architecture_that_transformers_does_not_know_is_a_sentence(english: Path) -> None:
    task = build_task(
        TaskSettings.model_validate({"name": "causal-lm", "options": {"path": str(english), "architecture": "deepsek"}})
    )
    with pytest.raises(ConfigError, match=r"task\.options\.architecture is 'deepsek': transformers .* doesn't know it"):
        task.model()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns made-up pairs in MRPC's TSV format; a tiny BERT and its tokenizer, as save_pretrained writes them."""
    folder = tmp_path_factory.mktemp("pairs")
    save_pairs(folder)
    save_bert(folder / "bert")
    return folder


def test_a_tsv_is_read_as_glue_writes_it(pairs: Path) -> None:
    training, evaluation = read_pairs(str(pairs))
    assert (len(training), len(evaluation)) == (400, 80)
    assert training[1][0] == training[1][1] and training[1][2] == 1


@pytest.fixture
def hub_format(tmp_path: Path, pairs: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns the pairs as a DatasetDict of Hugging Face's library, 265 MB, which `make test-torch` installs."""
    library = pytest.importorskip("datasets", reason="reading save_to_disk's files is left out: no package datasets")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    names = ("sentence1", "sentence2", "label")
    splits = zip(("train", "validation"), read_pairs(str(pairs)), strict=True)
    return library.DatasetDict(
        {
            split: library.Dataset.from_list([dict(zip(names, row, strict=True)) for row in rows])
            for split, rows in splits
        }
    )


@pytest.mark.torch
def test_a_dataset_that_save_to_disk_wrote_trains_as_its_tsv_does(tmp_path: Path, pairs: Path, hub_format: Any) -> None:
    hub_format.save_to_disk(tmp_path / "saved")
    assert read_pairs(str(tmp_path / "saved")) == read_pairs(str(pairs))
    found = []
    for data in (pairs, tmp_path / "saved"):
        options = {"model": str(pairs / "bert"), "data": str(data)}
        found.append(run_ranks(2, results, run(tmp_path, {"name": "sentence-pairs", "options": options}, steps=4))[0])
    assert found[0] == found[1]


def test_a_name_on_the_hub_is_owner_name_and_subset(
    tmp_path: Path, pairs: Path, hub_format: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """datasets treats a relative folder with the layout of a hub repository as such a repository."""
    repository = tmp_path / "owner" / "name"
    (repository / "one").mkdir(parents=True)
    for split, rows in hub_format.items():
        rows.to_parquet(repository / "one" / f"{split}.parquet")
    (repository / "README.md").write_text("---\nconfigs:\n- {config_name: subset, data_dir: one}\n---\n")
    monkeypatch.chdir(tmp_path)
    assert read_pairs("owner/name/subset") == read_pairs(str(pairs))


def test_a_dataset_without_the_columns_or_splits_is_a_sentence(tmp_path: Path, hub_format: Any) -> None:
    hub_format["train"].save_to_disk(tmp_path / "one-split")
    hub_format.remove_columns("label").save_to_disk(tmp_path / "no-label")
    for name, words in (("one-split", "train isn't there"), ("no-label", "train has sentence1, sentence2$")):
        with pytest.raises(ConfigError, match=rf"task\.options\.data is .*{name}': it needs the splits .*; {words}"):
            read_pairs(str(tmp_path / name))


@pytest.mark.torch
def test_bert_learns_sentence_pairs_with_three_ranks(tmp_path: Path, pairs: Path) -> None:
    options = {"model": str(pairs / "bert"), "data": str(pairs)}
    changes = {"epochs": 6, "batch": {"per_rank": 8}, "optimizer": {"lr": 3e-3}}
    found = run_ranks(3, results, run(tmp_path, {"name": "sentence-pairs", "options": options}, **changes))[0]
    assert found["accuracy"] > 0.9 and found["f1"] > 0.9


def test_a_model_that_is_not_there_is_a_sentence(pairs: Path) -> None:
    options = {"model": "/nowhere/bert", "data": str(pairs)}
    with pytest.raises(ConfigError, match=r"task\.options\.tokenizer is '/nowhere/bert': it can't be loaded"):
        build_task(TaskSettings.model_validate({"name": "sentence-pairs", "options": options}))

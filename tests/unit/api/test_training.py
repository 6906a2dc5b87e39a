"""The values of `training` that the bundled loop would refuse, and no others, are refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.api.sentences import sentences
from trainmaster_operator import __version__
from trainmaster_operator.api import training_schema
from trainmaster_operator.api.v1alpha1 import BUNDLED_IMAGE, DEFAULT_IMAGE

RIGHT = {"steps": 100, "batch": {"size": 64}}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a section that there isn't": (
        {**RIGHT, "modle": {"layers": 4}},
        "modle: unknown field; did you mean task.options?",
    ),
    "a misspelled section": (
        {**RIGHT, "optimiser": {"lr": 1}},
        "optimiser: unknown field; did you mean optimizer?",
    ),
    "a misspelled field": (
        {**RIGHT, "optimizer": {"learningrate": 1, "weightDecay": 0.1}},
        "optimizer.learningrate: unknown field; use one of name, lr, weight_decay, betas, eps, momentum, nesterov, "
        "max_norm; spec.training.optimizer.weightDecay: unknown field; did you mean weight_decay?",
    ),
    "a field outside of its section": ({**RIGHT, "lr": 3e-4}, "lr: unknown field; did you mean optimizer.lr?"),
    "text for a number": (
        {**RIGHT, "optimizer": {"lr": "fast"}},
        "optimizer.lr: 'fast' is not a number; use one, such as 0.5",
    ),
    "a fraction of a step": (
        {**RIGHT, "steps": 1.5},
        "steps: 1.5 is not a whole number; write it without a fraction",
    ),
    "a switch for a number": (
        {**RIGHT, "steps": True},
        "steps: true is not a whole number; use one, such as 2",
    ),
    "a rate below 0": ({**RIGHT, "optimizer": {"lr": -1}}, "optimizer.lr: -1 is too small; use more than 0"),
    "a fraction above 1": ({**RIGHT, "schedule": {"decay": 5}}, "schedule.decay: 5 is too large; use at most 1"),
    "a choice that there isn't": (
        {**RIGHT, "precision": {"compute": "bf-16"}},
        "precision.compute: 'bf-16' is not known; did you mean bf16?",
    ),
    "one of two betas": ({**RIGHT, "optimizer": {"betas": [0.9]}}, "optimizer.betas: has 1 items; give 2"),
    "a number for a section": (
        {**RIGHT, "batch": 64},
        "batch: 64 is not a mapping; give its fields, such as size and per_rank and accumulation",
    ),
    "a task that there isn't": (
        {**RIGHT, "task": {"name": "review"}},
        "task.name: 'review' is not a task; did you mean reviews?",
    ),
    "an option that the task hasn't": (
        {**RIGHT, "task": {"name": "text", "options": {"widht": 3}}},
        "task.options.widht: unknown field; did you mean width?",
    ),
    "a misspelled batch, which isn't missing too": (
        {"steps": 1, "bacth": {"size": 8}},
        "bacth: unknown field; did you mean batch?",
    ),
    "no batch": ({"steps": 1}, "batch: is missing; set it"),
    "an expression that is none": (
        {**RIGHT, "delayed": {"pattern": "("}},
        "delayed.pattern: '(' is not a valid regular expression; correct it",
    ),
}


@pytest.mark.parametrize(("name", "meant"), training_schema.ALIASES.items())
def test_other_trainers_names_are_sent_to_fields_that_there_are(name: str, meant: str) -> None:
    fields = training_schema.SCHEMAS["config"]
    for part in meant.split("."):
        fields = fields["properties"][part]
    training = {"epochs": 1, "batch": {"size": 1}, name: 1}
    assert sentences({"workers": 1, "training": training}) == [
        f"spec.training.{name}: unknown field; did you mean {meant}?"
    ]


@pytest.mark.parametrize(("training", "sentence"), BAD.values(), ids=BAD.keys())
def test_what_the_loop_refuses_is_refused_with_a_sentence(training: dict[str, Any], sentence: str) -> None:
    assert "; ".join(sentences({"workers": 1, "training": training})) == f"spec.training.{sentence}"


def test_the_length_is_epochs_or_steps() -> None:
    batch = {"batch": {"size": 1}}
    assert sentences({"workers": 1, "training": batch}) == [
        "spec.training: has neither epochs nor steps; set one of them"
    ]
    assert sentences({"workers": 1, "training": {**batch, "epochs": 1, "steps": 1}}) == [
        "spec.training: has both epochs and steps; set one of them"
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"image": "example.com/me/train:1", "command": ["python", "train.py"]},
        {"command": ["python", "train.py"]},
        {"image": f"{BUNDLED_IMAGE}:99.0.0"},
        {"image": f"{BUNDLED_IMAGE}@sha256:{'0' * 64}"},
        {"args": ["--config", "/data/mine.yaml"]},
        {"args": ["--config=/data/mine.yaml"]},
    ],
    ids=["another image", "a command", "another version", "a digest alone", "another file", "another file with ="],
)
def test_training_is_free_where_another_program_reads_it(fields: dict[str, Any]) -> None:
    assert sentences({"workers": 1, "training": {"modle": 1}, **fields}) == []


def test_a_digest_beside_the_version_is_that_version() -> None:
    image = f"{DEFAULT_IMAGE}@sha256:{'0' * 64}"
    assert len(sentences({"workers": 1, "training": {"steps": "x"}, "image": image})) == 2


def test_what_is_set_on_the_command_line_isnt_missing() -> None:
    spec = {"workers": 1, "training": {"optimizer": {"lr": 1}}, "args": ["--set", "steps=3", "--set=batch.size=8"]}
    assert sentences(spec) == []
    assert len(sentences({**spec, "training": {"optimizer": {"rl": 1}}})) == 1


@pytest.mark.parametrize("options", [{"lr": {"x": [1]}}, {}, None])
def test_options_of_a_task_of_ones_own_are_free(options: Any) -> None:
    task = {"name": "my.module:task", **({} if options is None else {"options": options})}
    assert sentences({"workers": 1, "training": {**RIGHT, "task": task}}) == []


def test_values_are_read_as_the_loop_reads_them() -> None:
    training = {
        "steps": "1_000",
        "batch": {"size": 8.0},
        "optimizer": {"lr": "3e-4", "nesterov": "yes"},
        "gradients": {"ghosts": False},
        "evaluation": None,
    }
    assert sentences({"workers": 1, "training": training}) == []


def test_of_many_mistakes_ten_are_said() -> None:
    training = {**RIGHT, **{f"field{n}": 1 for n in range(20_000)}}
    assert len(sentences({"workers": 1, "training": training})) == 10


def test_the_schema_is_that_of_this_version() -> None:
    assert f"{BUNDLED_IMAGE}:{__version__}" == DEFAULT_IMAGE

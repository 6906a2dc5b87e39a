"""Every mistake in a configuration is one sentence that names field, value and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.trainer.toy import Toy
from tools.training_reference import training_reference
from trainloop.__main__ import main
from trainloop.config import dump_config, load_config, parse_config
from trainloop.distributed.device import choose_backend, choose_device
from trainloop.distributed.world import DistributedSettings, environment
from trainloop.errors import ConfigError
from trainloop.tasks import TaskSettings, build_task
from trainmaster_operator.api.parsing import parse_spec
from trainmaster_operator.api.v1alpha1 import JobIdentity
from trainmaster_operator.rendering import first_assignment, render

GOOD: dict[str, Any] = {"epochs": 1, "batch": {"size": 8}}

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"optimiser": {"lr": 1}}, "optimiser (value {'lr': 1}) is not a field: did you mean 'optimizer'?"),
    ({"schedule": {"warm_up": 5}}, "schedule.warm_up (value 5) is not a field: did you mean 'warmup'?"),
    ({"seed": {"xyz": 5}}, "seed.xyz (value 5) is not a field: known here are value, deterministic"),
    ({"optimizer": {"lr": -1}}, "optimizer.lr is -1: input should be greater than 0"),
    ({"optimizer": {"lr": "fast"}}, "optimizer.lr is 'fast': input should be a valid number, unable to parse string"),
    ({"optimizer": {"name": "lion"}}, "optimizer.name is 'lion': input should be 'adamw', 'adam' or 'sgd'"),
    ({"steps": 5}, "the length is not clear: set exactly one of epochs and steps"),
    ({"batch": {}}, "batch: batch needs size (samples in a step, all ranks) or per_rank (samples in a forward pass)"),
    ({"schedule": {"scaling": "linear"}}, "schedule: reference_batch is missing: scaling linear needs the batch that"),
    ({"data": 5}, "data is 5: it must be a mapping with the fields workers, prefetch, pin_memory"),
    ({"batch": None}, "batch is missing: it is required"),
    ({"optimizer": {"lr": True}}, "optimizer.lr: True is a switch: it must be a number"),
    ({"checkpoint": {"every_steps": False}}, "checkpoint.every_steps: False is a switch: it must be a number"),
    ({"parallel": {"data": 0}}, "parallel.data is 0: input should be greater than 0, or a list of two numbers"),
    (
        {"parallel": {"data": [2, 2]}},
        "these don't go together: parallel.data of two numbers with parallel.strategy other than fsdp",
    ),
    ({"optimizer": {"betas": [0.9, 1.5]}}, "optimizer.betas.1 is 1.5: input should be less than 1"),
    ({"delayed": {"pattern": "("}}, "delayed.pattern is '(': input should be a valid regular expression"),
    (
        {"batch": {"size": 8, "per_rank": 2, "accumulation": 2}},
        "batch: with size and per_rank the accumulation follows",
    ),
    ({"data": {"workers": 1.5}}, "data.workers is 1.5: input should be a valid integer"),
    ({"blocks": {"compile": [1]}}, "blocks.compile is [1]: input should be a valid boolean, or a valid string"),
]


@pytest.mark.parametrize(("change", "sentence"), MISTAKES)
def test_a_mistake_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({**GOOD, **change})
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"epochs": 0, "batch": {"size": 0}, "foo": 1})
    assert [line.split()[0] for line in str(caught.value).splitlines()] == ["epochs", "batch.size", "foo"]


def test_a_missing_section_is_named() -> None:
    with pytest.raises(ConfigError, match="batch is missing: it is required"):
        parse_config({"epochs": 1})


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "training.yaml"
    file.write_text(yaml.safe_dump(GOOD))
    config = load_config(file, ["optimizer.lr=3e-4", "batch.size=16", "task.options={samples: 5, rate: 1e5}"])
    assert (config.optimizer.lr, config.batch.size) == (3e-4, 16)
    assert config.task.options == {"samples": 5, "rate": 100_000.0}


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("optimizer.lr", "--set 'optimizer.lr' is not of the form field.field=value"),
        ("epochs.x=1", "--set 'epochs.x=1': epochs is a value, it has no fields"),
        ("optimizer.lrr=1", "optimizer.lrr (value 1) is not a field: did you mean 'lr'?"),
        ("optimizer.lr=[", "--set 'optimizer.lr=[' is no YAML: while parsing a flow node"),
    ],
)
def test_a_wrong_override_is_a_sentence(tmp_path: Path, override: str, sentence: str) -> None:
    file = tmp_path / "training.yaml"
    file.write_text(yaml.safe_dump(GOOD))
    with pytest.raises(ConfigError) as caught:
        load_config(file, [override])
    assert str(caught.value).startswith(sentence) and "\n" not in str(caught.value)


def test_yaml_is_read_as_people_mean_it(tmp_path: Path) -> None:
    """A bare `off` is false in YAML 1.1, which kubectl reads too, and a section with only comments is null."""
    file = tmp_path / "training.yaml"
    file.write_text("epochs: 1\nbatch: {size: 8}\ngradients: {ghosts: off}\noptimizer:\n  # lr: 1\n")
    config = load_config(file, ["optimizer.eps=1e-6", "delayed.pattern=^emb"])
    assert (config.gradients.ghosts, config.optimizer.lr, config.optimizer.eps) == ("off", 1e-3, 1e-6)
    assert parse_config({**GOOD, "distributed": {"debug": False}}).distributed.debug == "off"
    assert parse_config(yaml.safe_load(dump_config(config))) == config


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- 1", "has a list at the top"),
        ("a: [", "is no YAML"),
        ("steps: 5\nbatch: {size: 8}\nsteps: 9", "'steps' is there twice .* line 3"),
        ("# caf\xe9", "is no text in UTF-8"),
        (None, "can't be read"),
    ],
)
def test_a_file_that_is_no_configuration_is_a_sentence(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "training.yaml"
    if text is not None:
        file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=words):
        load_config(file)


def test_a_mounted_file_that_is_not_spec_training_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Such a file names code to run, and more people can write ConfigMaps than jobs."""
    own_task = {"name": "own:task", "options": {"x": "3e-4", "é": [1, 2.0]}}
    training = {**GOOD, "optimizer": {"lr": 3e-05}, "task": own_task}
    manifests = rendered(training)
    (text,) = [one["data"]["training.yaml"] for one in manifests if one["kind"] == "ConfigMap"]
    (worker,) = manifests[-1]["spec"]["template"]["spec"]["containers"]
    (value,) = [one["value"] for one in worker["env"] if one["name"] == "TRAINMASTER_TRAINING"]
    assert value.endswith(" /etc/trainmaster/training.yaml") and "--config" in worker["args"]
    file = tmp_path / "training.yaml"
    monkeypatch.delenv("TRAINMASTER_HOSTS_FILE", raising=False)
    monkeypatch.setenv("TRAINMASTER_TRAINING", f"{value.partition(' ')[0]} {file}")
    file.write_text(text)
    assert load_config(file).optimizer.lr == 3e-05
    file.write_text(yaml.safe_dump(training, default_flow_style=True))
    assert load_config(file).optimizer.lr == 3e-05, "by value: an operator of another version may write it otherwise"
    hook = {"sh": 0, "-c": 0, "id": 0}
    for other in ({**training, "task": {"name": "subprocess:Popen", "options": hook}}, {**training, 1: 2}, {}):
        file.write_text(yaml.safe_dump(other, sort_keys=False))
        with pytest.raises(ConfigError, match=r"isn't what spec\.training says, so it isn't used"):
            load_config(file)
    monkeypatch.setenv("TRAINMASTER_HOSTS_FILE", "/hosts")
    file.write_text(text.replace("own:task", "local:task"))
    assert load_config(file).task.name == "local:task", "a local cluster writes its own paths into it"
    own = tmp_path / "own.yaml"
    own.write_text(yaml.safe_dump(GOOD))
    assert load_config(own).epochs == 1


def rendered(training: dict[str, Any]) -> list[dict[str, Any]]:
    job, spec = JobIdentity("team", "tiny", "uid-1"), parse_spec({"workers": 1, "training": training}, "tiny")
    return [dict(one.body) for one in render(job, spec, first_assignment(job, spec))]


def test_the_printed_configuration_loads_to_itself(tmp_path: Path) -> None:
    config = parse_config({**GOOD, "task": {"name": "reviews", "options": {"width": 8}}})
    file = tmp_path / "training.yaml"
    file.write_text(dump_config(config))
    assert load_config(file) == config


def test_print_config_prints_what_would_run_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--set", "epochs=2", "--set", "batch.size=8", "--set", "optimizer.lr=3e-4", "--print-config"]) == 0
    printed = parse_config(yaml.safe_load(capsys.readouterr().out))
    assert printed == parse_config({"epochs": 2, "batch": {"size": 8}, "optimizer": {"lr": 3e-4}})


def test_every_field_has_a_description() -> None:
    rows = [line for line in training_reference().splitlines() if line.startswith("| `")]
    assert len(rows) > 40
    assert [row for row in rows if row.rstrip().endswith("|  |")] == []
    assert "| `constant`, `linear`, `cosine`, `cosine_restarts` | `cosine` |" in "\n".join(rows), "what may be written"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("reveiws", "task.name is 'reveiws': known are causal-lm, reviews, sentence-pairs, text"),
        ("nowhere:factory", "No module named 'nowhere'; is it on PYTHONPATH in the image?"),
        ("trainloop.data:factory", "module trainloop.data has no 'factory'"),
        ("builtins:dict", "what it returns has no train, evaluation, model"),
    ],
)
def test_a_task_that_is_none_is_a_sentence(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("?", r"\?")):
        build_task(TaskSettings.model_validate({"name": name}))


def test_a_mistake_in_a_tasks_module_is_not_reported_as_a_missing_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mistaken_task.py").write_text("import math\nmath.no_such_thing\ndef factory(options): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AttributeError, match="no_such_thing"):
        build_task(TaskSettings.model_validate({"name": "mistaken_task:factory"}))


def once(options: dict[str, Any]) -> Toy:
    task = Toy(options)
    task.train = iter(task.train)  # type: ignore[assignment]
    return task


def empty(options: dict[str, Any]) -> Toy:
    return Toy({"samples": 0})


def nothing(options: dict[str, Any]) -> Toy:
    task = Toy(options)
    task.collate = lambda samples: None  # type: ignore[assignment,method-assign,return-value]
    return task


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (once, "its train is of list_iterator, which can.t be read twice: give data with len"),
        (empty, "its train has no samples"),
        (nothing, "its collate returns nothing: it must return the batch"),
    ],
)
def test_data_that_can_not_be_used_is_a_sentence(factory: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_task(TaskSettings.model_validate({"name": f"{__name__}:{factory.__name__}"}))


def test_a_tasks_own_options_are_checked_like_the_rest() -> None:
    with pytest.raises(ConfigError) as caught:
        build_task(TaskSettings.model_validate({"name": "reviews", "options": {"widht": 8}}))
    assert str(caught.value) == "task.options.widht (value 8) is not a field: did you mean 'width'?"


def test_an_environment_that_contradicts_itself_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="RANK is 2 with WORLD_SIZE 2: it must be from 0 to 1"):
        environment()


def test_a_device_or_backend_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"distributed.device is 'npu' but this machine has"):
        choose_device("npu", 0)
    with pytest.raises(ConfigError, match=r"distributed.backend is 'smoke-signals': this torch build has"):
        choose_backend("smoke-signals", choose_device("cpu", 0))


def test_auto_follows_the_operators_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_BACKEND", "gloo")
    settings = DistributedSettings.model_validate({})
    assert choose_backend(settings.backend, choose_device("cpu", 0)) == "gloo"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"precision": {"compute": "fp16"}, "parallel": {"strategy": "fsdp"}}, "use bf16"),
        ({"communication": {"compression": "onebit"}, "parallel": {"strategy": "fsdp"}}, "fsdp, which sends by itself"),
        ({"communication": {"compression": "onebit", "local_steps": 4}}, "no gradients are sent"),
        ({"communication": {"local_steps": 4}, "balance": {"enabled": True}}, "which weighs all alike"),
        # Otherwise the remainders would be in units of an older loss scale, or infinite, and no step would ever
        # succeed.
        ({"communication": {"compression": "onebit"}, "precision": {"compute": "fp16"}}, "keeps what it left out"),
        ({"parallel": {"strategy": "zero1"}, "checkpoint": {"format": "sharded"}}, "strategy zero1: use full"),
        (
            {"communication": {"local_steps": 4}, "parallel": {"strategy": "zero1"}},
            "strategy other than ddp",
        ),
        ({"delayed": {"pattern": "x"}, "parallel": {"strategy": "zero1"}}, "delayed.pattern with parallel.strategy"),
        ({"delayed": {"pattern": "x"}, "checkpoint": {"format": "sharded"}}, "delayed.pattern with checkpoint.format"),
    ],
)
def test_what_does_not_go_together_is_a_sentence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_config({"epochs": 1, "batch": {"size": 8}, **changes})

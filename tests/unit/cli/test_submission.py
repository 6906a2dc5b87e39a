"""`submit` turns flags and manifests into a job, and reports mistakes, without a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from trainmaster.cli.main import program


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").write_text("print(1)\n")
    (tmp_path / "src/secret.py").write_text("print(2)\n")
    (tmp_path / "src/.gitignore").write_text("secret.py\n")
    return tmp_path


def submit(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(program("trainmaster"), ["submit", "--dry-run", *arguments])
    return result.exit_code, " ".join(result.output.split()) if result.exit_code else result.stdout


def test_flags_become_a_manifest(folder: Path) -> None:
    code = str(folder / "src")
    given = (
        "--name",
        "bert",
        "--workers",
        "2",
        "--gpus",
        "1",
        "--script",
        "train.py",
        "--code",
        code,
        "--",
        "--lr",
        "1",
    )
    exit_code, text = submit(*given)
    assert exit_code == 0, text
    spec = yaml.safe_load(text)["spec"]
    assert spec["command"] == ["python", "train.py", "--lr", "1"]
    assert (spec["workers"], spec["resources"], spec["code"]["configMap"]) == (2, {"gpus": 1}, "bert-code")


def test_flags_choose_the_lines_that_show_progress() -> None:
    exit_code, text = submit("--progress-pattern", r"it (?P<step>\d+)", "--", "python", "train.py")
    assert exit_code == 0, text
    assert yaml.safe_load(text)["spec"]["progress"] == {"pattern": r"it (?P<step>\d+)"}
    exit_code, text = submit("--progress-preset", "lightning", "--", "python", "train.py")
    assert yaml.safe_load(text)["spec"]["progress"] == {"preset": "lightning"}


def test_a_scripts_path_may_be_this_machines(folder: Path) -> None:
    exit_code, text = submit("--script", str(folder / "src/train.py"), "--code", str(folder / "src"))
    assert exit_code == 0, text
    manifest = yaml.safe_load(text)
    assert manifest["spec"]["command"] == ["python", "train.py"]
    assert manifest["metadata"]["name"].startswith("train-")


def test_a_manifest_gets_code_and_a_name(folder: Path) -> None:
    job = folder / "job.yaml"
    job.write_text(
        "apiVersion: trainmaster.dev/v1alpha1\nkind: DistributedTrainingJob\nmetadata: {name: a}\n"
        "spec: {workers: 1, command: [python, train.py], checkpoint: {volume: {claimName: ckpt}}}\n"
    )
    exit_code, text = submit(str(job), "--name", "b", "--code", str(folder / "src"), "--code-claim", "archives")
    assert exit_code == 0, text
    code = yaml.safe_load(text)["spec"]["code"]
    assert code["claim"] == {"claimName": "archives", "path": "trainmaster-code/b"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give a manifest, --script, or a command after --"),
        (["--script", "train.py"], "train.py is not in the bundled image; add --code DIR"),
        (["--script", "other.py", "--code", "src"], "other.py is not in the code of src"),
        (["--script", "secret.py", "--code", "src"], "where .gitignore or .trainmasterignore leaves it out"),
        (["--script", "train.py", "--code", "nowhere"], "nowhere is not there: give the folder that the code is in"),
        (["--progress-preset", "keras", "--", "train"], "spec.progress.preset"),
        (["--progress-pattern", "it", "--", "train"], "'it' has no named group, so it says nothing"),
        (["--workers", "0", "--script", "train.py", "--code", "src"], "spec.workers: 0 is too small; use at least 1"),
        (["--name", "Bert", "--script", "train.py", "--code", "src"], "'Bert' is no name of a job"),
        (["nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_a_mistake_is_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(folder)
    exit_code, text = submit(*arguments)
    assert exit_code in (1, 2) and "Traceback" not in text
    assert sentence in text.replace("│ ", "").replace(" │", ""), text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("mine", "--", "python", "train.py"),
            "'mine' is no manifest (.yaml, .yml or .json); give the job's name by --name, and each worker's command "
            "after --",
        ),
        (("python", "train.py"), "'python' is no manifest"),
        (("train.py",), "'train.py' is no manifest (.yaml, .yml or .json); give a script by --script train.py"),
        (("a.yaml", "b.yaml"), "one manifest is submitted at a time, not 2"),
        (("a.yaml", "-f", "b.yaml"), "stands beside the manifest a.yaml; leave one of them out"),
        (("a.yaml", "--", "python"), "a command stands behind -- beside the manifest a.yaml; write it there"),
    ],
    ids=" ".join,
)
def test_what_stands_before_the_command_is_a_manifest_or_a_mistake(words: tuple[str, ...], sentence: str) -> None:
    exit_code, text = submit(*words)
    assert exit_code == 2 and sentence in text, text


def test_a_command_keeps_every_word_behind_the_first_two_dashes() -> None:
    exit_code, text = submit("--image", "i", "--", "make", "--", "-x", "a.yaml")
    assert exit_code == 0, text
    assert yaml.safe_load(text)["spec"]["command"] == ["make", "--", "-x", "a.yaml"]


@pytest.mark.parametrize(("spec", "sentence"), [("", "spec: has no workers"), ("[python]", "spec is no mapping")])
def test_code_for_a_manifest_without_fields_is_a_sentence(folder: Path, spec: str, sentence: str) -> None:
    job = folder / "job.yaml"
    job.write_text(
        f"apiVersion: trainmaster.dev/v1alpha1\nkind: DistributedTrainingJob\nmetadata: {{name: a}}\nspec: {spec}\n"
    )
    exit_code, text = submit(str(job), "--code", str(folder / "src"))
    assert exit_code == 1 and sentence in text, text


def test_code_that_lacks_the_manifests_script_is_refused(folder: Path) -> None:
    job = folder / "job.yaml"
    job.write_text(
        "apiVersion: trainmaster.dev/v1alpha1\nkind: DistributedTrainingJob\nmetadata: {name: a}\n"
        "spec: {workers: 1, command: [python, src/train.py]}\n"
    )
    exit_code, text = submit(str(job), "--code", str(folder / "src"))
    assert exit_code == 1
    assert "error: job a runs src/train.py, and the code of " in text

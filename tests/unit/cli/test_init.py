"""`trainmaster init` writes a valid job and a script, never overwrites a file, and names the next step."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from trainmaster.cli.main import app


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner()


def test_it_writes_a_job_and_a_script(runner: CliRunner, tmp_path: Path) -> None:
    result = runner.invoke(app, ["init", str(tmp_path / "new"), "--name", "circles"])
    job, script = tmp_path / "new" / "job.yaml", tmp_path / "new" / "train.py"
    assert result.exit_code == 0, result.stderr
    assert result.stdout == (
        f"wrote {job}\nwrote {script}\n\n"
        "Next, at a cluster that has Trainmaster:\n"
        f"  kubectl dtj submit {job} --code {tmp_path / 'new'}\n"
        "  kubectl dtj status --watch circles\n"
    )
    assert ast.parse(script.read_text())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], {"workers": 2, "image": "ghcr.io/trainmaster/trainer:0.1.0"}),
        (["--workers", "4", "--gpus", "8", "--image", "team/train:1"], {"workers": 4, "image": "team/train:1"}),
    ],
)
def test_the_job_is_valid_and_is_what_the_options_say(
    runner: CliRunner, tmp_path: Path, options: list[str], expected: dict[str, object]
) -> None:
    assert runner.invoke(app, ["init", str(tmp_path), *options]).exit_code == 0
    assert runner.invoke(app, ["validate", str(tmp_path / "job.yaml")]).exit_code == 0
    spec = yaml.safe_load((tmp_path / "job.yaml").read_text())["spec"]
    assert {name: spec[name] for name in expected} == expected
    assert spec["resources"].get("gpus") == (8 if options else None)


def test_nothing_is_overwritten_unless_it_is_asked_for(runner: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("mine")
    result = runner.invoke(app, ["init", str(tmp_path)])
    assert (result.exit_code, (tmp_path / "train.py").read_text()) == (1, "mine")
    assert result.stderr == f"error: {tmp_path}/train.py exists already; --force replaces it\n"
    assert not (tmp_path / "job.yaml").exists()
    assert runner.invoke(app, ["init", str(tmp_path), "--force"]).exit_code == 0
    assert (tmp_path / "train.py").read_text() != "mine"


@pytest.mark.parametrize("options", [[], ["--force"]])
def test_nothing_is_written_through_a_link(runner: CliRunner, tmp_path: Path, options: list[str]) -> None:
    valuable, folder = tmp_path / "valuable.py", tmp_path / "new"
    folder.mkdir()
    for target in (valuable, tmp_path / "missing"):
        (folder / "train.py").unlink(missing_ok=True)
        (folder / "train.py").symlink_to(target)
        valuable.write_text("mine")
        result = runner.invoke(app, ["init", str(folder), *options])
        assert (result.exit_code, valuable.read_text()) == (1, "mine")
        assert result.stderr == (
            f"error: {folder}/train.py is a link to {target}; name another file, or remove the link\n"
        )
        assert not (folder / "job.yaml").exists() and not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--name", "My_Job"], "error: metadata.name: 'My_Job' is not a name that a Service can have"),
        (["--workers", "0"], "error: spec.workers: 0 is too small; use at least 1"),
        (["--image", "https://x"], "error: spec.image: 'https://x' is not an image that can be pulled"),
    ],
)
def test_what_the_job_can_t_be_is_said(runner: CliRunner, tmp_path: Path, options: list[str], said: str) -> None:
    result = runner.invoke(app, ["init", str(tmp_path), *options])
    assert result.exit_code == 1
    assert result.stderr.startswith(said)
    assert not list(tmp_path.iterdir())

"""`trainmaster demo` removes only the files that an earlier demo made in its folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trainmaster.cli import demo
from trainmaster.cli.main import app
from trainmaster.local import NotRunning

JOB = "apiVersion: trainmaster.dev/v1alpha1\nkind: DistributedTrainingJob\nmetadata: {name: mine}\nspec: {workers: 2}\n"


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops the demo where it would start a cluster."""

    @contextmanager
    def starts(folder: Path, **_: Any) -> Iterator[None]:
        raise NotRunning("started")
        yield

    monkeypatch.setattr(demo, "running_cluster", starts)


def run(example: Path, folder: Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["demo", str(example), "--folder", str(folder)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_with_a_users_files_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine"
    (mine / "logs").mkdir(parents=True)
    for name, text in (("job.yaml", JOB), ("train.py", "work"), ("logs/run.log", "a run")):
        (mine / name).write_text(text)
    before = contents(mine)
    code, output = run(mine / "job.yaml", mine)
    assert (code, contents(mine)) == (1, before)
    assert "has files of somebody else; name an empty folder with --folder" in output
    monkeypatch.chdir(mine)
    assert run(Path("job.yaml"), Path())[0] == 1
    assert contents(mine) == before


def test_an_earlier_demo_gives_way_and_what_a_user_put_beside_it_stays(tmp_path: Path) -> None:
    example, folder = tmp_path / "job.yaml", tmp_path / "demo"
    example.write_text(JOB)
    assert "started" in run(example, folder)[1]
    assert (folder / "job.yaml").read_text().endswith(f"volume:\n      hostPath: {folder}/checkpoints\n")
    (folder / "checkpoints" / "step-1").mkdir()
    (folder / "notes.txt").write_text("mine")
    assert "started" in run(example, folder)[1]
    assert list((folder / "checkpoints").iterdir()) == []
    assert (folder / "notes.txt").read_text() == "mine"


def test_nothing_is_removed_through_a_link(tmp_path: Path) -> None:
    example, folder, valuable = tmp_path / "job.yaml", tmp_path / "demo", tmp_path / "valuable"
    example.write_text(JOB)
    run(example, folder)
    valuable.mkdir()
    (valuable / "model").write_text("mine")
    (folder / "logs").symlink_to(valuable)
    run(example, folder)
    assert (valuable / "model").read_text() == "mine" and not (folder / "logs").exists()


@pytest.mark.parametrize("text", ["spec: [", "kind: DistributedTrainingJob\nspec: 1\n", "kind: ConfigMap\n"])
def test_an_example_that_is_wrong_removes_nothing(tmp_path: Path, text: str) -> None:
    example, folder = tmp_path / "job.yaml", tmp_path / "demo"
    example.write_text(JOB)
    run(example, folder)
    (folder / "checkpoints" / "model").write_text("trained")
    example.write_text(text)
    code, output = run(example, folder)
    assert code == 1 and output.startswith(f"error: {example}")
    assert (folder / "checkpoints" / "model").read_text() == "trained"


def test_a_path_that_is_a_file_is_a_sentence(tmp_path: Path) -> None:
    example = tmp_path / "job.yaml"
    example.write_text(JOB)
    code, output = run(example, example)
    assert (code, example.read_text()) == (1, JOB)
    assert "File exists; name another folder with --folder." in output

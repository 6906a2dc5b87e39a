"""The agent recognises the command lines that can start warm, and gives a reason for the others."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from trainmaster_operator.agent.warm.command import WarmCommand, script_path, warm_command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "train").write_text("#!/usr/bin/env python3\n")
    (tmp_path / "package").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("command", "interpreter", "path"),
    [
        (("python", "train.py"), ("python",), "."),
        (("/opt/conda/bin/python3.12", "train.py", "-c", "x"), ("/opt/conda/bin/python3.12",), "."),
        (("python3", "-u", "-m", "trainloop", "-S"), ("python3", "-u"), "."),
        (("python3", "-mtrainloop"), ("python3",), "."),
        (("python3", "-uB", "-Wdefault", "-X", "dev", "train.py"), ("python3", "-u", "-B", "-Wdefault", "-Xdev"), "."),
        (("python3", "-OO", "train"), ("python3", "-O", "-O"), "."),
        (("python3", "-P", "train.py"), ("python3", "-P"), ""),
        (("python3", "package"), ("python3",), "package"),
        (("python3", "--", "train.py"), ("python3",), "."),
    ],
)
def test_a_script_and_a_module_of_python_can_be_warm(
    folder: Path, command: tuple[str, ...], interpreter: tuple[str, ...], path: str
) -> None:
    found = warm_command(command)
    assert isinstance(found, WarmCommand) and found.interpreter == interpreter
    assert script_path(found, str(folder)) == (path and str((folder / path).resolve()), "")


def test_a_script_behind_a_link_finds_its_neighbours_where_it_is(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "link.py").symlink_to(folder / "train.py")
    assert script_path(WarmCommand(("python",), str(elsewhere / "link.py")), "/") == (str(folder), "")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("./train.sh", "--fast"), "'train.sh' is not Python"),
        (("accelerate", "launch", "train.py"), "'accelerate' is not Python"),
        (("torchrun", "train.py"), "'torchrun' is not Python"),
        (("python", "-m", "torch.distributed.run", "train.py"), "the command starts torchrun itself"),
        (
            ("python", "-m", "accelerate.commands.launch", "train.py"),
            "accelerate.commands.launch starts the ranks itself",
        ),
        (("python", "-c", "print()"), "Python's flag -c is not a script"),
        (("python", "-I", "train.py"), "Python's flag -I ignores PYTHONPATH"),
        (("python", "-uE", "train.py"), "Python's flag -E ignores PYTHONPATH"),
        (("python", "-S", "train.py"), "Python's flag -S leaves out the site module"),
        (("python", "-i", "train.py"), "Python's flag -i waits for a person"),
        (("python", "-X", "importtime", "train.py"), "Python's flag -X importtime measures imports"),
        (("python", "--version"), "Python's flag -- is not known"),
        (("python", "-V"), "Python's flag -V is not known"),
        (("python", "-"), "the command has no script"),
        (("python",), "the command has no script"),
        (("python", "-m"), "the command has no module"),
    ],
)
def test_what_needs_a_launcher_says_why(command: tuple[str, ...], reason: str) -> None:
    assert warm_command(command) == reason


def test_an_archive_is_not_started_warm(folder: Path) -> None:
    with zipfile.ZipFile(folder / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", "")
    assert script_path(WarmCommand(("python",), "app.pyz"), str(folder))[1] == "'app.pyz' is an archive"


def test_what_only_the_files_show_asks_for_no_launcher(folder: Path) -> None:
    """Other workers may have other files, and their ranks must meet this worker's ranks."""
    found = warm_command(("python", "nowhere"))
    assert isinstance(found, WarmCommand)
    assert script_path(found, str(folder))[1] == "'nowhere' is not a file"

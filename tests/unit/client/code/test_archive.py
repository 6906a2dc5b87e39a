"""The same files make the same archive; what a job must not carry is left out, and what is too large is refused."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from trainmaster.client.code import archive as module
from trainmaster.client.code.archive import Archive, archive_files, archive_folder, size_text
from trainmaster.client.errors import InvalidRequest


def write(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")


def members(archive: Archive) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(archive.data)) as tar:
        return {member.name: member for member in tar}


def test_the_digest_is_of_the_files_alone(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    write(one, "train.py", "lib/model.py")
    write(other, "lib/model.py", "train.py")
    os.utime(other / "train.py", (1, 1))
    assert archive_folder(one).digest == archive_folder(other).digest
    (other / "train.py").write_text("# train.pz\n")
    assert archive_folder(one).digest != archive_folder(other).digest


def test_files_in_memory_make_the_same_archive_as_a_folder(tmp_path: Path) -> None:
    write(tmp_path, "train.py")
    assert archive_files({"train.py": b"# train.py\n"}).data == archive_folder(tmp_path).data


def test_ignore_files_count_as_git_reads_them(tmp_path: Path) -> None:
    write(
        tmp_path, "train.py", "data/a.bin", "data/keep.txt", "lib/notes.log", "lib/deep/b.log", "runs/x", "secret.env"
    )
    (tmp_path / ".gitignore").write_text("data/*\n!data/keep.txt\n*.log\n/runs/\n")
    (tmp_path / ".trainmasterignore").write_text("*.env\n")
    (tmp_path / "lib/deep/.gitignore").write_text("!b.log\n")
    names = set(members(archive_folder(tmp_path)))
    assert names == {
        ".gitignore",
        ".trainmasterignore",
        "train.py",
        "data/keep.txt",
        "lib/deep/.gitignore",
        "lib/deep/b.log",
    }


def test_caches_and_environments_are_always_left_out(tmp_path: Path) -> None:
    write(tmp_path, "train.py", ".git/HEAD", "__pycache__/train.pyc", ".venv/x", "env/pyvenv.cfg", "env/lib/y.py")
    assert set(members(archive_folder(tmp_path))) == {"train.py"}


def test_links_stay_where_they_stay_inside(tmp_path: Path) -> None:
    write(tmp_path, "code/lib/model.py", "outside.py")
    (tmp_path / "code/model.py").symlink_to("lib/model.py")
    (tmp_path / "code/lib/up.py").symlink_to("../model.py")
    (tmp_path / "code/escape.py").symlink_to("../outside.py")
    (tmp_path / "code/absolute").symlink_to("/etc")
    os.mkfifo(tmp_path / "code/pipe")
    archive = archive_folder(tmp_path / "code")
    assert set(members(archive)) == {"lib/model.py", "lib/up.py", "model.py"}
    assert members(archive)["model.py"].issym()
    assert archive.left_out == (
        "absolute (a link out of the folder)",
        "escape.py (a link out of the folder)",
        "pipe (not a file)",
    )


def test_a_program_stays_one(tmp_path: Path) -> None:
    write(tmp_path, "run.sh", "train.py")
    (tmp_path / "run.sh").chmod(0o700)
    found = members(archive_folder(tmp_path))
    assert (found["run.sh"].mode, found["train.py"].mode) == (0o755, 0o644)


def test_too_much_is_refused_with_the_largest_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CODE_BYTES", 10_000)
    write(tmp_path, "train.py")
    (tmp_path / "weights.bin").write_bytes(os.urandom(40_000))
    with pytest.raises(
        InvalidRequest, match=r"by a \.trainmasterignore: the largest are weights\.bin \(40\.0 KB\), train"
    ):
        archive_folder(tmp_path)
    monkeypatch.setattr(module, "MAX_UNPACKED_CODE_BYTES", 10_000)
    with pytest.raises(InvalidRequest, match=r"more than 20000 files or 10.0 KB.* weights\.bin"):
        archive_folder(tmp_path)


@pytest.mark.parametrize("name", ["nowhere", "file.py", "empty"])
def test_what_is_no_folder_of_code_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file.py").touch()
    (tmp_path / "empty").mkdir()
    sentences = {"nowhere": "is not there", "file.py": "is no folder", "empty": "has no files"}
    with pytest.raises(InvalidRequest, match=sentences[name]):
        archive_folder(tmp_path / name)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (34_100, "34.1 KB"),
        (999_949, "999.9 KB"),
        (999_950, "1.0 MB"),
        (1_501_000, "1.5 MB"),
    ],
)
def test_a_size_is_said_in_the_unit_that_fits(count: int, text: str) -> None:
    assert size_text(count) == text

"""The same files make the same archive, secret files are left out, and a large archive is refused."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from trainmaster.client.code import archive as module
from trainmaster.client.code.archive import (
    SECRET,
    Archive,
    LeftOut,
    archive_files,
    archive_folder,
    left_out_of,
    size_text,
)
from trainmaster.client.code.submitting import with_code
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
    write(tmp_path, ".trainmaster/local/kubeconfig")
    archive = archive_folder(tmp_path)
    assert (set(members(archive)), archive.left_out) == ({"train.py"}, ())


SECRETS = (
    ".env", ".env.production", "prod.env", ".envrc", "tls/server.key", "tls/server.pem", "store.p12", ".ssh/config",
    ".ssh/known_hosts", "keys/id_rsa", "id_ed25519", ".aws/credentials", ".kube/config", "home/.kube/config",
    "kubeconfig", ".netrc", ".git-credentials", ".npmrc", ".pypirc", ".docker/config.json", ".huggingface/token",
    ".cache/huggingface/token", "kaggle.json", "credentials.json", "service-account-prod.json", "prod.tfvars",
    ".bash_history", ".python_history", ".zsh_history", ".psql_history", ".config/gcloud/access_tokens.db",
)  # fmt: skip


def test_secrets_stay_behind_and_are_named(tmp_path: Path) -> None:
    write(tmp_path, "train.py", ".env.example", "id_rsa.pub", "monkey.py", "history.py", "tokens.json", *SECRETS)
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"
    (tmp_path / "deploy").write_text(key)
    (tmp_path / "about_keys.md").write_text(f"A key begins with\n{key}")
    archive = archive_folder(tmp_path)
    taken = {".env.example", "about_keys.md", "history.py", "id_rsa.pub", "monkey.py", "tokens.json", "train.py"}
    assert set(members(archive)) == taken
    assert {each.reason for each in archive.left_out} == {SECRET}
    left = {each.path for each in archive.left_out}
    assert "deploy" in left and all(any(name.startswith(each) for each in left) for name in SECRETS)
    assert not any(b"PRIVATE" in name.encode() for name in left)
    assert "may hold secrets; to take one along, name it in .trainmasterignore, as !.aws/)" in archive.summary()


def test_a_secret_is_taken_where_a_trainmasterignore_names_it(tmp_path: Path) -> None:
    write(tmp_path, "train.py", ".env", "tls/public.pem", ".aws/config", "tls/server.key", "deploy")
    (tmp_path / "deploy").write_text("-----BEGIN RSA PRIVATE KEY-----\n")
    # A .gitignore that includes a secret doesn't mean that everybody who reads ConfigMaps may see it.
    (tmp_path / ".gitignore").write_text("!*\n!.env\n")
    assert set(archive_folder(tmp_path).sizes) == {".gitignore", "train.py"}
    (tmp_path / ".trainmasterignore").write_text("!tls/public.pem\n!.aws/\n!deploy\n")
    taken = {".gitignore", ".trainmasterignore", "train.py", "tls/public.pem", ".aws/config", "deploy"}
    assert set(archive_folder(tmp_path).sizes) == taken


def test_one_line_says_what_is_taken_and_what_is_not(tmp_path: Path) -> None:
    write(tmp_path, "train.py", ".env", *(f"data/{name}.bin" for name in "abcdefg"), "data/prepare.py", "out/x")
    (tmp_path / "data/.gitignore").write_text("*.bin\n")
    (tmp_path / ".trainmasterignore").write_text("out/\n")
    archive = archive_folder(tmp_path)
    assert archive.summary() == (
        f"4 files, {size_text(len(archive.data))}; left out: "
        ".env (may hold secrets; to take one along, name it in .trainmasterignore, as !.env); "
        "data/a.bin, data/b.bin, data/c.bin, data/d.bin, data/e.bin and 2 more (.gitignore); out/ (.trainmasterignore)"
    )


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
        LeftOut("absolute", "a link out of the folder"),
        LeftOut("escape.py", "a link out of the folder"),
        LeftOut("pipe", "not a file"),
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


def test_a_jobs_annotation_names_what_was_left_out_folders_first(tmp_path: Path) -> None:
    write(tmp_path, "train.py", ".env", "data/x", "a.bin")
    assert archive_folder(tmp_path / "data").annotation() is None
    (tmp_path / ".gitignore").write_text("data/\n*.bin\n")
    archive = archive_folder(tmp_path)
    manifest = {"metadata": {"name": "bars", "annotations": {"mine": "1"}}, "spec": {"workers": 1}}
    made = with_code(manifest, archive)
    assert made["metadata"]["annotations"]["mine"] == "1"
    assert left_out_of(made) == (
        LeftOut("data/", ".gitignore"),
        LeftOut(".env", "may hold secrets"),
        LeftOut("a.bin", ".gitignore"),
    )


@pytest.mark.parametrize(("count", "length"), [(1000, 1), (100, 300), (1, 3000)])
def test_the_annotation_is_bounded(count: int, length: int) -> None:
    left_out = [LeftOut(f"{number}{'é' * length}", ".gitignore") for number in range(count)]
    annotation = archive_files({"train.py": b""}, left_out=left_out).annotation() or "[]"
    assert len(annotation) <= 2000
    noted = left_out_of({"metadata": {"annotations": {module.LEFT_OUT_ANNOTATION: annotation}}})
    assert len(noted) <= 50 and all(each in left_out for each in noted)


@pytest.mark.parametrize("text", ["", "{", "7", "[7]", '[{"path": 7}]', "[" * 3000, '[{"why": "x"}]'])
def test_an_annotation_that_somebody_else_wrote_names_nothing(text: str) -> None:
    assert left_out_of({"metadata": {"annotations": {module.LEFT_OUT_ANNOTATION: text}}}) == ()

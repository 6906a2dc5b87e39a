"""`kubectl dtj push` uploads code, refuses bad code before the upload, and reports the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.dtj_command import JOBS, RUNNING, condition, run
from tests.unit.client.fakes import FakeTransport, job
from trainmaster.client.code import archive_folder

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


def running(digest: str = "0" * 64, **status: Any) -> dict[str, Any]:
    found = job(**{**RUNNING, "codeDigest": digest, **status})
    found["spec"] |= {"command": ["python", "train.py"], "code": {"digest": digest, "configMap": "reviews-code"}}
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("import torch\n")
    return tmp_path


def takes_code(transport: FakeTransport, *states: dict[str, Any]) -> None:
    """Lets the cluster accept new code, and then show the job in these states."""
    transport.answers = {
        f"GET {JOBS}/reviews": [running(), running(), *states],
        f"GET {CONFIG_MAPS}/reviews-code": {"metadata": {}, "binaryData": {}},
        f"PATCH {CONFIG_MAPS}/reviews-code": {},
        f"PATCH {JOBS}/reviews": running(),
    }


def test_the_folder_is_required(transport: FakeTransport, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    result = run("push", "reviews")
    assert (result.exit_code, transport.asked) == (2, [])
    assert "Missing argument 'DIR'" in result.output
    takes_code(transport)
    assert run("push", "reviews", ".", "--no-wait").exit_code == 0


def test_code_without_the_jobs_script_is_refused(transport: FakeTransport, tmp_path: Path) -> None:
    (tmp_path / "readme.txt").touch()
    takes_code(transport)
    result = run("push", "reviews", str(tmp_path))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"error: job reviews runs train.py, and the code of {tmp_path} doesn't have it; give the folder that has "
        "train.py\n"
    )
    assert {method for method, *_ in transport.asked} == {"GET"}


def test_the_size_has_the_unit_that_submit_gives_it(transport: FakeTransport, folder: Path) -> None:
    takes_code(transport)
    digest, size = archive_folder(folder).digest, len(archive_folder(folder).data)
    result = run("push", "reviews", str(folder), "--no-wait")
    assert result.output == f"reviews: new code {digest[:12]} (1 file, {size} bytes)\n"


def test_the_job_names_the_files_that_the_new_code_lacks(transport: FakeTransport, folder: Path) -> None:
    for ignored, noted in (("data/\n", '[{"path": "data/", "why": ".gitignore"}]'), ("", None)):
        (folder / "data").mkdir(exist_ok=True)
        (folder / ".gitignore").write_text(ignored)
        takes_code(transport)
        run("push", "reviews", str(folder), "--no-wait")
        [patch] = [body for method, path, _, body in transport.asked if method == "PATCH" and path == f"{JOBS}/reviews"]
        assert patch["metadata"] == {"annotations": {"trainmaster.dev/code-left-out": noted}}
        transport.asked.clear()


def test_what_becomes_of_the_new_code_is_said_as_wait_says_it(transport: FakeTransport, folder: Path) -> None:
    new = archive_folder(folder).digest
    ended = {"phase": "Failed", "conditions": [condition("Failed", "True", "MaxRestartsExceeded", "6 restarts")]}
    takes_code(transport, running(new, attempt=3))
    result = run("push", "reviews", str(folder))
    assert (result.exit_code, result.stderr) == (0, "")
    assert "reviews: running the new code in attempt 3, " in result.stdout
    takes_code(transport, running(new, **ended))
    result = run("push", "reviews", str(folder))
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout.splitlines()[1:] == ["reviews: Failed (OOMKilled of rank 5, exit code 137)"]
    takes_code(transport, running(phase="Succeeded"))
    result = run("push", "reviews", str(folder))
    assert (result.exit_code, result.stdout.splitlines()[1:]) == (1, ["reviews: Succeeded; the new code never ran"])

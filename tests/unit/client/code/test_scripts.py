"""A job whose code certainly lacks its script is refused; a job that may find it elsewhere isn't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.client.fakes import FakeTransport, job
from trainmaster.client import InvalidRequest, JobClient
from trainmaster.client.code import archive_files, archive_folder, push_code, submit_with_code
from trainmaster.client.code.scripts import missing_script, require_script

JOB = "/apis/trainmaster.dev/v1alpha1/namespaces/default/distributedtrainingjobs/bars"
CODE = archive_files(dict.fromkeys(("src/train.py", "eval.py", "app/__main__.py"), b""))


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python train.py", "train.py"),
        ("python3 ./train.py --lr 1", "train.py"),
        ("/usr/bin/python3.12 -u lib/train.py", "lib/train.py"),
        ("python -uB -W ignore -Xdev src/other.py", "src/other.py"),
        ("python -X dev other.py", "other.py"),
        ("python train", "train"),
        ("torchrun train.py", "train.py"),
        ("torchrun --standalone --nproc_per_node=2 --nnodes 1 -r 3 src/other.py --lr 1", "src/other.py"),
    ],
)
def test_a_script_that_the_code_certainly_lacks(command: str, script: str) -> None:
    assert missing_script({"command": command.split()}, CODE) == script
    program, *arguments = command.split()
    assert missing_script({"command": [program], "args": arguments}, CODE) == script


@pytest.mark.parametrize(
    "command",
    [
        "python eval.py",
        "python ./src//train.py",
        "python app",
        "python src",
        "python .",
        "python /opt/train.py",
        "python ../train.py",
        "python $(SCRIPT)",
        "python -m train",
        "python -um train",
        "python -c pass",
        "python -",
        "python",
        "python -u",
        "python --check-hash-based-pycs always train.py",
        "sh train.sh",
        "bash -c train.py",
        "accelerate launch train.py",
        "my-python train.py",
        "torchrun src/train.py",
        "torchrun -m train",
        "torchrun --no-python train.sh",
        "torchrun --new-option train.py other.py",
        "torchrun --nnodes 1",
        "",
    ],
)
def test_a_command_whose_script_is_there_or_may_be(command: str) -> None:
    assert missing_script({"command": command.split()}, CODE) is None


@pytest.mark.parametrize(
    "spec",
    [
        {"setup": "git clone https://example.com/code ."},
        {"podTemplate": {"spec": {"initContainers": [{"volumeMounts": [{"name": "trainmaster-state"}]}]}}},
        {"command": None},
        {"command": "python train.py"},
        {"command": ["python", 7]},
    ],
    ids=str,
)
def test_what_else_may_bring_the_script_or_is_no_command(spec: dict[str, Any]) -> None:
    assert missing_script({"command": ["python", "train.py"], **spec}, CODE) is None


def test_a_script_behind_a_link_may_be_there(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").touch()
    (tmp_path / "link").symlink_to("src")
    code = archive_folder(tmp_path)
    assert missing_script({"command": ["python", "link/train.py"]}, code) is None
    assert missing_script({"command": ["python", "lnk/train.py"]}, code) == "lnk/train.py"


def test_a_bundled_loop_has_no_script() -> None:
    assert missing_script({"args": ["train.py"]}, CODE) is None


def refusal(folder: Path) -> str:
    with pytest.raises(InvalidRequest) as caught:
        require_script("bars", {"command": ["python", "train.py"]}, archive_folder(folder))
    return str(caught.value).replace(str(folder), "DIR")


def test_the_sentence_says_where_the_script_is(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").touch()
    lacks = "job bars runs train.py, and the code of DIR doesn't have it"
    assert refusal(tmp_path) == f"{lacks}; give the folder that has train.py"
    for name in ("deep/below", "circles"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "train.py").touch()
    assert refusal(tmp_path) == f"{lacks}; give the folder that has train.py, such as DIR/circles"
    (tmp_path / "train.py").touch()
    (tmp_path / ".gitignore").write_text("/train.py\n")
    assert refusal(tmp_path) == (
        f"{lacks}: .gitignore or .trainmasterignore leaves it out; bring it back by a line !train.py in "
        "DIR/.trainmasterignore"
    )
    (tmp_path / ".trainmasterignore").write_text("!train.py\n")
    require_script("bars", {"command": ["python", "train.py"]}, archive_folder(tmp_path))


def test_a_script_that_is_a_link_out_of_the_folder_is_in_no_ignore_file(tmp_path: Path) -> None:
    (tmp_path / "there.py").touch()
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "readme.txt").touch()
    (folder / "train.py").symlink_to("../there.py")
    assert "ignore" not in refusal(folder)


def test_nothing_is_written_for_a_push_without_the_script() -> None:
    running = job("bars", phase="Running")
    running["spec"] |= {"command": ["python", "train.py"], "code": {"digest": "0" * 64, "configMap": "bars-code"}}
    transport = FakeTransport({f"GET {JOB}": running})
    with pytest.raises(InvalidRequest, match=r"^job bars runs train\.py, and the code doesn't have it; "):
        push_code(JobClient("default", transport=transport), "bars", CODE)
    assert {method for method, *_ in transport.asked} == {"GET"}


def test_nothing_is_written_for_a_job_without_its_script() -> None:
    transport = FakeTransport()
    manifest = {"metadata": {"name": "bars"}, "spec": {"workers": 1, "command": ["python", "train.py"]}}
    with pytest.raises(InvalidRequest, match=r"^job bars runs train\.py"):
        submit_with_code(JobClient("default", transport=transport), manifest, CODE)
    assert transport.asked == []

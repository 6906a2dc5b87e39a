"""`trainloop checkpoints list`, `show` and `verify` print a directory's contents, and what is wrong with them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.damage import flip_a_byte, written
from trainloop.checkpoints import saving, storage
from trainloop.checkpoints.storage import write_manifest
from trainloop.versions import inspecting

NEWEST = "step-000000010.1"


def names(text: str) -> list[str]:
    """Returns the first column of a table, without its header."""
    return [line.split()[0] for line in text.splitlines()[1:]]


@pytest.mark.torch
def test_list_has_a_line_for_each_checkpoint_newest_first(saved: Path, checkpoints: Any) -> None:
    printed = checkpoints("list checkpoints")
    assert printed.code == 0 and printed.errors == ""
    header, newest, *_ = printed.splitlines()
    assert header.split() == ["NAME", "STEP", "AGE", "ATTEMPT", "RANKS", "RESULTS", "SIZE", "TAGS", "STATE"]
    assert names(printed) == [f"step-{step:09d}.1" for step in (10, 8, 6, 4, 2)]
    assert newest.split()[:2] == [NEWEST, "10"] and newest.split()[4] == "2" and newest.endswith("   complete")
    columns = [[line.index(cell) for line, cell in ((header, "STATE"), (newest, "complete"))]]
    assert len(set(columns[0])) == 1, "columns are aligned"


@pytest.mark.torch
def test_list_as_json_has_what_the_manifests_say(saved: Path, checkpoints: Any) -> None:
    listed = json.loads(checkpoints("list checkpoints -o json"))
    manifest = storage.read_manifest(saved / "checkpoints" / NEWEST)
    newest = listed[0]
    assert {name: newest[name] for name in ("parent", "attempt", "world_size", "results", "code", "configuration")} == (
        manifest["about"]
    )
    assert newest["files"] == manifest["files"] and newest["created"] == manifest["created"]
    assert [one["parent"] for one in listed] == [*(one["name"] for one in listed[1:]), None]
    assert [one["world_size"] for one in listed] == [2, 2, 1, 1, 1]


def test_list_says_of_each_checkpoint_that_cannot_be_used_why(tmp_path: Path, checkpoints: Any) -> None:
    for step in range(1, 8):
        written(tmp_path, step, step)
    place = [tmp_path / f"step-{step:09d}.1" for step in range(8)]
    (place[1] / "manifest.json").unlink()
    flip_a_byte(place[2] / "manifest.json")
    manifest = json.loads((place[3] / "manifest.json").read_text())
    (place[3] / "manifest.json").write_text(json.dumps({**manifest, "format": 3}))
    (place[4] / "state.pt").write_bytes(b"short")
    (place[5] / "state.pt").unlink()
    shutil.rmtree(place[6])
    place[6].touch()
    (tmp_path / "step-12").mkdir()
    (tmp_path / "notes.txt").touch()
    printed = checkpoints(f"list {tmp_path}")
    states = {line.split()[1]: line.rpartition("   ")[2] for line in printed.splitlines()[1:]}
    assert states == {
        "7": "complete",
        "6": "no manifest",
        "5": "no state.pt",
        "4": "state.pt cut short",
        "3": "format 3",
        "2": "damaged manifest",
        "1": "no manifest",
    }
    assert printed.code == 0
    for step in range(1, 7):
        shown = checkpoints(f"show {tmp_path} {step}")
        assert shown.code == 1 and shown.errors.startswith(f"trainloop: step-{step:09d}.1 can't be used: ")
        tagged = checkpoints(f"tag {tmp_path} {step} mine")
        assert tagged.code == 1 and "can't be used" in tagged.errors


@pytest.mark.parametrize(
    ("directory", "sentence"),
    [
        ("nowhere", "nowhere isn't there"),
        ("empty", "empty has no checkpoints"),
        ("file", "file is no directory"),
        ("above", "above has no checkpoints; above/checkpoints has some"),
        ("above/checkpoints/step-000000001.1", "is a checkpoint itself: name the directory that it is in"),
    ],
)
@pytest.mark.parametrize("command", ["list", "show {} latest", "verify", "prune --keep 1", "diff {} 1 2", "tag {} 1 x"])
def test_a_directory_without_checkpoints_is_one_sentence(
    command: str, directory: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoints: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("file").touch()
    written(Path("above/checkpoints"), 1)
    printed = checkpoints(command.format(directory) if "{}" in command else f"{command} {directory}")
    assert (printed.code, printed) == (1, "")
    assert printed.errors.endswith(f"{sentence}\n") and printed.errors.count("\n") == 1


@pytest.mark.torch
def test_show_has_everything_of_either_format(saved: Path, checkpoints: Any) -> None:
    lines = checkpoints("show checkpoints latest").splitlines()
    shown = {line.split("  ")[0]: line.split("  ", 1)[1].strip() for line in lines if "  " in line}
    about = storage.read_manifest(saved / "checkpoints" / NEWEST)["about"]
    assert shown["parent"] == "step-000000008.1" and shown["ranks"] == "2"
    assert shown["lineage"] == (
        "step-000000010.1 <- step-000000008.1 <- step-000000006.1 (attempt 1) <- step-000000004.1 (attempt 1) <- "
        "step-000000002.1 (attempt 1)"
    )
    assert (shown["code"], shown["configuration"]) == (about["code"], about["configuration"])
    assert shown["format"] == "full" and shown["weights"] == "4 tensors: 83 float64"
    assert shown["position"] == "step 10 of 10, 10 updates, 80 samples"
    assert shown["settings"] == "optimizer.name adamw, schedule.kind cosine, batch.size 8"
    assert shown["state.pt"].endswith(
        storage.read_manifest(saved / "checkpoints" / NEWEST)["files"]["state.pt"]["sha256"]
    )
    sharded = checkpoints("show sharded latest")
    assert "format          sharded\nweights         4 tensors: 83 float64\n" in sharded
    shutil.rmtree(saved / "checkpoints/step-000000006.1")
    again = checkpoints("show checkpoints latest")
    assert "step-000000010.1 <- step-000000008.1 <- step-000000006.1 (deleted)\n" in again


def test_a_lineage_that_is_a_circle_ends(tmp_path: Path, checkpoints: Any) -> None:
    for step, parent in ((1, "step-000000002.1"), (2, "step-000000001.1")):
        place = saving.write(tmp_path, step, {"model": {}}, {}).path
        (place / "manifest.json").unlink()
        write_manifest(place, step, {"parent": parent, "attempt": step}, created=1.0)
    assert "step-000000002.1 <- step-000000001.1 (attempt 1)\n" in checkpoints(f"show {tmp_path} 2")


def test_a_lineage_goes_on_in_the_directory_that_a_run_started_from(tmp_path: Path, checkpoints: Any) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    saving.write(first, 1, {"model": {}}, {"parent": None, "attempt": 1})
    saving.write(first, 2, {"model": {}}, {"parent": "step-000000001.1", "attempt": 1})
    about = {"parent": f"{first}/step-000000002.1", "start_from": f"{first}/good", "attempt": 1}
    saving.write(second, 3, {"model": {}}, about)
    shown = checkpoints(f"show {second} 3")
    assert f"step-000000003.1 <- {first}/step-000000002.1 <- step-000000001.1\n" in shown
    assert f"started from    {first}/good\n" in shown
    shutil.rmtree(first)
    assert f"step-000000003.1 <- {first}/step-000000002.1 (not there)\n" in checkpoints(f"show {second} 3")


def test_another_line_s_checkpoint_is_no_parent_though_it_got_the_name(tmp_path: Path, checkpoints: Any) -> None:
    """Step 2 of the first line was deleted, and since then a second line has saved its own step 2."""
    saving.write(tmp_path, 2, {"model": {}}, {"parent": None})
    saving.write(tmp_path, 4, {"model": {}}, {"parent": "step-000000002.1"})
    assert "step-000000004.1 <- step-000000002.1\n" in checkpoints(f"show {tmp_path} 4")
    shutil.rmtree(tmp_path / "step-000000002.1")
    saving.write(tmp_path, 2, {"model": {}}, {"parent": None})
    assert (tmp_path / "step-000000002.1").is_dir()
    assert "step-000000004.1 <- step-000000002.1 (deleted)\n" in checkpoints(f"show {tmp_path} 4")


def test_what_a_name_or_a_result_says_does_not_reach_the_terminal(tmp_path: Path, checkpoints: Any) -> None:
    saving.write(tmp_path, 1, {"model": {}}, {"results": {"\x1b[2Jaccuracy": 0.5}, "parent": "a\nb"})
    for command in (f"list {tmp_path}", f"show {tmp_path} 1"):
        printed = checkpoints(command)
        assert "\x1b" not in printed and "\\x1b[2Jaccuracy=0.5" in printed


def test_a_manifest_with_other_types_is_shown_without_them(tmp_path: Path, checkpoints: Any) -> None:
    """The hashes are right: anyone with write access to the volume can make such a manifest."""
    place = written(tmp_path, 1).path
    for about in (
        None,
        [],
        {"results": {"a": "b", "c": None, "d": True}, "parent": 3, "attempt": "x", "world_size": []},
    ):
        (place / "manifest.json").unlink()
        write_manifest(place, 1, about)  # type: ignore[arg-type]
        assert checkpoints(f"list {tmp_path}").splitlines()[1].split()[3:6] == ["-", "-", "-"]
    (place / "manifest.json").unlink()
    write_manifest(place, 2, {})
    assert checkpoints(f"list {tmp_path}").splitlines()[1].endswith("of step 2"), "its name says another step"


def test_verify_reads_every_byte_and_has_a_line_for_each(tmp_path: Path, checkpoints: Any) -> None:
    for step in (1, 2, 3):
        written(tmp_path, step)
    assert [line.split()[:2] for line in checkpoints(f"verify {tmp_path}").splitlines()] == [
        [f"step-{step:09d}.1", "ok"] for step in (3, 2, 1)
    ]
    flip_a_byte(tmp_path / "step-000000002.1" / "state.pt")
    printed = checkpoints(f"verify {tmp_path}")
    assert printed.code == 1
    assert "step-000000002.1   damaged   " in printed and "doesn't have the SHA-256 in its manifest" in printed
    assert checkpoints(f"verify {tmp_path} 1 latest").code == 0
    assert json.loads(checkpoints(f"verify {tmp_path} 2 -o json"))["step-000000002.1"]["state"] == "damaged"


def test_what_a_run_deletes_meanwhile_is_gone_and_not_damaged(
    tmp_path: Path, checkpoints: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        written(tmp_path, step)

    def deleted_first(folder: Path) -> str | None:
        shutil.rmtree(tmp_path / "step-000000001.1", ignore_errors=True)
        return storage.verify(folder)

    monkeypatch.setattr(inspecting, "verify", deleted_first)
    printed = checkpoints(f"verify {tmp_path}")
    assert printed.code == 0
    assert printed.splitlines()[1] == "step-000000001.1   gone   it was deleted just now"

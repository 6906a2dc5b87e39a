"""`trainloop checkpoints` (`versions`) lists, finds, tags, verifies and deletes checkpoints, and says what is wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.damage import flip_a_byte, written
from tests.trainer.ranks import ROOT
from trainloop.checkpoints import retention, storage, tagging, verification
from trainloop.checkpoints.verification import write_manifest

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
    manifest = verification.read_manifest(saved / "checkpoints" / NEWEST)
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
def test_a_checkpoint_has_many_names_and_all_commands_know_them(saved: Path, checkpoints: Any) -> None:
    assert checkpoints("tag checkpoints 4 good").code == 0

    def found(text: str) -> str:
        return checkpoints(f"show checkpoints {text}").splitlines()[0].split()[1]

    assert found(NEWEST) == found("latest") == found("10") == found("10.1") == found("step-00000001") == NEWEST
    written(
        saved / "checkpoints", 4, 0.0
    )  # a second version of the step, as after a roll-back, which is the latest then
    assert found("good") == found("4.1") == "step-000000004.1"
    assert found("4") == found("latest") == "step-000000004.2"
    # The run's checkpoint.best is accuracy; of equal ones the oldest is the best, as retention has it.
    accuracy = {one["name"]: one["results"]["accuracy"] for one in json.loads(checkpoints("list checkpoints -o json"))}
    best = max(reversed(accuracy), key=lambda name: accuracy[name])
    assert found("best") == found("best:accuracy") == found("best:accuracy:max") == best
    worst = min(reversed(accuracy), key=lambda name: accuracy[name])
    assert found("best:accuracy:min") == worst != best


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("7", "checkpoints has no checkpoint of step 7: the nearest are 6 and 8"),
        ("99", "checkpoints has no checkpoint of step 99: the nearest is 10"),
        ("4.2", "checkpoints has of step 4 only step-000000004.1"),
        ("god", "checkpoints has no checkpoint 'god': did you mean 'good'?"),
        ("lastest", "checkpoints has no checkpoint 'lastest': did you mean 'latest' or 'best'?"),
        ("?", "checkpoints has no checkpoint '?': the newest is step-000000010.1"),
        (
            "step-0000000",
            "'step-0000000' is the beginning of step-000000010.1, step-000000008.1, step-000000006.1, "
            "step-000000004.1 and 1 more: say which",
        ),
        ("best:acuracy", "checkpoints has no complete checkpoint with a result 'acuracy': did you mean 'accuracy'?"),
        ("best:x", "checkpoints has no complete checkpoint with a result 'x': there are accuracy, loss"),
        ("best:accuracy:most", "best:accuracy:most ends with neither :max nor :min"),
        ("../etc", "checkpoints has no checkpoint '../etc': the newest is step-000000010.1"),
    ],
)
def test_a_name_that_is_none_is_a_sentence_with_the_nearest(
    name: str, sentence: str, saved: Path, checkpoints: Any
) -> None:
    checkpoints("tag checkpoints 4 good")
    for command in ("show", "verify"):
        printed = checkpoints(f"{command} checkpoints {name}")
        assert (printed.code, printed, printed.errors) == (1, "", f"trainloop: {sentence}\n")


@pytest.mark.torch
def test_show_has_everything_of_either_format(saved: Path, checkpoints: Any) -> None:
    lines = checkpoints("show checkpoints latest").splitlines()
    shown = {line.split("  ")[0]: line.split("  ", 1)[1].strip() for line in lines if "  " in line}
    about = verification.read_manifest(saved / "checkpoints" / NEWEST)["about"]
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
        verification.read_manifest(saved / "checkpoints" / NEWEST)["files"]["state.pt"]["sha256"]
    )
    sharded = checkpoints("show sharded latest")
    assert "format          sharded\nweights         4 tensors: 83 float64\n" in sharded
    shutil.rmtree(saved / "checkpoints/step-000000006.1")
    again = checkpoints("show checkpoints latest")
    assert "step-000000010.1 <- step-000000008.1 <- step-000000006.1 (deleted)\n" in again


def test_a_lineage_that_is_a_circle_ends(tmp_path: Path, checkpoints: Any) -> None:
    for step, parent in ((1, "step-000000002.1"), (2, "step-000000001.1")):
        place = storage.write(tmp_path, step, {"model": {}}, {}).path
        (place / "manifest.json").unlink()
        write_manifest(place, step, {"parent": parent, "attempt": step}, created=1.0)
    assert "step-000000002.1 <- step-000000001.1 (attempt 1)\n" in checkpoints(f"show {tmp_path} 2")


def test_a_lineage_goes_on_in_the_directory_that_a_run_started_from(tmp_path: Path, checkpoints: Any) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    storage.write(first, 1, {"model": {}}, {"parent": None, "attempt": 1})
    storage.write(first, 2, {"model": {}}, {"parent": "step-000000001.1", "attempt": 1})
    about = {"parent": f"{first}/step-000000002.1", "start_from": f"{first}/good", "attempt": 1}
    storage.write(second, 3, {"model": {}}, about)
    shown = checkpoints(f"show {second} 3")
    assert f"step-000000003.1 <- {first}/step-000000002.1 <- step-000000001.1\n" in shown
    assert f"started from    {first}/good\n" in shown
    shutil.rmtree(first)
    assert f"step-000000003.1 <- {first}/step-000000002.1 (not there)\n" in checkpoints(f"show {second} 3")


def test_another_line_s_checkpoint_is_no_parent_though_it_got_the_name(tmp_path: Path, checkpoints: Any) -> None:
    """Step 2 of the first line was deleted, and a second line has saved its own step 2 since."""
    storage.write(tmp_path, 2, {"model": {}}, {"parent": None})
    storage.write(tmp_path, 4, {"model": {}}, {"parent": "step-000000002.1"})
    assert "step-000000004.1 <- step-000000002.1\n" in checkpoints(f"show {tmp_path} 4")
    shutil.rmtree(tmp_path / "step-000000002.1")
    storage.write(tmp_path, 2, {"model": {}}, {"parent": None})
    assert (tmp_path / "step-000000002.1").is_dir()
    assert "step-000000004.1 <- step-000000002.1 (deleted)\n" in checkpoints(f"show {tmp_path} 4")


def test_the_name_of_a_tagged_checkpoint_is_never_given_to_another(tmp_path: Path, checkpoints: Any) -> None:
    written(tmp_path, 1)
    checkpoints(f"tag {tmp_path} 1 good")
    shutil.rmtree(tmp_path / "step-000000001.1")
    assert written(tmp_path, 1).name == "step-000000001.2"
    assert checkpoints(f"list {tmp_path}").errors == "trainloop: tag good is of step-000000001.1, which isn't there\n"
    gone = checkpoints(f"show {tmp_path} good")
    assert (gone.code, gone.errors) == (1, "trainloop: good is a tag of step-000000001.1, which isn't there\n")


def test_what_a_name_or_a_result_says_does_not_reach_the_terminal(tmp_path: Path, checkpoints: Any) -> None:
    storage.write(tmp_path, 1, {"model": {}}, {"results": {"\x1b[2Jaccuracy": 0.5}, "parent": "a\nb"})
    for command in (f"list {tmp_path}", f"show {tmp_path} 1"):
        printed = checkpoints(command)
        assert "\x1b" not in printed and "\\x1b[2Jaccuracy=0.5" in printed


def test_a_manifest_with_other_types_is_shown_without_them(tmp_path: Path, checkpoints: Any) -> None:
    """The hashes are right: whoever can write to the volume can make such a one."""
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


def test_tags_are_made_moved_and_deleted_as_in_git(tmp_path: Path, checkpoints: Any) -> None:
    for step in (1, 2):
        written(tmp_path, step)
    assert (
        checkpoints(f"tag {tmp_path} 1 good") == "step-000000001.1 is tagged good: it stays until the tag is deleted\n"
    )
    assert (tmp_path / "tags" / "good").read_text().strip() == "step-000000001.1"
    again = checkpoints(f"tag {tmp_path} 2 good")
    assert (again.code, again.errors) == (1, "trainloop: good is a tag of step-000000001.1 already: --force moves it\n")
    assert checkpoints(f"tag {tmp_path} 1 good").code == 0, "it has it already"
    assert checkpoints(f"tag {tmp_path} 2 good --force").code == 0
    assert checkpoints(f"tag {tmp_path}") == "TAG    CHECKPOINT\ngood   step-000000002.1\n"
    assert [line.split()[-2] for line in checkpoints(f"list {tmp_path}").splitlines()] == ["TAGS", "good", "-"]
    assert checkpoints(f"tag --delete {tmp_path} good") == "deleted tag good (was of step-000000002.1)\n"
    gone = checkpoints(f"tag -d {tmp_path} good")
    assert (gone.code, gone.errors) == (1, f"trainloop: {tmp_path} has no tag 'good': it has none\n")


@pytest.mark.parametrize("name", ["latest", "best", "1300", "1300.2", "step-000000001.1", "../../x", ".x", "a/b", "ü"])
def test_what_means_something_else_cannot_be_a_tag(name: str, tmp_path: Path, checkpoints: Any) -> None:
    written(tmp_path, 1)
    printed = checkpoints(f"tag {tmp_path} 1 {name}")
    assert printed.code == 1 and f"{name!r} can't be a tag" in printed.errors
    assert checkpoints(f"tag {tmp_path}") == "TAG   CHECKPOINT\n"


def test_a_tag_of_a_checkpoint_that_is_gone_is_said(tmp_path: Path, checkpoints: Any) -> None:
    for step in (1, 2):
        written(tmp_path, step)
    checkpoints(f"tag {tmp_path} 1 good")
    shutil.rmtree(tmp_path / "step-000000001.1")
    assert checkpoints(f"list {tmp_path}").errors == "trainloop: tag good is of step-000000001.1, which isn't there\n"
    assert checkpoints(f"tag {tmp_path} 2 good").code == 1, "moving it needs --force all the same"
    assert checkpoints(f"tag --delete {tmp_path} good").code == 0


def test_a_checkpoint_that_is_deleted_while_it_gets_a_tag_has_none(
    tmp_path: Path, checkpoints: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        written(tmp_path, step)
    real = tagging.set_tag

    def late(checkpoint: storage.Checkpoint, tag: str) -> None:
        storage.remove(checkpoint)
        real(checkpoint, tag)

    monkeypatch.setattr(tagging, "set_tag", late)
    printed = checkpoints(f"tag {tmp_path} 1 good")
    assert (printed.code, printed.errors) == (1, "trainloop: step-000000001.1 was deleted meanwhile: it has no tag\n")
    assert storage.tags(tmp_path) == {}


def test_verify_reads_every_byte_and_has_a_line_for_each(tmp_path: Path, checkpoints: Any) -> None:
    for step in (1, 2, 3):
        written(tmp_path, step)
    assert [line.split()[:2] for line in checkpoints(f"verify {tmp_path}").splitlines()] == [
        [f"step-{step:09d}.1", "ok"] for step in (3, 2, 1)
    ]
    flip_a_byte(tmp_path / "step-000000002.1" / "state.pt")
    printed = checkpoints(f"verify {tmp_path}")
    assert printed.code == 1
    assert "step-000000002.1   damaged   " in printed and "doesn't have the SHA-256 that its manifest says" in printed
    assert checkpoints(f"verify {tmp_path} 1 latest").code == 0
    assert json.loads(checkpoints(f"verify {tmp_path} 2 -o json"))["step-000000002.1"]["state"] == "damaged"


def test_what_a_run_deletes_meanwhile_is_gone_and_not_damaged(
    tmp_path: Path, checkpoints: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        written(tmp_path, step)
    from trainloop.versions import inspecting

    def deleted_first(folder: Path) -> str | None:
        shutil.rmtree(tmp_path / "step-000000001.1", ignore_errors=True)
        return verification.verify(folder)

    monkeypatch.setattr(inspecting, "verify", deleted_first)
    printed = checkpoints(f"verify {tmp_path}")
    assert printed.code == 0
    assert printed.splitlines()[1] == "step-000000001.1   gone   it was deleted meanwhile"


def test_prune_says_what_goes_and_why_the_others_stay(tmp_path: Path, checkpoints: Any) -> None:
    for step, accuracy in enumerate([0.9, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 1):
        written(tmp_path, step, accuracy)
    checkpoints(f"tag {tmp_path} 2 good")
    flip_a_byte(tmp_path / "step-000000007.1" / "state.pt")
    rows = [
        ["step-000000007.1", "keep", "damaged, but not older than all that are kept"],
        ["step-000000006.1", "keep", "newest that verifies"],
        ["step-000000005.1", "keep", "among the newest"],
        ["step-000000004.1", "delete", "older"],
        ["step-000000003.1", "delete", "older"],
        ["step-000000002.1", "keep", "tagged good"],
        ["step-000000001.1", "keep", "best result"],
    ]
    line = f"prune {tmp_path} --keep 2 --best accuracy"
    dry = checkpoints(f"{line} --dry-run")
    assert [row.split("   ")[0:1] + [cell.strip() for cell in row.split("   ", 1)[1].split("   ") if cell.strip()][:2]
            for row in dry.splitlines()[1:-1]] == rows  # fmt: skip
    assert dry.splitlines()[-1].startswith("would delete 2 of 7 checkpoints, ")
    assert len(list(tmp_path.glob("step-*"))) == 7
    done = checkpoints(line)
    assert done.splitlines()[:-1] == dry.splitlines()[:-1]
    assert done.splitlines()[-1].startswith("deleted 2 of 7 checkpoints, ")
    assert sorted(path.name for path in tmp_path.glob("step-*")) == sorted(row[0] for row in rows if row[1] == "keep")
    assert checkpoints(f"{line} -o json").code == 0


def test_a_result_that_is_no_number_is_never_the_best(tmp_path: Path, checkpoints: Any) -> None:
    """A loss that was nan for once must not keep its checkpoint in place of the best one."""
    for step, value in enumerate([float("nan"), 0.3, 0.2, 0.9], 1):
        written(tmp_path, step, value)
    assert checkpoints(f"show {tmp_path} best:accuracy").startswith("name            step-000000004.1\n")
    assert checkpoints(f"show {tmp_path} best:accuracy:min").startswith("name            step-000000003.1\n")
    found = storage.survey(tmp_path)
    best = retention.best(found.whole, "accuracy", "min")
    retention.prune(storage.Checkpoint(4, 1, tmp_path), found, 1, best)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-000000003.1", "step-000000004.1"]
    assert retention.best(found.whole, "loss", "min") is None and retention.best(found.whole, None, "max") is None


@pytest.mark.torch
def test_prune_keeps_what_the_run_calls_best(saved: Path, checkpoints: Any) -> None:
    best = checkpoints("show checkpoints best").splitlines()[0].split()[1]
    assert best != NEWEST
    checkpoints("prune checkpoints --keep 1")
    assert sorted(path.name for path in (saved / "checkpoints").glob("step-*")) == sorted([best, NEWEST])


def test_prune_never_deletes_the_only_one_that_can_be_read(tmp_path: Path, checkpoints: Any) -> None:
    for step in (1, 2, 3):
        written(tmp_path, step)
    for step in (2, 3):
        flip_a_byte(tmp_path / f"step-{step:09d}.1" / "state.pt")
    assert checkpoints(f"prune {tmp_path} --keep 1").splitlines()[-1].startswith("deleted 0 of 3")
    flip_a_byte(tmp_path / "step-000000001.1" / "state.pt")
    printed = checkpoints(f"prune {tmp_path} --keep 1")
    assert printed.code == 1
    assert printed.errors == f"trainloop: {tmp_path} has no checkpoint that verifies: nothing is deleted\n"


@pytest.mark.parametrize(
    "line",
    ["", "lst x", "list", "show x", "prune x", "prune x --keep 0", "list x -o yaml", "tag -d x", "tag x 1", "diff x 1"],
)
def test_what_is_asked_wrongly_has_code_2_and_the_usage(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoints: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    written(Path("x"), 1)
    printed = checkpoints(line)
    assert printed.code == 2 and printed.errors


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("list x more", "trainloop checkpoints list: error: unrecognized arguments: more"),
        ("show x 1 --outptu json", "trainloop checkpoints show: error: unrecognized arguments: --outptu json"),
        ("prune x --keep many", "argument --keep: 'many' is no whole number of at least 1"),
        ("diff x 1 2 --top 0", "argument --top: '0' is no whole number of at least 1"),
    ],
)
def test_what_is_asked_wrongly_is_answered_by_the_command_that_was_asked(
    line: str, error: str, checkpoints: Any
) -> None:
    printed = checkpoints(line)
    assert printed.code == 2 and error in printed.errors
    assert printed.errors.startswith(f"usage: trainloop checkpoints {line.split()[0]} ")


@pytest.mark.parametrize("command", ["list", "show", "diff", "tag", "verify", "export", "prune"])
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_every_command_has_help_with_an_example_that_fits_a_terminal(
    command: str, option: str, checkpoints: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    printed = checkpoints(f"{command} {option}")
    assert printed.code == 0 and f"$ trainloop checkpoints {command} " in printed
    assert [line for line in printed.splitlines() if len(line) > 80] == []


@pytest.mark.torch
def test_list_help_and_mistakes_do_not_wait_for_torch(tmp_path: Path) -> None:
    written(tmp_path, 1)
    for arguments in (["list", str(tmp_path)], ["verify", str(tmp_path)], ["-h"], ["list", "-h"], ["list", "/nowhere"]):
        text = (
            "import sys; from trainloop.__main__ import main\n"
            f"try: main({['checkpoints', *arguments]!r})\n"
            "except SystemExit: pass\n"
            "assert not {'torch', 'numpy', 'pydantic', 'trainloop.trainer'} & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, timeout=60)


def test_a_reader_that_goes_is_no_error(tmp_path: Path) -> None:
    written(tmp_path, 1)
    process = subprocess.Popen(
        [sys.executable, "-m", "trainloop", "checkpoints", "list", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.wait(60) == 141 and process.stderr.read() == b""


def test_the_shell_completes_commands_and_checkpoints(tmp_path: Path) -> None:
    written(tmp_path, 1)
    tagging.set_tag(storage.Checkpoint(1, 1, tmp_path), "good")

    def completed(line: str) -> set[str]:
        answer = tmp_path / "answer"
        subprocess.run(
            [sys.executable, "-m", "trainloop"],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "_ARGCOMPLETE": "1",
                "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
                "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
                "COMP_LINE": line,
                "COMP_POINT": str(len(line)),
                "_ARGCOMPLETE_IFS": "\n",
            },
            check=True,
            timeout=60,
        )
        return set(answer.read_text().split())

    assert completed("trainloop checkpoints l") == {"list"}
    assert completed(f"trainloop checkpoints show {tmp_path} ") >= {"latest", "step-000000001.1", "good"}
    assert completed("trainloop --conf") == {"--config"}


def test_ages_and_sizes_read_as_kubectl_has_them() -> None:
    from trainloop.versions import output

    now = time.time()
    ages = {0: "0s", 59: "59s", 60: "1m", 192: "3m12s", 7200: "2h", 200_000: "2d7h", 86400 * 30 + 5: "30d", -50: "0s"}
    assert {seconds: output.age(now - seconds) for seconds in ages} == ages
    assert [output.size(count) for count in (0, 1023, 1024, 3 << 29, 5 << 40)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 GiB", "5.0 TiB"
    ]  # fmt: skip
    assert json.loads(output.document({"a": float("nan"), "b": [float("inf"), 1.5]})) == {"a": "nan", "b": ["inf", 1.5]}

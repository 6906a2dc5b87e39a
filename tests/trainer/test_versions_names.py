"""A checkpoint is found by the name that a user gives: a name, a step, a tag, the best one; tags are made and
deleted.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.damage import written
from trainloop.checkpoints import retention, storage

NEWEST = "step-000000010.1"


@pytest.mark.torch
def test_a_checkpoint_has_many_names_and_all_commands_know_them(saved: Path, checkpoints: Any) -> None:
    assert checkpoints("tag checkpoints 4 good").code == 0

    def found(text: str) -> str:
        return checkpoints(f"show checkpoints {text}").splitlines()[0].split()[1]

    assert found(NEWEST) == found("latest") == found("10") == found("10.1") == found("step-00000001") == NEWEST
    written(
        saved / "checkpoints", 4, 0.0
    )  # a second version of the step, as after a roll-back, which is then the latest
    assert found("good") == found("4.1") == "step-000000004.1"
    assert found("4") == found("latest") == "step-000000004.2"
    # The run's checkpoint.best is accuracy; among equal ones the oldest is the best, as for retention.
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
            "step-000000004.1 and 1 more: name one of them",
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


def test_a_result_that_is_no_number_is_never_the_best(tmp_path: Path, checkpoints: Any) -> None:
    """A loss that was NaN once must not keep its checkpoint in place of the best one."""
    for step, value in enumerate([float("nan"), 0.3, 0.2, 0.9], 1):
        written(tmp_path, step, value)
    assert checkpoints(f"show {tmp_path} best:accuracy").startswith("name            step-000000004.1\n")
    assert checkpoints(f"show {tmp_path} best:accuracy:min").startswith("name            step-000000003.1\n")
    found = storage.survey(tmp_path)
    best = retention.best(found.whole, "accuracy", "min")
    retention.prune(storage.Checkpoint(4, 1, tmp_path), found, 1, best)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-000000003.1", "step-000000004.1"]
    assert retention.best(found.whole, "loss", "min") is None and retention.best(found.whole, None, "max") is None


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


def test_the_name_of_a_tagged_checkpoint_is_never_given_to_another(tmp_path: Path, checkpoints: Any) -> None:
    written(tmp_path, 1)
    checkpoints(f"tag {tmp_path} 1 good")
    shutil.rmtree(tmp_path / "step-000000001.1")
    assert written(tmp_path, 1).name == "step-000000001.2"
    assert checkpoints(f"list {tmp_path}").errors == "trainloop: tag good is of step-000000001.1, which isn't there\n"
    gone = checkpoints(f"show {tmp_path} good")
    assert (gone.code, gone.errors) == (1, "trainloop: good is a tag of step-000000001.1, which isn't there\n")


def test_a_checkpoint_that_is_deleted_while_it_gets_a_tag_has_none(
    tmp_path: Path, checkpoints: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        written(tmp_path, step)
    real = storage.set_tag

    def late(checkpoint: storage.Checkpoint, tag: str) -> None:
        storage.remove(checkpoint)
        real(checkpoint, tag)

    monkeypatch.setattr(storage, "set_tag", late)
    printed = checkpoints(f"tag {tmp_path} 1 good")
    assert (printed.code, printed.errors) == (1, "trainloop: step-000000001.1 was deleted just now: it has no tag\n")
    assert storage.tags(tmp_path) == {}

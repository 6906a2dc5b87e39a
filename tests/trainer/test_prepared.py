"""Data is prepared once per pod (`prepared`), whatever the pod's ranks and attempts do meanwhile."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.ranks import exit_codes, start_command
from trainloop.prepared import prepared
from trainloop.recovery import room
from trainloop.tasks import TaskSettings, build_task

VALUE = {"tokens": torch.arange(1000, dtype=torch.int32), "names": ["a", "ü"], "split": (1, 2.5)}


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINMASTER_MEMORY_DIR", str(tmp_path))
    return tmp_path / f"user-{os.getuid()}"


def counted(calls: list[int]) -> Callable[[], Any]:
    def prepare() -> Any:
        calls.append(1)
        return VALUE

    return prepare


def same(found: Any) -> bool:
    return bool(torch.equal(found["tokens"], VALUE["tokens"])) and {**found, "tokens": 0} == {**VALUE, "tokens": 0}


def test_it_is_prepared_once_and_then_mapped(memory: Path) -> None:
    calls: list[int] = []
    for _ in range(3):
        assert same(prepared(["x", 1], counted(calls)))
    assert len(calls) == 1
    assert same(prepared(["x", 2], counted(calls)))
    assert len(calls) == 2, "it depends on something else"
    assert {path.stat().st_mode & 0o777 for path in memory.iterdir()} == {0o600}


def test_a_file_that_has_changed_is_prepared_anew(memory: Path, tmp_path: Path) -> None:
    calls: list[int] = []
    source = tmp_path / "texts"
    source.write_text("one")
    prepared([source], counted(calls))
    source.write_text("another")
    prepared([source], counted(calls))
    assert len(calls) == 2


def test_what_one_rank_changes_is_its_own(memory: Path) -> None:
    prepared(["x"], lambda: VALUE)
    prepared(["x"], lambda: VALUE)["tokens"][0] = 7
    assert same(prepared(["x"], lambda: None))


@pytest.mark.parametrize("damage", [b"", b"\0" * 10, b"\0" * 100_000])
def test_what_is_damaged_is_prepared_anew(memory: Path, damage: bytes) -> None:
    calls: list[int] = []
    prepared(["x"], counted(calls))
    [file] = memory.glob("*.prepared")
    file.write_bytes(damage)
    assert same(prepared(["x"], counted(calls)))
    assert same(prepared(["x"], counted(calls)))
    assert len(calls) == 2


def test_without_room_each_rank_prepares_its_own(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(room, "lacking", lambda directory, needed: f"{needed} bytes are needed")
    for _ in range(2):
        assert same(prepared(["x"], counted(calls)))
    assert len(calls) == 2
    assert list(memory.glob("*.prepared")) == []


def test_outside_a_pod_and_in_a_directory_of_somebody_else_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRAINMASTER_MEMORY_DIR", raising=False)
    assert same(prepared(["x"], lambda: VALUE))
    monkeypatch.setenv("TRAINMASTER_MEMORY_DIR", str(tmp_path))
    (tmp_path / f"user-{os.getuid()}").mkdir(mode=0o755)
    assert same(prepared(["x"], lambda: VALUE))
    assert list(tmp_path.glob("*/*")) == []


def _prepare_slowly(folder: Path, dies: bool) -> None:
    def prepare() -> Any:
        with (folder / "prepared-by").open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(0.5)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return VALUE

    assert same(prepared(["slow"], prepare))


def test_ranks_that_start_together_wait_for_the_first_and_for_the_next_where_it_is_killed(memory: Path) -> None:
    def start(dies: bool) -> BaseProcess:
        out = memory.parent / f"out-{dies}"
        return start_command(out, _prepare_slowly, memory.parent, dies, TRAINMASTER_MEMORY_DIR=str(memory.parent))

    first = start(True)
    by = memory.parent / "prepared-by"
    while not by.exists():
        time.sleep(0.01)
    others = [start(False) for _ in range(2)]
    assert exit_codes([first, *others], 60) == [-signal.SIGKILL, 0, 0]
    assert len(by.read_text().split()) == 2


def test_the_reviews_are_the_same_prepared_or_mapped(memory: Path) -> None:
    settings = TaskSettings.model_validate({"name": "reviews", "options": {"characters": 20, "vocabulary": 500}})
    first, second = build_task(settings), build_task(settings)
    assert (len(first.train), len(first.evaluation)) == (len(second.train), len(second.evaluation)) == (15_582, 1_781)
    for index in (0, 1, 777, -1):
        ours, mapped = first.train[index], second.train[index]
        assert torch.equal(ours.characters, mapped.characters) and ours.label == mapped.label
    assert [review.label for review in second.train[:3]] == [second.train[index].label for index in range(3)]

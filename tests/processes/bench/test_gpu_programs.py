"""The programs of `bench.gpu` run without a GPU: `gpu_state` measures, writes and loads, `gpu_ranks` writes steps."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bench.clusters.steps import Steps
from bench.gpu import Bench, _costs, _json, _seconds_written

pytestmark = pytest.mark.torch
SIZES = '{"layers": 1, "width": 64, "batch": 8, "buffers": "statistics", "seconds": 0.5}'


def test_a_state_is_measured_written_and_loaded(tmp_path: Path) -> None:
    bench = Bench("no GPU", False, "", time.monotonic() + 60)
    told = {"TRAINMASTER_MEMORY_DIR": str(tmp_path), "TRAINMASTER_JOB_UID": "bench"}
    text = bench.program("-m", "bench.programs.gpu_state", "measure", SIZES, **told, TRAINMASTER_ATTEMPT="1")
    found = _json(text)
    assert len(found["ours"]) == len(found["byHand"]) >= 1 and found["first"] > 0
    assert _costs("tiny", found, True)[0].values == pytest.approx([each * 1e3 for each in found["byHand"]])
    assert len(_seconds_written(text)) == 1
    loaded = _json(bench.program("-m", "bench.programs.gpu_state", "load", SIZES, **told, TRAINMASTER_ATTEMPT="2"))
    assert loaded["checksum"] == found["checksum"] and loaded["step"] > 20


class Queued:
    """Fakes an event that isn't reached before the test allows it."""

    made: list[Queued]

    def __init__(self, **_: Any) -> None:
        self.there = threading.Event()
        self.made.append(self)

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        assert self.there.wait(10)


def written(steps: Steps, step: int) -> list[int]:
    """Returns the steps that have been written once `step` has."""
    deadline = time.monotonic() + 10
    while steps.furthest(1) < step and time.monotonic() < deadline:
        time.sleep(0.01)
        steps.poll()
    return sorted(steps.done[1][0])


def test_a_step_is_done_when_the_device_has_done_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from bench.programs.gpu_ranks import Done

    monkeypatch.setattr(torch.cuda, "Event", Queued)
    monkeypatch.setattr(Queued, "made", [], raising=False)
    for name, value in {"STEPS_FILE": str(tmp_path / "steps"), "TRAINMASTER_ATTEMPT": "1", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    done, steps = Done(), Steps(tmp_path / "steps")
    for step in (1, 2, 3):
        done.queued(step)
    for event in Queued.made[:2]:
        event.there.set()
    assert written(steps, 2) == [1, 2]
    Queued.made[2].there.set()
    assert written(steps, 3) == [1, 2, 3]

"""`bench.gpu` judges its measurements by goals, chooses sizes that fit into memory, and runs each section."""

from __future__ import annotations

import shutil
import time
from types import SimpleNamespace

import pytest

from bench import gpu
from bench.gpu import Bench, Model, Row

LARGE = (30, 4096, 1024)


def bench(*, on_gpu: bool) -> Bench:
    return Bench("a card", on_gpu, "", time.monotonic() + 60)


@pytest.mark.parametrize(
    ("values", "goal", "shown"),
    [
        ([0.2, 0.4, 9.0], 1.0, ["steps (x 3)", "0.4", "9", "1", "yes"]),
        ([0.2, 1.4, 9.0], 1.0, ["steps (x 3)", "1.4", "9", "1", "no"]),
        ([0, 0, 0], 0, ["steps (x 3)", "0", "0", "0", "yes"]),
        ([0, 0, 1], 0, ["steps (x 3)", "0", "1", "0", "no"]),
        ([1234.5], None, ["steps", "1234", "1234", "", ""]),
        ([], 0.05, ["steps", "not measured", "", "0.05", ""]),
    ],
)
def test_the_median_is_judged_and_each_measurement_where_the_goal_is_none_at_all(
    values: list[float], goal: float | None, shown: list[str]
) -> None:
    assert Row("steps", values, goal).cells() == shown


def test_what_should_be_large_is_judged_the_other_way() -> None:
    assert Row("MFU", [51.0, 49.0, 52.0], 50.0, at_least=True).cells() == ["MFU (x 3)", "51", "49", "50", "yes"]
    assert Row("MFU", [51.0, 49.0, 42.0], 50.0, at_least=True).cells() == ["MFU (x 3)", "49", "42", "50", "no"]
    assert Row("MFU", [50.0], 50.0, at_least=True).cells()[-1] == Row("seconds", [50.0], 50.0).cells()[-1] == "yes"


def test_a_state_is_as_large_as_memory_allows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    free = 100 << 30
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    assert bench(on_gpu=True).model(*LARGE) == Model(*LARGE)
    assert Model(*LARGE).size == "6 GB"
    free = 3 << 30
    found = bench(on_gpu=True).model(*LARGE)
    assert found.layers == 5 and 3 * found.state_bytes <= free
    assert capsys.readouterr().out.endswith("the state is one of 1 GB instead\n")
    free = 64 << 20
    with pytest.raises(RuntimeError, match="67,108,864 bytes free: mount -o remount,size=20G /dev/shm"):
        bench(on_gpu=True).model(*LARGE)


def test_without_a_gpu_the_model_is_tiny_with_the_same_buffers() -> None:
    assert bench(on_gpu=False).model(*LARGE, "mask") == Model(1, 64, 8, "mask")


def test_what_keeping_a_state_costs_is_its_share_of_each_step_and_of_the_time_between_snapshots() -> None:
    rows = gpu._costs(
        "6 GB",
        {
            "byHand": [0.010, 0.010],
            "ours": [0.01003, 0.01005],
            "snapshots": [{"host": 0.01, "longest": 0.02, "all": 0.05}],
            "every": [10.0],
            "synchronizations": 0,
            "first": 5.0,
        },
        True,
    )
    found = {row.what.removeprefix("6 GB: "): row for row in rows}
    assert found["snapshots, %"].values == pytest.approx([0.5])
    assert found["both, %"].values == pytest.approx([0.9])
    assert [row.goal for row in rows if row.goal is not None] == [1.0, 0, 0.05, 0.05]


def test_what_could_not_be_measured_has_a_row_all_the_same() -> None:
    found = {"byHand": [0.01], "ours": [0.01], "snapshots": [], "every": [], "synchronizations": None, "first": 0.0}
    assert gpu._costs("small", found, False)[-1].cells() == ["small: both, %", "not measured", "", "1", ""]


async def test_a_section_that_fails_costs_no_other_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fails(_: Bench) -> None:
        raise RuntimeError("no room")

    async def shows(made: Bench) -> None:
        made.show("Something", [Row("seconds", [1.0], 2.0)])

    made = bench(on_gpu=True)
    monkeypatch.setattr(gpu, "SECTIONS", {"first": fails, "second": shows})
    await gpu.run(made, ["first", "second"])
    text = capsys.readouterr().out
    assert "first: not measured:" in text and "Something, a card" in text
    assert made.failures.titles == ["first"]


async def test_nothing_is_begun_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_: Bench) -> None:
        raise AssertionError

    made = Bench("a card", True, "", time.monotonic())
    monkeypatch.setattr(gpu, "SECTIONS", {"late": never})
    await gpu.run(made, ["late"])
    assert made.failures.titles == ["late"]

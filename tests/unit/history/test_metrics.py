"""The history keeps any metric that ranks report, and the figures of each worker's system and GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.history.recorded import START, Answers, Recorded, key, sample
from trainmaster.history.drawing import TimeWindow
from trainmaster_operator.api.records import MAX_JOB_METRICS, SampleRecord, SystemRecord
from trainmaster_operator.wire.system import GpuSample, SystemSample

WHOLE = TimeWindow()


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    found = Recorded(tmp_path)
    found.clock.now = START + 100_000
    yield found
    found.store.close()


def reports(at: float, step: int, **metrics: float) -> SampleRecord:
    return replace(sample(at, step=[step, step], loss=[1.0, 1.0]), metrics=metrics)


def system(at: float, workers: int = 2, gpus: int = 2, **changed: float | None) -> SystemRecord:
    """Returns a sample in which the GPU n of worker m has a utilization of n / 10 + m / 100."""
    samples = {}
    for worker in range(workers):
        cards = {n: GpuSample(n / 10 + worker / 100, 1e9 * (n + 1), 8e9) for n in range(gpus)}
        figures: dict[str, Any] = {"cpu_cores": 1.0 + worker, "cpu_limit_cores": 4.0, "memory_bytes": 2e9, **changed}
        samples[worker] = SystemSample(**figures, gpus=cards)
    return SystemRecord.of(at, key(), 1, samples)


def curves(recorded: Recorded, *names: str, points: int = 1_000) -> dict[str, Any]:
    with Answers(recorded.file) as answers:
        found = answers.curves("team", "mine", "", WHOLE, points, names)
    return {curve["name"]: curve for curve in found["curves"]}


def names(recorded: Recorded) -> tuple[list[str], str | None]:
    with Answers(recorded.file) as answers:
        found = answers.names("team", "mine")
    return [each["name"] for each in found["items"]], found["note"]


@pytest.mark.parametrize("aged", [False, True])
def test_any_metric_is_a_curve_beside_the_built_in_ones(recorded: Recorded, *, aged: bool) -> None:
    for n in range(10):
        recorded.store.record([reports(START + n, n, **({"eval/acc": n / 10} if n >= 5 else {}), lr_scale=2.0)])
    if aged:
        recorded.age()
    assert names(recorded) == (["loss", "eval/acc", "lr_scale"], None)
    found = curves(recorded, "eval/acc", "loss", "unknown", "cpuCores")
    assert list(found) == ["eval/acc", "loss"], "what has no values is left out"
    (line,) = found["eval/acc"]["lines"]
    assert line["values"] == [None] * 5 + [0.5, 0.6, 0.7, 0.8, 0.9]
    assert found["eval/acc"]["step"] == list(range(10)) and found["loss"]["lines"][0]["values"] == [1.0] * 10
    with Answers(recorded.file) as answers:
        series = answers.series("team", "mine", "", WHOLE, 5, ["lr_scale"])
    assert series["metrics"] == {"lr_scale": [2.0] * len(series["at"])}


@pytest.mark.parametrize("aged", [False, True])
def test_each_worker_and_each_gpu_has_a_line_with_its_limit(recorded: Recorded, *, aged: bool) -> None:
    for n in range(6):
        recorded.store.record([reports(START + 5 * n, n), system(START + 5 * n)])
    recorded.store.record([system(START + 3)])  # is late, and left out
    if aged:
        recorded.age()
    assert names(recorded)[0] == ["loss", "cpuCores", "memoryBytes", "gpuUtilization", "gpuMemoryBytes"]
    found = curves(recorded, "cpuCores", "memoryBytes", "gpuUtilization", "gpuMemoryBytes")
    cpu = found["cpuCores"]
    assert cpu["at"] == [START + 5 * n for n in range(6)] and cpu["step"] == [None] * 6
    assert [(each["worker"], each["gpu"], each["limit"], each["values"][0]) for each in cpu["lines"]] == [
        *((0, None, 4.0, 1.0), (1, None, 4.0, 2.0))
    ]
    assert [each["limit"] for each in found["memoryBytes"]["lines"]] == [None, None]
    gpus = found["gpuUtilization"]["lines"]
    assert [(each["worker"], each["gpu"]) for each in gpus] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [each["values"][5] for each in gpus] == pytest.approx([0.0, 0.1, 0.01, 0.11], rel=1e-3)
    assert found["gpuMemoryBytes"]["lines"][0]["limit"] == pytest.approx(8e9, rel=1e-3)
    assert len(curves(recorded, "gpuUtilization", points=2)["gpuUtilization"]["at"]) <= 2


@pytest.mark.parametrize("aged", [False, True])
def test_many_gpus_are_shown_by_their_minimum_mean_and_maximum(recorded: Recorded, *, aged: bool) -> None:
    recorded.store.record([system(START, workers=2, gpus=2)])
    recorded.store.record([system(START + 5, workers=10, gpus=8), system(START + 10, workers=10, gpus=8)])
    if aged:
        recorded.age()
    lines = curves(recorded, "gpuUtilization")["gpuUtilization"]["lines"]
    assert [each["of"] for each in lines] == ["minimum", "mean", "maximum"]
    assert [each["values"][1] for each in lines] == pytest.approx([0.0, 0.395, 0.79], rel=1e-2)
    assert [each["values"][0] for each in lines] == pytest.approx([0.0, 0.055, 0.11], rel=1e-2)


def test_a_job_has_a_limited_number_of_metrics_and_its_list_says_so(recorded: Recorded) -> None:
    for n in range(200):
        recorded.store.record([reports(START + n, n, **{f"name_{n}": 1.0, "steady": float(n)})])
    recorded.store.forget()
    recorded.store.record([reports(START + 300, 300, name_900=1.0, steady=2.0)])
    found, note = names(recorded)
    assert len(found) == 1 + MAX_JOB_METRICS and note is not None and note.startswith("Only the first 64 metrics")
    assert curves(recorded, "steady")["steady"]["lines"][0]["values"][-1] == 2.0
    assert not curves(recorded, "name_900", "name_199")
    (count,) = recorded.store.connection.execute("SELECT count(*) FROM metrics").fetchone()
    assert count == 1 + MAX_JOB_METRICS + 1


def test_a_write_that_fails_leaves_no_names_behind(recorded: Recorded) -> None:
    def fails() -> Iterator[SampleRecord]:
        yield reports(START, 1, lost=1.0)
        raise ValueError

    with pytest.raises(ValueError):
        recorded.store.record(fails())
    recorded.store.record([reports(START + 1, 1, lost=1.0)])
    assert names(recorded)[0] == ["loss", "lost"]

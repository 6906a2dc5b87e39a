"""`history.upkeep.Aging` keeps a bounded number of points of any job, which cover all of its time with its peaks."""

from __future__ import annotations

import random
import tracemalloc
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.unit.history.recorded import START, Answers, Recorded, key, sample
from trainmaster.history import drawing, figures, upkeep
from trainmaster.history.drawing import TimeWindow
from trainmaster.history.figures import CURVES, HEAT, LEVEL_SECONDS, PEAK, Points
from trainmaster_operator.api.records import SampleRecord

# These replace 1,800 and 60, so that a test needs a tenth of the samples.
KEPT, BLOCK = 120, 10
# At this number a level has too many points: a block of the next level is due, with one point for up to six.
MOST = KEPT + 7 * BLOCK


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    monkeypatch.setattr(upkeep, "kept_points", lambda _: KEPT)
    monkeypatch.setattr(upkeep, "block_points", lambda _: BLOCK)
    return Recorded(tmp_path)


def _train(recorded: Recorded, samples: int, *, distance: float = 2.0, ranks: int = 2, peak_at: int = -1) -> None:
    """Records a job's samples, which are packed as they arrive."""
    batch = []
    for number in range(samples):
        recorded.clock.now += distance
        slow = 9.0 if number == peak_at else 1.0
        step_seconds = [1.0] * (ranks - 1) + [slow]
        columns = {"step": [float(number)] * ranks, "loss": [2.0] * ranks, "step_seconds": step_seconds}
        batch.append(sample(recorded.clock.now, ranks=ranks, **columns))
        if len(batch) == BLOCK:
            recorded.store.record(batch)
            recorded.age()
            batch.clear()
    recorded.store.record(batch)


def test_a_long_job_has_few_points_of_all_its_time(recorded: Recorded) -> None:
    _train(recorded, 600, peak_at=100)
    for kind in (CURVES, HEAT):
        levels = recorded.blocks(kind)
        assert [level for level, _ in levels] == [0, 1]
        assert all(points <= MOST for _, points in levels)
    with Answers(recorded.file) as answers:
        found = answers.series("team", "mine", "", TimeWindow(), 10_000)
        assert found["at"] == sorted(found["at"]) and len(found["at"]) < 600 / 2
        assert found["at"][-1] == START + 1_200 and found["at"][0] - START <= LEVEL_SECONDS[1]
        distances = {later - earlier for earlier, later in zip(found["at"], found["at"][1:], strict=False)}
        # A point for a span of 10 s has the time of the last sample in it.
        assert max(distances) <= 2 * LEVEL_SECONDS[1]
        assert max(found["slowestStepSeconds"]) == 9.0
        drawn = answers.heat("team", "mine", "", TimeWindow(), 240, "stepSeconds")
        assert len(drawn["at"]) <= 240 and max(row[1] for row in drawn["values"]) == 9.0
        assert max(row[0] for row in drawn["values"]) == 1.0
        mean = answers.heat("team", "mine", "", TimeWindow(), 240, "meanStepSeconds")
        assert 1.0 < max(row[1] for row in mean["values"]) < 9.0


def test_a_job_of_months_is_bounded(recorded: Recorded) -> None:
    # A job with one point an hour passes through every finer level.
    _train(recorded, 1_000, distance=7_200.0)
    levels = recorded.blocks(CURVES)
    assert max(level for level, _ in levels) >= 6 and all(points <= MOST for _, points in levels)


def test_attempts_without_number_are_bounded(recorded: Recorded) -> None:
    for first in range(0, 1_200, BLOCK):
        batch = []
        for number in range(first, first + BLOCK):
            recorded.clock.now += 2.0
            batch.append(sample(recorded.clock.now, attempt=number + 1, step=[1.0, 1.0], step_seconds=[1.0, 1.0]))
        recorded.store.record(batch)
        recorded.age()
    assert sum(points for _, points in recorded.blocks(CURVES)) <= len(LEVEL_SECONDS) * (MOST + BLOCK)
    with Answers(recorded.file) as answers:
        assert len(answers.series("team", "mine", "", TimeWindow(), 100)["at"]) == 100


def test_a_large_job_has_fewer_times_by_rank() -> None:
    assert [figures.kept_points(ranks) for ranks in (0, 1, 55, 100, 4_096)] == [1_800, 1_800, 1_800, 1_000, 480]
    assert [figures.block_points(ranks) for ranks in (0, 4, 4_096, 16_384, 1_000_000)] == [60, 60, 24, 6, 1]


def test_samples_that_were_packed_or_not_are_one_series(recorded: Recorded) -> None:
    _train(recorded, 90)
    with Answers(recorded.file) as answers:
        assert answers.series("team", "mine", "", TimeWindow(), 1000)["step"] == list(range(90))
        assert answers.heat("team", "mine", "", TimeWindow(), 240, "loss")["values"] == [[2.0, 2.0]] * 90


def test_what_cant_be_read_is_passed_over(recorded: Recorded, caplog: pytest.LogCaptureFixture) -> None:
    _train(recorded, 300)
    first = "(SELECT min(id) FROM blocks WHERE level = 0 GROUP BY kind)"
    recorded.store.connection.execute(f"UPDATE blocks SET data = x'00' WHERE id IN {first}")
    with Answers(recorded.file) as answers:
        assert 0 < len(answers.series("team", "mine", "", TimeWindow(), 1000)["at"]) < 300
        assert 0 < len(answers.heat("team", "mine", "", TimeWindow(), 240, "loss")["at"]) < 240
    # It was moved with the others, and is gone here.
    _train(recorded, 300)
    assert recorded.store.connection.execute("SELECT count(*) FROM blocks WHERE data = x'00'").fetchone() == (0,)
    assert "Some of a job's figures are skipped: a block can't be read" in caplog.text


def test_young_samples_wait_for_more(recorded: Recorded) -> None:
    recorded.store.record([sample(START, key(), step=[1.0, 1.0])])
    assert not recorded.aging.step()
    assert recorded.aging.step(at_once=True)


def test_ranks_that_are_others_at_each_time_cost_no_more_than_those_that_stay(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "MOST_CELLS", 10_000)
    widest, fitting = list[int](), figures._fitting

    def seen(own: Sequence[int], ranks: Sequence[int]) -> Callable[[list[float]], list[float]]:
        widest.append(len(ranks))
        return fitting(own, ranks)

    monkeypatch.setattr(figures, "_fitting", seen)
    recorded.clock.now = START + 2_000
    for n in range(900):
        numbers = tuple(range(n * 64, n * 64 + 64))
        recorded.store.record([SampleRecord(START + n, key(), 1, numbers, (0,) * 64, {"step_seconds": [1.0] * 64})])
    recorded.age()
    assert widest and max(widest) <= 1_000
    monkeypatch.setattr(drawing, "MAX_RANKS", 500)
    with Answers(recorded.file) as answers:
        found = answers.heat("team", "mine", "", TimeWindow(), 240, "stepSeconds")
    assert len(found["at"]) <= 240 and len(found["ranks"]) == 500 and found["leftOut"] > 1_000


def test_ranks_that_come_and_go_are_moved_in_steps_of_bounded_size(recorded: Recorded) -> None:
    """Blocks of few ranks allow a level many points; one sample of very many ranks makes them too many at once."""
    recorded.clock.now = START + 2_000
    sizes, joined = list[int](), upkeep.joined

    def seen(kind: str, parts: Iterable[Points]) -> Points:
        found = joined(kind, parts)
        sizes.append(len(found) * len(found.ranks))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upkeep, "kept_points", lambda ranks: KEPT if ranks > 1_000 else 10 * KEPT)
        patch.setattr(upkeep, "_MOVED_CELLS", 50_000)
        patch.setattr(upkeep, "joined", seen)
        for n in range(600):
            ranks = 2_000 if n == 500 else 200
            recorded.store.record([sample(START + n, ranks=ranks, step_seconds=[1.0] * ranks)])
        recorded.age()
        levels = dict(recorded.blocks(HEAT))
    assert len(sizes) > 1 and max(sizes) <= 100_000
    assert levels[0] <= MOST


def test_a_map_of_many_ranks_takes_little_memory(recorded: Recorded) -> None:
    """Four times as many ranks took 225 MB, because the figures of all ranks and times were held as stored."""
    ranks, points = 256, 24
    values = array("d", (random.Random(1).random() for _ in range(ranks * points)))
    recorded.store.record([sample(START, ranks=ranks)])
    for number in range(40):
        at = [START + 2.0 * (number * points + point) for point in range(points)]
        block = Points(HEAT, list(range(ranks)), [0] * ranks, at, [1] * points, {PEAK: values, "loss": values})
        recorded.store.write(partial(recorded.aging._add, 1, 0, [block]))
    with Answers(recorded.file) as answers:
        tracemalloc.start()
        try:
            found = answers.heat("team", "mine", "", TimeWindow(), 240, "stepSeconds")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert len(found["values"]) >= 150 and len(found["values"][0]) == ranks
    # The answer alone has 60,000 figures.
    assert peak < 8e6, peak

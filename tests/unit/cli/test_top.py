"""The ranks' reports become bars, a histogram and a slowest rank (`cli/top.py`, `cli/top_picture.py`)."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console

from tests.unit.client.fakes import job, pod
from trainmaster.cli.top import NO_TIME_YET, UNTIMED, JobPicture, JobReader, JobsPicture, histogram, sparkline
from trainmaster.client import JobMetrics, NotAllowed, RankMetrics, TrainingJob


def ranks(*seconds: float) -> list[RankMetrics]:
    return [RankMetrics(rank // 8, rank, step=10, step_seconds=each) for rank, each in enumerate(seconds)]


def drawn(picture: JobPicture | JobsPicture, width: int = 80, height: int = 24) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(picture)
    return captured.get().splitlines()


def running(**status: Any) -> TrainingJob:
    progress = {"step": 50, "totalSteps": 200, "loss": 0.5, "samplesPerSecond": 1234.0, "etaSeconds": 75}
    counts = {"desired": 2, "created": 2, "running": 2}
    return TrainingJob.of(job(**{"phase": "Running", "attempt": 1, "workers": counts, "progress": progress, **status}))


def test_the_slowest_rank_is_named_where_it_is_notably_slower() -> None:
    assert "slowest: rank 2," in "\n".join(drawn(JobPicture(running(), ranks=ranks(0.1, 0.11, 0.3, 0.1))))
    assert "slowest" not in "\n".join(drawn(JobPicture(running(), ranks=ranks(0.1, 0.11, 0.1))))


def test_ranks_that_wait_for_a_slow_one_in_every_step_are_told_from_it_by_what_they_compute() -> None:
    """`trainloop` reports like this: a step takes equally long on each rank."""
    figures = [RankMetrics(0, rank, 10, step_seconds=0.5, compute_seconds=each) for rank, each in enumerate((0.2, 0.4))]
    lines = "\n".join(drawn(JobPicture(running(), ranks=figures)))
    assert "computing time by rank median 300 ms" in lines and "slowest: rank 1, 1.3 times the median" in lines
    assert "200 ms" in lines and "400 ms" in lines and "500 ms" not in lines
    assert "step time by rank median 500 ms" in "\n".join(drawn(JobPicture(running(), ranks=ranks(0.5, 0.5))))


def test_a_histogram_has_every_value_once() -> None:
    values = [0.1 + at / 1000 for at in range(4096)]
    bins = histogram(values)
    assert sum(counted for _, _, counted in bins) == 4096
    assert (bins[0][0], round(bins[-1][1], 6)) == (0.1, 4.195)
    assert histogram([2.0, 2.0]) == [(2.0, 2.0, 2)]


def test_a_sparkline_goes_from_the_least_to_the_most_of_the_newest() -> None:
    assert sparkline([9, 1, 2, 3], 3) == "▁▄█" or sparkline([9, 1, 2, 3], 3) == "▁▅█"
    assert sparkline([1], 10) == ""
    assert sparkline([2, 2], 10) == "▁▁"


def test_few_ranks_are_bars_in_their_order_and_the_slowest_is_marked() -> None:
    lines = drawn(JobPicture(running(), ranks=ranks(0.1, 0.3, 0.1)))
    assert "25%" in lines[1] and "step 50/200" in lines[1] and "ETA 75s" in lines[1]
    assert "loss 0.5 " in lines[2] and "1,234 samples/s" in lines[2]
    assert "slowest: rank 1, 3.0 times the median" in "\n".join(lines)
    bars = [line for line in lines if line.startswith("rank ")]
    assert [line.split()[1] for line in bars] == ["0", "1", "2"]
    assert bars[1].count("█") == 3 * bars[0].count("█") - 1 or bars[1].count("█") > 2 * bars[0].count("█")
    assert "slowest" in bars[1]


def test_thousands_of_ranks_fit_a_small_terminal() -> None:
    many = ranks(*[0.1 + rank / 100_000 for rank in range(4095)], 0.9)
    picture = JobPicture(running(), [pod(worker) for worker in range(512)], many)
    lines = drawn(picture)
    assert len(lines) <= 40 and all(len(line) <= 80 for line in lines)
    text = "\n".join(lines)
    assert "rank 4095" in text and "rank 0 " in text and "all 4096 ranks" in text
    assert "... and " in text and "more workers" in text


def test_what_isnt_allowed_is_said_and_the_rest_is_shown() -> None:
    asked: list[str] = []

    class Refusing:
        def pods(self, _name: str) -> list[Any]:
            return [pod(0)]

        def events(self) -> list[Any]:
            asked.append("events")
            raise NotAllowed("events is forbidden")

        def metrics(self, _name: str) -> JobMetrics:
            return JobMetrics((), {0: "pods/proxy is forbidden"})

    reader = JobReader(Refusing())  # type: ignore[arg-type]
    pictures = [reader.view(running())() for _ in range(2)]
    assert asked == ["events"], "what was forbidden isn't asked again"
    text = " ".join(" ".join(drawn(pictures[1])).split())
    assert "(without its events: events is forbidden)" in text
    assert "(without figures of each rank: pods/proxy is forbidden)" in text
    assert "reviews-0" in text


def test_it_says_that_a_script_reports_no_time_of_a_step_once_steps_are_done() -> None:
    assert NO_TIME_YET in drawn(JobPicture(running(), ranks=[RankMetrics(0, 0, step=0)]))
    assert NO_TIME_YET in drawn(JobPicture(running()))
    lines = drawn(JobPicture(running(), ranks=[RankMetrics(0, 0, step=7)]))
    assert UNTIMED in [line.rstrip() for line in lines]


def test_a_job_that_has_ended_has_no_eta_and_no_speed() -> None:
    progress = {"step": 50, "totalSteps": 200, "loss": 0.5, "samplesPerSecond": 1234.0, "etaSeconds": 75}
    text = "\n".join(drawn(JobPicture(TrainingJob.of(job(phase="Failed", progress=progress)))))
    assert "loss 0.5 " in text and "ETA" not in text and "samples/s" not in text


def test_of_all_jobs_no_column_is_cut_and_those_without_room_go() -> None:
    jobs = [running(), TrainingJob.of(job("a-job-that-waits-for-room", phase="Pending"))]

    def names(width: int) -> list[str]:
        lines = drawn(JobsPicture(jobs), width)
        assert all(len(line) <= width and "…" not in line for line in lines)
        assert lines[2].startswith("a-job-that-waits-for-room")
        assert ("━" in lines[1]) == (width >= 87)
        return lines[0].split()

    everything = ["NAME", "PHASE", "WORKERS", "STEP", "LOSS", "SAMPLES/S", "ETA", "GOODPUT"]
    assert names(96) == everything
    assert names(95) == everything[:-1], "first what is empty, then the bar"
    assert names(86) == everything[:-1]
    assert names(72) == everything[:-2]
    assert names(56) == everything[:4]


def test_a_stalled_job_shows_for_how_long_and_where_instead_of_speed_and_eta() -> None:
    since = (datetime.now(UTC) - timedelta(minutes=5)).isoformat()
    stall = {"since": since, "usualSeconds": 0.05, "rank": 1, "message": "rank 1 is at train.py:41 in load_batch"}
    job = running(progress={"step": 50, "totalSteps": 200, "samplesPerSecond": 12.0, "etaSeconds": 7, "stall": stall})
    for picture in (JobPicture(job), JobsPicture([job])):
        lines = drawn(picture)
        text = " ".join(" ".join(lines).split())
        assert all(len(line) <= 80 for line in lines)
        assert "no step for 5 min (a step takes 0.05 s): rank 1 is at train.py:41 in load_batch" in text
        assert "samples/s" not in text and "7s" not in text

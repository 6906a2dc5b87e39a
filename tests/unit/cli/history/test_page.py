"""The page of a recorded job fits the terminal, explains each attempt's end, and draws curves across all attempts."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from tests.unit.client.history.recorded import RecordedHistory, detail
from trainmaster.cli.history.page import curve_lines, job_page, spread
from trainmaster.cli.top import blocks
from trainmaster.client.blocking import Blocking, run
from trainmaster.client.history import HistoryReader

NOW = datetime(2026, 11, 23, tzinfo=UTC)


def page(width: int, history: RecordedHistory | None = None) -> list[str]:
    """Returns the lines of the page on a terminal of that width."""
    reader = HistoryReader(Blocking(history or RecordedHistory()))
    console = Console(width=width, force_terminal=True, color_system=None, file=io.StringIO())
    job, series = run(reader.job("team", "bert-mrpc")), run(reader.series("team", "bert-mrpc"))
    for part in job_page(job, series, width, NOW):
        console.print(part, crop=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 200])
def test_every_line_fits_the_terminal(width: int) -> None:
    lines = page(width)
    assert max(map(cell_len, lines)) <= width
    curves = [line for line in lines if line.startswith(("loss", "samples/s", "gradient", "step,"))]
    assert len(curves) == 5
    assert min(map(cell_len, curves)) > 0.6 * min(width, 160)


def test_the_ranks_own_metrics_follow_with_the_end_of_a_long_name() -> None:
    reader = HistoryReader(Blocking(RecordedHistory()))
    series = dict(run(reader.series("team", "bert-mrpc")))
    values = [float(number) for number in range(len(series["at"]))]
    series["metrics"] = {"eval_f1": values, "validation/micro/f1_score": values, "gone": [None] * len(values)}
    lines = [line.plain for line in curve_lines(series, 100)]
    assert [line[:15].rstrip() for line in lines[5:7]] == ["eval_f1", "vali…/f1_score"]
    assert max(map(cell_len, lines)) <= 100 and not any(line.startswith("gone") for line in lines)


def test_the_facts_the_attempts_and_the_time_stand_there() -> None:
    text = "\n".join(page(200))
    assert text.startswith(
        "bert-mrpc  Succeeded (deleted)  attempt 4  restarts 2  disruptions 1  time 70m\n"
        "step 1000/1000  loss 0.2134  goodput 87%  eval/f1 0.8812\n"
        "namespace team  uid 8d6f6a3e-5b2c-4f0e-9d0a-1c2b3a4d5e6f  created 2026-11-20 11:59:30 (2d12h ago)  deleted "
        "2026-11-21 13:00:00 (35h ago)\n"
        "another job of this name, created 2026-11-19 11:00:00: --uid first-life\n"
    )
    table = text[text.index("ATTEMPT") : text.index("\n\ntime ")].splitlines()
    assert [line.split() for line in table if line[0].isdigit()] == [
        ["1", "2026-11-20", "12:00:00", "15m", "0", "to", "240", "Failed"],
        ["2", "2026-11-20", "12:15:12", "19m", "200", "to", "520", "Disrupted"],
        ["3", "2026-11-20", "12:35:18", "14m", "500", "to", "700", "Failed"],
        ["4", "2026-11-20", "12:50:10", "19m", "650", "to", "1000", "Succeeded"],
    ]
    assert [line for line in table if line.startswith("  ")] == [
        "  OOMKilled: MemoryError: 40 GiB, at x.py:3; rank 5 was killed for memory",
        "  NodeLost: pod bert-mrpc-1 of worker 1 on node gpu-3 lost its node",
        "  Hung: rank 2 made no progress for 300 s while all wait",
    ]
    assert "productive 60m (89%)  recompute 4m36s (7%)  checkpoint 112s (3%)" in text
    assert text.endswith(
        "more: kubectl dtj history bert-mrpc -n team --uid 8d6f6a3e-5b2c-4f0e-9d0a-1c2b3a4d5e6f --attempt 3"
    )


def test_an_attempt_that_trained_on_without_some_says_with_whom_and_for_how_long() -> None:
    job = detail()
    job["attempts"][1] |= {"outcome": "Joined", "failure": None, "trainingWith": "3 of 4 workers"}
    lines = page(120, RecordedHistory(answers={"bert-mrpc": job}))
    row = next(at for at, line in enumerate(lines) if line.endswith("Joined"))
    assert lines[row + 1] == "  continued with 3 of 4 workers for 19m"


def test_a_slow_rank_is_seen_between_the_curves_of_step_times() -> None:
    median, slowest = (line for line in page(120) if line.startswith("step,"))
    assert "█" not in median and slowest.count("█") > 20
    assert median.endswith("104 ms  (104 ms to 104 ms)") and slowest.endswith("250 ms  (107 ms to 250 ms)")


def test_attempts_stand_below_the_curves_where_they_begin() -> None:
    lines = page(120)
    curve = next(line for line in lines if line.startswith("step, slowest"))
    attempts = next(line for line in lines if line.startswith("attempt  "))
    assert attempts.split() == ["attempt", "1", "2", "3", "4"]
    assert abs(attempts.index("3") - curve.index("█")) <= 1


def test_of_many_attempts_the_newest_are_shown() -> None:
    attempts = [{**detail()["attempts"][0], "attempt": number} for number in range(1, 31)]
    text = "\n".join(page(120, RecordedHistory(answers={"bert-mrpc": detail(attempts=attempts)})))
    assert "10 earlier attempts are left out: -o json has all" in text
    assert "\n10       " not in text and "\n11       " in text


def test_a_job_of_which_little_is_known_has_a_page() -> None:
    nothing: dict[str, Any] = dict.fromkeys(detail())
    job = {**nothing, "kind": "RecordedJobDetail", "uid": "u", "namespace": "team", "name": "bert-mrpc"}
    answers = {"bert-mrpc": job, "series": {"kind": "Series"}}
    assert page(80, RecordedHistory(answers=answers)) == ["bert-mrpc  Pending", "namespace team  uid u"]


def test_a_status_of_another_release_costs_the_page_its_bar_alone() -> None:
    job = detail(job={"metadata": {"name": "bert-mrpc"}, "status": {"timeSpent": "long"}})
    lines = page(80, RecordedHistory(answers={"bert-mrpc": job}))
    assert not [line for line in lines if line.startswith("time █")] and len(lines) > 15


@pytest.mark.parametrize("seconds", [float("inf"), 1e308, -0.999999999999, float("nan")])
def test_a_time_that_nobody_can_have_spent_is_left_out(seconds: float) -> None:
    job = detail()
    job["job"]["status"]["timeSpent"] = {"productive": 1.0, "restart": seconds}
    assert "productive 1.0s (100%)" in "\n".join(page(80, RecordedHistory(answers={"bert-mrpc": job})))


def test_a_moment_that_no_calendar_has_is_shown_as_it_is() -> None:
    job = detail(createdAt="0001-01-01T00:00:00+23:59", startedAt="9999-12-31T23:59:59-23:59", deletedAt="yesterday")
    assert "created 0001-01-01T00:00:00+23:59" in "\n".join(page(200, RecordedHistory(answers={"bert-mrpc": job})))


def test_texts_of_others_are_one_line_each() -> None:
    job = detail()
    job["attempts"][0] |= {"outcome": "Failed\x1b[2J", "failure": {"reason": "x\x1b]52;c;y\x07", "message": "a\u202eb"}}
    text = "\n".join(page(80, RecordedHistory(answers={"bert-mrpc": job})))
    assert "\\x1b[2J" in text and "x\\x1b]52;c;y\\x07: a\\u202eb" in text
    assert "\x1b]" not in text and "\u202e" not in text


def test_values_are_spread_over_time_and_a_gap_is_blank() -> None:
    gap = [None] * 7
    assert spread([0, 1, 2, 3, 4, 20], [1.0, 3.0, 5.0, 7.0, None, 4.0], 10) == [2.0, 6.0, *gap, 4.0]
    assert spread([0, 4, 8], [1.0, 2.0, 3.0], 5) == [1.0, 1.0, 2.0, 2.0, 3.0], "fewer points than stretches"
    assert blocks([0.0, None, 7.0, 3.5], 0.0, 7.0) == "▁ █▅"
    assert blocks([1.0, 1.001], 1.0, 1.001) == "▁▁"
    huge = 1e100
    assert blocks([-huge, huge], -huge, huge) == "▁█"


def test_two_points_are_the_fewest_that_make_a_curve() -> None:
    series: dict[str, Any] = {"kind": "Series", "at": [5.0], "loss": [1.0]}
    reader = HistoryReader(Blocking(RecordedHistory(answers={"series": series})))
    assert list(curve_lines(run(reader.series("team", "bert-mrpc")), 80)) == []
    series |= {"at": [5.0, 6.0], "loss": [1.0, 2.0]}
    assert [line.plain.split()[0] for line in curve_lines(run(reader.series("team", "bert-mrpc")), 80)] == [
        *("loss", "time")
    ]

"""The status as people and programs read it: conditions, counts, progress; and that it stands still."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.reconciling.builders import (
    NOW,
    all_up,
    decided,
    job,
    observed,
    pod,
    pods,
    running,
    said,
)
from trainmaster.api.v1alpha1 import JobStatus, Progress
from trainmaster.reconciling.observed.snapshot import Observed
from trainmaster.reconciling.status.conditions import condition, with_condition
from trainmaster.reconciling.times import since, to_seconds, to_text, to_whole_text
from trainmaster.wire.progress import RankProgress


def ranks(**fields: Any) -> dict[int, dict[int, RankProgress]]:
    """Two workers of one rank; rank 0 as given, rank 1 a step behind."""
    first = RankProgress(**{"step": 100, "total_steps": 1000, "loss": 0.5, "samples_per_second": 10.04, **fields})
    return {1: {1: RankProgress(step=99, loss=9.0, samples_per_second=10.0)}, 0: {0: first}}


def training(at: float = NOW, attempt: int = 1, **fields: Any) -> Observed:
    return observed(
        *all_up(attempt), attempt=attempt, progress=ranks(**fields), progress_attempt=attempt, progress_at=at
    )


def progress_of(status: JobStatus) -> Progress:
    assert status.progress is not None
    return status.progress


class TestConditions:
    def test_the_time_moves_only_with_the_status(self) -> None:
        first = with_condition([], "Running", "False", "Pending", "a", now=NOW, generation=1)
        second = with_condition(first, "Running", "False", "Starting", "b", now=NOW + 50, generation=1)
        third = with_condition(second, "Running", "True", "AllRanksUp", "c", now=NOW + 60, generation=2)
        assert second[0].last_transition_time == first[0].last_transition_time == to_whole_text(NOW)
        assert (second[0].reason, second[0].message) == ("Starting", "b")
        assert third[0].last_transition_time == to_whole_text(NOW + 60)
        assert third[0].observed_generation == 2

    def test_others_stay_as_they_are(self) -> None:
        foreign = with_condition([], "example.com/Audited", "True", "Yes", "", now=NOW, generation=1)
        status = decided(job(running(conditions=[item.model_dump() for item in foreign])), observed(*all_up())).status
        assert condition(status.conditions, "example.com/Audited") == foreign[0]

    def test_a_running_job_is_accepted_and_running(self) -> None:
        status = decided(job(running(phase="Starting")), observed(*all_up())).status
        told = {item.type: (item.status, item.reason) for item in status.conditions}
        assert told == {"Running": ("True", "AllRanksUp"), "Accepted": ("True", "SpecAccepted")}


class TestCounts:
    def test_workers_are_counted_by_what_they_do(self) -> None:
        around = observed(said(0, "Finished"), said(1, "Running"), said(2, "Starting"), given=[pod(0), pod(1), pod(2)])
        counts = decided(
            job(running(phase="Starting", workers=4, pod_uids=[], pod_restart_counts=[]), workers=4), around
        ).status
        assert counts.workers.model_dump() == {"desired": 4, "created": 3, "running": 1, "finished": 1}

    def test_a_broken_attempts_ranks_run_no_more(self) -> None:
        around = observed(said(0, "Running"), said(1, "Failed"))
        assert decided(job(running()), around).status.workers.running == 0


class TestProgress:
    def test_rank_zero_tells_step_and_loss_and_all_ranks_their_samples(self) -> None:
        told = progress_of(decided(job(running()), training(eta_seconds=90.04, section="train", epoch=1.5)).status)
        assert (told.step, told.total_steps, told.loss, told.epoch) == (100, 1000, 0.5, 1.5)
        assert told.samples_per_second == 20.0
        assert (told.eta_seconds, told.section) == (90.0, "train")
        assert told.reported_at == to_text(NOW)

    def test_the_time_left_is_reckoned_where_nobody_tells_it(self) -> None:
        assert progress_of(decided(job(running()), training(step_seconds=0.5)).status).eta_seconds == 450

    def test_it_is_told_every_few_seconds_only(self) -> None:
        status = decided(job(running()), training()).status
        soon = decided(job(status), training(NOW + 4, step=200), NOW + 4)
        assert progress_of(soon.status).step == 100
        assert soon.requeue_after == pytest.approx(1.0)
        assert progress_of(decided(job(status), training(NOW + 5, step=200), NOW + 5).status).step == 200

    def test_a_status_that_is_written_anyway_has_the_newest(self) -> None:
        status = decided(job(running()), training()).status
        around = replace(training(NOW + 1, step=200), pods=pods(pod(1, phase="Failed", reason="Evicted")))
        after = decided(job(status), around, NOW + 1).status
        assert after.phase == "Restarting"
        assert (progress_of(after).step, progress_of(after).attempt, progress_of(after).furthest_step) == (200, 1, 200)

    def test_the_furthest_step_outlives_an_attempt_and_its_waits_dont(self) -> None:
        status = decided(
            job(running(ago=0)), training(NOW + 50, data_seconds=4.0, start_step=0, step_seconds=0.2), NOW + 50
        ).status
        first = progress_of(status)
        assert (first.attempt, first.step, first.furthest_step, first.data_seconds) == (1, 100, 100, 4.0)
        again = running(attempt=2, ago=0, progress=first.model_dump(), time_spent=status.time_spent)
        second = progress_of(decided(job(again), training(NOW + 80, 2, step=60), NOW + 80).status)
        assert (second.attempt, second.step, second.furthest_step, second.data_seconds) == (2, 60, 100, None)

    def test_a_report_without_a_step_keeps_the_attempts_last_one(self) -> None:
        status = decided(job(running()), training()).status
        later = progress_of(decided(job(status), training(NOW + 9, step=None), NOW + 9).status)
        assert (later.step, later.reported_at) == (100, to_text(NOW + 9))

    def test_a_new_section_and_the_last_word_are_told_at_once(self) -> None:
        status = decided(job(running()), training(section="train")).status
        section = decided(job(status), training(NOW + 1, section="evaluate"), NOW + 1).status
        assert progress_of(section).section == "evaluate"
        done = observed(
            said(0, "Finished"),
            said(1, "Finished"),
            progress_attempt=1,
            progress_at=NOW + 1,
            progress=ranks(step=1000, section="train", result=(("accuracy", 0.87),)),
        )
        last = progress_of(decided(job(status), done, NOW + 1).status)
        assert (last.step, last.result) == (1000, {"accuracy": 0.87})

    def test_a_loss_has_as_many_digits_as_people_read(self) -> None:
        told = progress_of(decided(job(running()), training(loss=1 / 17)).status)
        assert told.loss == 0.0588235

    def test_an_older_attempts_progress_is_no_news(self) -> None:
        status = decided(job(running(attempt=2)), training(attempt=1)).status
        assert status.progress is None

    def test_after_a_clock_was_set_back_news_goes_on(self) -> None:
        status = decided(job(running()), training()).status
        assert progress_of(decided(job(status), training(NOW - 3600, step=101), NOW - 3600).status).step == 101


class TestTimes:
    def test_milliseconds_survive_and_are_rounded_up(self) -> None:
        assert to_text(NOW + 0.1231) == "2026-11-21T04:00:00.124Z"
        assert to_seconds(to_text(NOW + 0.123)) == pytest.approx(NOW + 0.123, abs=1e-6)

    @pytest.mark.parametrize("text", [None, "", "yesterday", "2026-99-99T00:00:00Z"])
    def test_what_is_no_time_is_none(self, text: str | None) -> None:
        assert to_seconds(text) is None
        assert since(NOW, text) == 0

    def test_a_time_without_zone_is_utc(self) -> None:
        assert to_seconds("2026-11-21T04:00:00") == NOW

    def test_an_interval_is_never_negative(self) -> None:
        assert since(NOW, to_text(NOW + 10)) == 0
        assert since(NOW, to_text(NOW - 10)) == pytest.approx(10)


def test_a_status_that_somebody_spoiled_breaks_nothing() -> None:
    spoiled = running(
        attempt=2,
        pod_uids=["x"],
        attempt_start_time="soon",
        start_time="",
        next_attempt_time="?",
        pod_restart_counts=[],
    )
    assert decided(job(spoiled), observed(*all_up(2), attempt=2, given=pods())).status.attempt >= 2

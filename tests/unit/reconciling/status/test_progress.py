"""The status shows progress, is written only so often, and keeps some values across attempts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.reconciling.builders import NOW, all_up, decided, job, observed, pod, pods, running, said
from trainmaster_operator.api.times import to_text
from trainmaster_operator.api.v1alpha1 import Condition, Failure, JobStatus, Progress, RecoveryTimes, Stall
from trainmaster_operator.reconciling.observed.snapshot import Observed, StreamView
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.stream import Recovery, StallLine


def ranks(**fields: Any) -> dict[int, dict[int, RankProgress]]:
    """Returns the progress of two workers of one rank: rank 0's as given, and rank 1's a step behind."""
    first = RankProgress(**{"step": 100, "total_steps": 1000, "loss": 0.5, "samples_per_second": 10.04, **fields})
    return {1: {1: RankProgress(step=99, loss=9.0, samples_per_second=10.0)}, 0: {0: first}}


def training(at: float = NOW, attempt: int = 1, **fields: Any) -> Observed:
    return observed(
        *all_up(attempt), attempt=attempt, progress=ranks(**fields), progress_attempt=attempt, progress_at=at
    )


def progress_of(status: JobStatus) -> Progress:
    assert status.progress is not None
    return status.progress


def test_rank_zero_reports_step_and_loss_and_all_ranks_their_samples() -> None:
    shown = progress_of(decided(job(running()), training(eta_seconds=90.04, section="train", epoch=1.5)).status)
    assert (shown.step, shown.total_steps, shown.loss, shown.epoch) == (100, 1000, 0.5, 1.5)
    assert shown.samples_per_second == 20.0
    assert (shown.eta_seconds, shown.section) == (90.0, "train")
    assert shown.reported_at == to_text(NOW)


def test_the_time_left_is_reckoned_where_no_rank_reports_it() -> None:
    assert progress_of(decided(job(running()), training(step_seconds=0.5)).status).eta_seconds == 450


def test_it_is_published_every_few_seconds_only() -> None:
    status = decided(job(running()), training()).status
    soon = decided(job(status), training(NOW + 4, step=200), NOW + 4)
    assert progress_of(soon.status).step == 100
    assert soon.requeue_after == pytest.approx(1.0)
    assert progress_of(decided(job(status), training(NOW + 5, step=200), NOW + 5).status).step == 200


def test_the_last_report_before_a_silence_is_published_too() -> None:
    """Ranks that hang report nothing more, and their last report came soon after the published one."""
    status = decided(job(running()), training()).status
    silent = training(NOW + 1, step=200)
    waiting = decided(job(status), silent, NOW + 4)
    assert (progress_of(waiting.status).step, waiting.requeue_after) == (100, pytest.approx(1.0))
    shown = decided(job(status), silent, NOW + 5)
    assert progress_of(shown.status).step == 200
    after = decided(job(shown.status), silent, NOW + 6)
    assert after.status == shown.status and (after.requeue_after or 60.0) > 5.0


LINE = StallLine(1, NOW - 6, 1, "train", 0.05, 60.0, "rank 1 is at train.py:41 in step")
STALL = Stall(
    since=to_text(NOW - 6),
    section="train",
    usual_seconds=0.05,
    rank=1,
    message=LINE.message,
    restart_at=to_text(NOW + 54),
)


def test_a_stall_is_published_at_once_and_ends_with_the_leaders_next_line() -> None:
    status = decided(job(running()), training()).status
    assert progress_of(status).stall is None
    stalled = replace(training(NOW + 1, step=200), stall=LINE)
    shown = decided(job(status), stalled, NOW + 1).status
    assert (progress_of(shown).stall, progress_of(shown).step) == (STALL, 200)
    assert decided(job(shown), stalled, NOW + 2).status == shown, "nothing is written again"
    after = decided(job(shown), replace(stalled, stall=None), NOW + 3).status
    assert progress_of(after).stall is None


def test_a_stall_is_shown_of_ranks_whose_progress_the_operator_has_not_received() -> None:
    status = decided(job(running()), observed(*all_up(1), attempt=1, stall=LINE)).status
    assert (progress_of(status).stall, progress_of(status).attempt) == (STALL, 1)


def test_a_stall_without_a_limit_names_no_restart_and_none_begins_in_the_future() -> None:
    line = LINE._replace(restart_seconds=0.0, since=NOW + 60, rank=None, section="")
    shown = progress_of(decided(job(running()), replace(training(), stall=line)).status).stall
    assert shown == Stall(since=to_text(NOW), usual_seconds=0.05, message=LINE.message)


def test_a_known_stall_is_kept_until_a_leader_is_connected_and_not_beyond_its_attempt() -> None:
    status = decided(job(running()), replace(training(), stall=LINE)).status
    unconnected = replace(training(), stream=StreamView(), stall=None)
    assert progress_of(decided(job(status), unconnected, NOW + 1).status).stall == STALL, "the operator has restarted"
    other = replace(training(), stall=LINE._replace(attempt=2))
    assert progress_of(decided(job(status), other, NOW + 1).status).stall is None
    lost = replace(unconnected, pods=pods(pod(1, phase="Failed", reason="Evicted")))
    ended = decided(job(status), lost, NOW + 1).status
    assert ended.phase == "Restarting"
    assert progress_of(decided(job(ended), lost, NOW + 2).status).stall is None


def test_a_status_that_is_written_anyway_has_the_newest() -> None:
    status = decided(job(running()), training()).status
    around = replace(training(NOW + 1, step=200), pods=pods(pod(1, phase="Failed", reason="Evicted")))
    after = decided(job(status), around, NOW + 1).status
    assert after.phase == "Restarting"
    assert (progress_of(after).step, progress_of(after).attempt, progress_of(after).furthest_step) == (200, 1, 200)


def test_the_furthest_step_outlives_an_attempt_and_its_waits_dont() -> None:
    status = decided(
        job(running(ago=0)), training(NOW + 50, data_seconds=4.0, start_step=0, step_seconds=0.2), NOW + 50
    ).status
    first = progress_of(status)
    assert (first.attempt, first.step, first.furthest_step, first.data_seconds) == (1, 100, 100, 4.0)
    again = running(attempt=2, ago=0, progress=first.model_dump(), time_spent=status.time_spent)
    second = progress_of(decided(job(again), training(NOW + 80, 2, step=60), NOW + 80).status)
    assert (second.attempt, second.step, second.furthest_step, second.data_seconds) == (2, 60, 100, None)


def test_a_report_without_a_step_keeps_the_attempts_last_one() -> None:
    status = decided(job(running()), training()).status
    later = progress_of(decided(job(status), training(NOW + 9, step=None), NOW + 9).status)
    assert (later.step, later.reported_at) == (100, to_text(NOW + 9))


def test_a_new_section_and_the_last_report_are_published_at_once() -> None:
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


def test_a_loss_has_as_many_digits_as_people_read() -> None:
    shown = progress_of(decided(job(running()), training(loss=1 / 17)).status)
    assert shown.loss == 0.0588235


def test_an_older_attempts_progress_is_no_news() -> None:
    status = decided(job(running(attempt=2)), training(attempt=1)).status
    assert progress_of(status).step is None


def test_after_a_clock_was_set_back_news_goes_on() -> None:
    status = decided(job(running()), training()).status
    assert progress_of(decided(job(status), training(NOW - 3600, step=101), NOW - 3600).status).step == 101


FAST = Recovery(detected=0.0, assigned=0.1, stopped=0.05, launched=0.12, joined=0.2, restored=0.25, first_step=0.4)
SLOW = Recovery(detected=0.0, assigned=0.11, stopped=0.3, launched=0.31, joined=0.35, restored=0.36, first_step=0.41)


def status(attempt: int = 2, failed: int = 1, **fields: Any) -> JobStatus:
    failure = Failure(attempt=failed, reason="Signal", failed_at=to_text(NOW - 100), **{"step": 112, **fields})
    return running(attempt, failures=[failure])


def progressing(recoveries: dict[int, Recovery], attempt: int = 2, start: int | None = 100) -> Observed:
    progress = {worker: {worker: RankProgress(step=101, start_step=start)} for worker in range(2)}
    return observed(
        *all_up(attempt),
        attempt=attempt,
        progress=progress,
        progress_attempt=attempt,
        progress_at=NOW,
        recoveries=recoveries,
    )


def recovery_of(before: JobStatus, seen: Observed) -> RecoveryTimes | None:
    return decided(job(before), seen).status.failures[0].recovery


def test_each_part_is_up_to_the_slowest_worker_and_they_follow_each_other() -> None:
    assert recovery_of(status(), progressing({0: FAST, 1: SLOW})) == RecoveryTimes(
        seconds=0.41,
        repeated_steps=12,
        detected=0.0,
        assigned=0.11,
        stopped=0.19,
        launched=0.01,
        joined=0.04,
        restored=0.01,
        first_step=0.05,
    )


def test_a_part_that_a_worker_does_not_know_is_in_the_next_one() -> None:
    times = recovery_of(status(), progressing({0: FAST, 1: SLOW._replace(joined=None)}))
    assert times is not None
    assert (times.joined, times.restored, times.seconds) == (None, 0.05, 0.41)


def test_it_is_recorded_when_all_workers_that_time_their_way_are_through() -> None:
    assert recovery_of(status(), progressing({0: FAST, 1: SLOW._replace(first_step=None)})) is None
    assert recovery_of(status(), progressing({0: FAST})) is not None, "worker 1's pod is a new one"


def test_it_is_recorded_once_and_is_worth_a_write() -> None:
    # The progress was just written, so nothing else is due.
    before = decided(job(status()), progressing({})).status
    after = decided(job(before), progressing({0: FAST, 1: SLOW}))
    assert after.status.failures[0].recovery is not None
    again = decided(job(after.status), progressing({0: FAST, 1: SLOW._replace(first_step=0.5)}))
    assert again.status == after.status


def test_it_belongs_to_the_failure_that_led_to_the_attempt() -> None:
    assert recovery_of(status(attempt=3), progressing({0: FAST, 1: SLOW}, 3)) is None, "a resize was in between"
    assert recovery_of(status(), progressing({0: FAST, 1: SLOW}, 1)) is None, "of the attempt before"


def test_it_is_no_new_failure() -> None:
    before = decided(job(status()), progressing({})).status
    assert decided(job(before), progressing({0: FAST, 1: SLOW})).events == ()


@pytest.mark.parametrize(
    ("failed", "start", "repeated"),
    [
        (112, 100, 12),
        (100, 100, 0),
        # A survivor's saved state is newer than its last report.
        (98, 100, 0),
        # The script reports no start, so 101 is the first step that was seen.
        (112, None, 12),
        # No attempt had reported a step.
        (None, 100, 0),
    ],
)
def test_it_says_how_many_steps_are_repeated(failed: int | None, start: int | None, repeated: int) -> None:
    times = recovery_of(status(step=failed), progressing({0: FAST, 1: SLOW}, start=start))
    assert times is not None and times.repeated_steps == repeated


@pytest.mark.parametrize(
    ("published", "reported", "attempt", "step"),
    [
        # The agent of the failed rank has reported its last step; the published progress is seconds old.
        ({"attempt": 1, "step": 90, "furthest_step": 90}, 97, 1, 97),
        ({"attempt": 1, "step": 90, "furthest_step": 300}, 97, 1, 300),
        ({"attempt": 1, "step": 90, "furthest_step": 90}, 97, 0, 90),
        ({}, 97, 1, 97),
    ],
)
def test_a_failure_has_the_furthest_step_of_any_attempt(
    published: dict[str, Any], reported: int, attempt: int, step: int
) -> None:
    before = running(1, progress=Progress(**published) if published else None)
    seen = observed(
        said(0, "Running"),
        said(1, "Failed"),
        progress={0: {0: RankProgress(step=reported - 1)}, 1: {1: RankProgress(step=reported)}},
        progress_attempt=attempt,
        progress_at=NOW,
    )
    failure = decided(job(before), seen).status.failures[0]
    assert (failure.attempt, failure.step) == (1, step)


class TestNotices:
    """Ranks that are up and report nothing get a notice with the line that mends it, until something is reported."""

    def status_after(self, seconds: float, status: JobStatus | None = None, **spec: Any) -> JobStatus:
        since = Condition(type="Running", status="True", reason="AllRanksUp", last_transition_time=to_text(NOW))
        before = status or running(ago=0, conditions=[since])
        return decided(job(before, **spec), observed(*all_up()), NOW + seconds).status

    def test_a_script_without_progress_is_noticed_after_a_minute(self) -> None:
        assert self.status_after(59).progress is None
        first = self.status_after(61)
        assert first.progress == Progress(
            notice="the script reports no progress: if it is training, call `from trainloop import progress; "
            "progress.heartbeat(step)` in each step, or set spec.progress.pattern to the lines that it prints "
            "(docs/progress.md)"
        )
        assert self.status_after(600, first).progress == first.progress

    def test_the_operator_comes_back_to_write_it(self) -> None:
        since = Condition(type="Running", status="True", reason="AllRanksUp", last_transition_time=to_text(NOW))
        waiting = decided(job(running(ago=0, conditions=[since])), observed(*all_up()), NOW + 20)
        assert waiting.requeue_after == pytest.approx(40)

    @pytest.mark.parametrize(
        ("rule", "words"),
        [
            ({"preset": "lightning"}, "spec.progress.preset lightning has matched no line for 2 min"),
            ({"pattern": r"it (?P<step>\d+)"}, "spec.progress.pattern has matched no line for 2 min"),
        ],
    )
    def test_a_rule_that_matches_nothing_is_named_after_two_minutes(self, rule: dict[str, str], words: str) -> None:
        assert self.status_after(119, progress=rule).progress is None
        assert words in str(progress_of(self.status_after(121, progress=rule)).notice)

    def test_nothing_is_noticed_if_the_job_wants_no_progress(self) -> None:
        assert self.status_after(600, progress={"preset": "none"}).progress is None

    def test_it_goes_with_the_first_report(self) -> None:
        noticed = self.status_after(61)
        assert progress_of(decided(job(noticed), training(NOW + 70), NOW + 70).status).notice is None

    def test_it_goes_when_the_job_ends(self) -> None:
        ends = observed(*(said(worker, "Finished", at=NOW + 90) for worker in (0, 1)))
        ended = decided(job(self.status_after(61)), ends, NOW + 91).status
        assert (ended.phase, ended.progress) == ("Succeeded", None)

    def test_a_job_whose_earlier_attempt_reported_steps_is_not_noticed(self) -> None:
        first = decided(job(running()), training()).status
        later = running(2, ago=0, progress=first.progress)
        assert progress_of(decided(job(later), observed(*all_up(2), attempt=2), NOW + 900).status).notice is None

    def test_without_the_leaders_stream_nothing_is_known(self) -> None:
        noticed = self.status_after(61)
        alone = replace(observed(*all_up()), stream=StreamView())
        assert decided(job(noticed), alone, NOW + 70).status.progress == noticed.progress
        assert decided(job(running(ago=0)), alone, NOW + 900).status.progress is None

"""The status accounts for a job's time. Each history lists observations and the accounts that follow from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.reconciling.builders import NOW, container, decided, job, observed, pod, pods, running, said
from tests.unit.reconciling.world import check_time
from trainmaster_operator.api.times import to_seconds, to_text
from trainmaster_operator.api.v1alpha1 import TIME_CATEGORIES, Condition, JobStatus, Stall
from trainmaster_operator.reconciling import decide
from trainmaster_operator.reconciling.observed.snapshot import Observed, PodView, StreamView
from trainmaster_operator.rendering import Settings
from trainmaster_operator.wire.ranks import RankProgress


def spent(status: JobStatus) -> dict[str, float]:
    """Returns the categories of time that aren't zero."""
    assert status.time_spent is not None
    return {name: seconds for name in TIME_CATEGORIES if (seconds := getattr(status.time_spent, name))}


def trained(step: int, at: float, attempt: int = 1, *reports: Any, **fields: Any) -> Observed:
    """Returns rank 0's progress at a time; each step takes a second."""
    reported = RankProgress(**{"step": step, "total_steps": 1000, "step_seconds": 1.0, "section": "train", **fields})
    up = tuple(said(worker, "Running", attempt, ago=50) for worker in (0, 1))
    return observed(
        *(reports or up), attempt=attempt, progress={0: {0: reported}}, progress_attempt=attempt, progress_at=NOW + at
    )


def go_on(status: JobStatus, around: Observed, at: float) -> JobStatus:
    return decided(job(status, workers=2), around, NOW + at).status


def started(**fields: Any) -> JobStatus:
    """Returns a running attempt 1, whose time is accounted for from NOW and step 100."""
    status = running(1, ago=0, start_time=to_text(NOW), **fields)
    return go_on(status, trained(100, 0.0), 0.0)


def fresh(worker: int, made: float, scheduled: float | None, ran: float | None) -> PodView:
    at = None if scheduled is None else NOW + scheduled
    return pod(
        worker,
        created_at=NOW + made,
        scheduled_at=at,
        node=None if at is None else f"node-{worker}",
        worker_container=container(started_at=NOW + ran) if ran is not None else None,
    )


class TestWithoutAnOperator:
    """An operator saw 100 steps until NOW, and the next one begins 600 s later."""

    def ended(self, state: str, **fields: Any) -> Observed:
        ends = tuple(said(worker, state, at=NOW + 590, **fields) for worker in (0, 1))
        return replace(observed(*ends), since=NOW + 600)

    def test_an_attempt_that_finished_meanwhile_is_unobserved_and_no_loss(self) -> None:
        status = go_on(go_on(started(), trained(110, 10.0), 10.0), self.ended("Finished"), 601)
        assert status.phase == "Succeeded"
        assert spent(status) == {"productive": 10, "unobserved": 580, "finish": 11}
        assert status.progress is not None and status.progress.goodput == round(10 / 21, 3)

    def test_an_attempt_that_failed_meanwhile_is_no_stall(self) -> None:
        before = started()
        status = go_on(before, self.ended("Failed"), 601)
        assert spent(status) == {**spent(before), "unobserved": 590, "restart": 11}

    def test_what_the_leader_kept_is_caught_up(self) -> None:
        before = started()
        status = go_on(before, replace(trained(650, 601), since=NOW + 600), 602)
        assert spent(status)["productive"] - spent(before).get("productive", 0) == 601

    def test_nothing_is_booked_until_the_leader_can_have_spoken(self) -> None:
        silent = running(1, ago=0, start_time=to_text(NOW))
        around = replace(observed(*(said(worker, "Running", at=NOW) for worker in (0, 1))), since=NOW + 600)
        status = go_on(silent, replace(around, stream=StreamView()), 601)
        assert status == silent or "load" not in spent(status)
        caught_up = go_on(status, replace(trained(500, 603, start_step=0), since=NOW + 600), 604)
        assert spent(caught_up)["productive"] == 500


class TestBeforeTheFirstStep:
    def test_the_slowest_worker_decides_how_long_each_part_took(self) -> None:
        status = decided(job(), observed(given=())).status
        both = (fresh(0, 2, 3, 10), fresh(1, 1, 7, 20))
        up = (said(0, "Running", ago=-21), said(1, "Running", ago=-26))
        status = go_on(status, observed(*up, given=both), 30)
        assert status.phase == "Running"
        assert spent(status) == {"queue": 2, "schedule": 5, "pull": 13, "rendezvous": 6, "load": 4}
        # Ten steps of a second each were done when the first report arrived.
        status = go_on(status, trained(10, 50, start_step=0), 51)
        assert spent(status) == {
            "queue": 2, "schedule": 5, "pull": 13, "rendezvous": 6, "load": 14, "productive": 10,
        }  # fmt: skip

    def test_a_script_that_says_only_when_its_first_step_was_done_has_loaded_until_then(self) -> None:
        """`trainloop.recovery` doesn't report how long a step takes. The steps after the first took 20 s together."""
        status = running(1, ago=0, start_time=to_text(NOW))
        reported = {"step_seconds": None, "start_step": 60}
        slow = go_on(status, trained(71, 30, first_step_at=NOW + 10, **reported), 30)
        assert spent(slow) == {"load": 8, "productive": 22}
        single = go_on(status, trained(61, 10, first_step_at=NOW + 10, **reported), 11)
        assert spent(single) == {"load": 10}
        late = go_on(status, trained(71, 30, first_step_at=NOW + 31, **reported), 30)
        assert spent(late) == {"load": 30}, "its clock is ahead"

    def test_what_hasnt_happened_yet_holds_everything_up(self) -> None:
        status = decided(job(), observed(given=())).status
        status = go_on(status, observed(given=(fresh(0, 1, 2, 3), fresh(1, 1, None, None))), 40)
        assert spent(status) == {"queue": 1, "schedule": 39}
        status = go_on(status, observed(given=(fresh(0, 1, 2, 3), fresh(1, 1, 45, None))), 60)
        assert spent(status) == {"queue": 1, "schedule": 44, "pull": 15}

    def test_accounting_alone_is_no_reason_to_write(self) -> None:
        status = started()
        assert go_on(status, trained(100, 0.0), 4.0) == status


class TestSteps:
    def test_new_steps_are_productive_and_what_the_loop_waited_is_not(self) -> None:
        status = started()
        status = go_on(status, trained(150, 60, data_seconds=4, checkpoint_seconds=6), 60)
        assert spent(status) == {"productive": 50, "data": 4, "checkpoint": 6}
        status = go_on(status, trained(160, 80, data_seconds=4, checkpoint_seconds=6, evaluate_seconds=8.5), 80)
        assert spent(status) == {"productive": 61.5, "data": 4, "checkpoint": 6, "evaluate": 8.5}

    def test_a_step_that_takes_long_is_booked_when_it_is_done(self) -> None:
        status = go_on(started(), trained(100, 40, loss=0.5), 40)
        assert spent(status) == {}
        assert spent(go_on(status, trained(101, 90), 90)) == {"productive": 90}

    def test_sections_are_booked_where_a_script_keeps_no_counters(self) -> None:
        status = go_on(started(), trained(110, 10, section="evaluate"), 10)
        status = go_on(status, trained(110, 40, section="train"), 40)
        assert spent(status) == {"productive": 10, "evaluate": 30}

    def test_after_a_restart_steps_up_to_the_furthest_are_done_again(self) -> None:
        status = go_on(started(), trained(150, 50), 50)
        # Two seconds of work are lost, the failure is detected a second later, and the next attempt opens at once.
        failed = trained(150, 50, 1, said(0, "Running"), said(1, "Failed", ago=-52))
        status = go_on(status, failed, 53)
        assert (status.phase, status.attempt) == ("Starting", 2)
        assert spent(status) == {"productive": 50, "recompute": 2, "restart": 1}
        up = (said(0, "Running", 2, ago=-54), said(1, "Running", 2, ago=-56))
        status = go_on(status, replace(trained(0, 0, 2, *up), progress={}, progress_at=None), 56)
        # The checkpoint was made at step 130, so 20 steps had been done before.
        status = go_on(status, trained(160, 96, 2, start_step=130), 96)
        assert spent(status) == {"productive": 60, "recompute": 22, "restart": 1, "rendezvous": 3, "load": 10}

    def test_steps_that_nobody_reported_before_the_success_were_done(self) -> None:
        done = trained(995, 1, 1, said(0, "Finished", ago=-8), said(1, "Finished", ago=-9))
        status = go_on(go_on(started(), trained(990, 0.5), 0.5), done, 10)
        assert status.phase == "Succeeded"
        assert spent(status) == {"productive": 9, "finish": 1}
        # The job may also have stopped early, or have counted its steps from 0.
        assert status.progress is not None
        assert (status.progress.step, status.progress.furthest_step) == (995, 995)


class TestFailures:
    def test_a_hang_is_a_stall_from_the_last_step_on(self) -> None:
        status = go_on(started(), trained(110, 10), 10)
        hung = trained(110, 10, 1, said(0, "Stopped", ago=-81), said(1, "Failed", ago=-80, reason="Hung"))
        assert spent(go_on(status, hung, 81)) == {"productive": 10, "stall": 70, "restart": 1}

    def test_the_time_until_an_exception_is_reported_belongs_to_the_failure(self) -> None:
        """On a busy machine, Python and torch took 15 s to exit, which once was a stall."""
        status = go_on(started(), trained(110, 10), 10)
        lost = trained(110, 10, 1, said(0, "Failed", ago=-25))
        assert spent(go_on(status, lost, 26)) == {"productive": 10, "recompute": 15, "restart": 1}

    def test_a_known_stall_is_a_stall_however_it_ends(self) -> None:
        status = go_on(started(), trained(110, 10), 10)
        assert status.progress is not None
        progress = status.progress.model_copy(update={"stall": Stall(since=to_text(NOW + 10))})
        status = status.model_copy(update={"progress": progress})
        lost = trained(110, 10, 1, said(0, "Failed", ago=-610))
        assert spent(go_on(status, lost, 610)) == {"productive": 10, "stall": 600}

    def test_back_off_is_restart_and_a_new_pods_way_is_booked_apart(self) -> None:
        status = go_on(started(), trained(110, 10), 10)
        gone = replace(trained(110, 10), pods=pods(pod(1, deleting=True, deadline=NOW + 40)))
        status = go_on(status, gone, 12)
        assert status.phase == "Restarting"
        status = go_on(status, observed(given=(pod(0), replace(fresh(1, 20, None, None), uid="new"))), 21)
        assert (status.phase, status.attempt) == ("Pending", 2)
        back = (pod(0), replace(fresh(1, 20, 26, 30), uid="new"))
        up = (said(0, "Running", 2, ago=-22), said(1, "Running", 2, ago=-33, uid="new"))
        status = go_on(status, observed(*up, given=back, attempt=2), 33)
        assert spent(status) == {
            "productive": 10, "recompute": 2, "restart": 8, "schedule": 6, "pull": 4, "rendezvous": 3,
        }  # fmt: skip

    def test_suspended_time_is_booked_and_left_out_of_goodput(self) -> None:
        status = go_on(started(), trained(150, 50), 50)
        status = decided(job(status, runPolicy={"suspend": True}), trained(150, 50), NOW + 50).status
        status = go_on(status, observed(), 150)
        assert status.phase == "Restarting" or status.attempt == 2
        assert spent(status) == {"productive": 50, "suspended": 100}
        assert status.progress is not None and status.progress.goodput == 1.0


class TestClocks:
    def test_books_wait_for_a_clock_that_was_set_back(self) -> None:
        status = go_on(started(), trained(150, 50), 50)
        back = go_on(status, trained(160, 20), 20)
        assert spent(back) == {"productive": 50}
        assert spent(go_on(back, trained(170, 60), 60)) == {"productive": 60}

    def test_a_clock_that_was_days_ahead_is_made_up_for(self) -> None:
        status = go_on(started(), trained(150, 900_000), 900_000)
        status = go_on(status, trained(160, 100), 100)
        assert spent(status) == {"productive": 100}


STEP = st.fixed_dictionaries(
    {
        "wait": st.sampled_from([0.0, 0.0007, 0.4, 7.0, 300.0, -2.0, -9000.0, 9000.0]),
        "reported": st.booleans(),
        "step": st.integers(-30, 60),
        "behind": st.floats(-5, 20),
        "section": st.sampled_from(["setup", "train", "evaluate", "checkpoint", None]),
        "waited": st.floats(0, 40),
        "step_seconds": st.sampled_from([None, 0.0, 0.5, 1e300, -1.0]),
        "first_step_ago": st.sampled_from([None, 0.0, 3.0, 1e300, -1e300]),
        "states": st.lists(
            st.sampled_from([None, "Starting", "Running", "Failed", "Stopped", "Finished"]), min_size=2, max_size=2
        ),
        "reason": st.sampled_from(["Error", "Hung"]),
        "pods": st.lists(st.sampled_from(["none", "made", "scheduled", "runs", "new"]), min_size=2, max_size=2),
        "suspend": st.booleans(),
    }
)


@settings(max_examples=settings.default.max_examples * 3 // 5)
@given(history=st.lists(STEP, min_size=1, max_size=25), elastic=st.booleans())
def test_in_any_history_the_categories_are_the_time_since_the_start_and_only_grow(
    history: list[dict[str, Any]], elastic: bool
) -> None:
    spec: dict[str, Any] = {"failurePolicy": {"maxRestarts": 1000}}
    if elastic:
        spec["elastic"] = {"minWorkers": 1, "maxWorkers": 2}
    status, now, step = JobStatus(), NOW, 0
    for moment in history:
        now += moment["wait"]
        step = max(step + moment["step"], 0)
        given_pods = []
        for worker, state in enumerate(moment["pods"]):
            made, scheduled = now - NOW - moment["behind"], None if state == "made" else now - NOW
            view = fresh(worker, made, scheduled, now - NOW + 1 if state in ("runs", "new") else None)
            if state != "none":
                given_pods.append(replace(view, uid=f"new-{now}") if state == "new" else view)
        reports = [
            said(worker, state, status.attempt, ago=NOW - now + moment["behind"], uid="", reason=moment["reason"])
            for worker, state in enumerate(moment["states"])
            if state is not None
        ]
        reported = RankProgress(
            step=step,
            section=moment["section"],
            data_seconds=moment["waited"],
            step_seconds=moment["step_seconds"],
            first_step_at=None if moment["first_step_ago"] is None else now - moment["first_step_ago"],
        )
        around = observed(*reports, given=given_pods, attempt=status.attempt)
        if moment["reported"]:
            around = replace(
                around,
                progress={0: {0: reported}},
                progress_attempt=status.attempt,
                progress_at=now - moment["behind"],
            )
        wanted = job(status, **spec, runPolicy={"suspend": moment["suspend"]})
        after = decide(wanted, around, now, Settings()).status
        check_time(status, after)
        if after.time_spent is not None and (
            status.time_spent is None or after.time_spent.until != status.time_spent.until
        ):
            assert (to_seconds(after.time_spent.until) or 0.0) < now + 0.002, "time is booked that hasn't been"
        status = JobStatus.model_validate(after.model_dump(by_alias=True))


class TestAScriptThatReportsNothing:
    """Nobody knows whether it loads or trains, so its time is neither."""

    def silent(self, *ends: Any, at: float, status: JobStatus | None = None) -> JobStatus:
        since = Condition(type="Running", status="True", reason="AllRanksUp", last_transition_time=to_text(NOW))
        before = status or running(1, ago=0, start_time=to_text(NOW), conditions=[since])
        up = tuple(said(worker, "Running", ago=0) for worker in (0, 1))
        return go_on(before, observed(*(ends or up)), at)

    def test_a_minute_after_the_ranks_are_up_the_time_is_unreported(self) -> None:
        assert spent(self.silent(at=61)) == {"unreported": 61}

    def test_it_was_load_if_a_step_comes_late(self) -> None:
        status = go_on(self.silent(at=61), trained(1, 101.0, start_step=0), 101.0)
        assert spent(status) == {"load": 100, "productive": 1}

    def test_a_short_script_that_succeeds_is_unreported_too(self) -> None:
        ends = [said(worker, "Finished", at=NOW + 20) for worker in (0, 1)]
        status = self.silent(*ends, at=21)
        assert (status.phase, spent(status)) == ("Succeeded", {"unreported": 20, "finish": 1})

    def test_a_script_that_soon_fails_was_loading(self) -> None:
        ends = [said(worker, "Failed", at=NOW + 5) for worker in (0, 1)]
        assert "unreported" not in spent(self.silent(*ends, at=6))

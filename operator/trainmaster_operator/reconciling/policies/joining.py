"""Ranks that a continued attempt is without join it when they have started again; until then the others train on.

A worker that doesn't come back ends nothing. One that fails while it starts costs what it would cost in any attempt,
and is tried again after the back-off; where it has no restart left, or would end the job, it simply stays away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile

from trainmaster_operator.api.times import duration, since
from trainmaster_operator.api.v1alpha1 import Failure
from trainmaster_operator.reconciling.observed.lineup import can_open, continued_workers, desired_workers, next_workers
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.observed.snapshot import is_alive, is_unresponsive_report
from trainmaster_operator.reconciling.policies.attempts import end_attempt
from trainmaster_operator.reconciling.policies.attribution import cause_of, failure_of
from trainmaster_operator.reconciling.policies.backoff import PAUSE_AFTER_SHORT_LIFE, delay
from trainmaster_operator.reconciling.policies.continuing import (
    continued,
    has_formed,
    members_left,
    opened,
    ready_ranks,
    training,
)
from trainmaster_operator.reconciling.policies.failure_rules import choose_response
from trainmaster_operator.reconciling.policies.opening import open_attempt
from trainmaster_operator.reconciling.policies.spares import JOINED_WITHIN
from trainmaster_operator.reconciling.policies.startup import pod_problem
from trainmaster_operator.reconciling.transition import Transition
from trainmaster_operator.wire.report import Report

# Seconds within which it is known what the fault has cost that an attempt follows; ranks that are ready then join
# together.
RECOVERED_WITHIN = 2.0
# Seconds in which the ranks of a continued attempt have formed their group. It takes them a fraction of one, but each
# comes at the end of the step, evaluation or save that it is in.
FORMED_WITHIN = 180.0
# A rank that has hung so often in a row before it could join is started once more together with all others.
HANGS_BEFORE_ALL_START = 2


def leave_out(situation: Situation) -> Transition | None:
    """Continues without workers of an elastic job that the user doesn't ask for any more."""
    if situation.spec.elastic is None or not situation.running:
        return None
    if cause_of(situation, situation.status.attempt) is not None:
        # What has failed is answered first.
        return None
    wanted = desired_workers(situation)
    going = frozenset(uid for worker, uid in situation.worker_uids.items() if worker not in wanted)
    members = members_left(situation, going) if going else ""
    return None if isinstance(members, str) else opened(situation, members, continued(situation, members))


def fall_back(situation: Situation) -> Transition | None:
    """Starts all ranks anew where those of a continued attempt don't form their group."""
    due = falls_back_at(situation)
    if due is None or situation.now < due:
        return None
    why = f"attempt {situation.status.attempt} couldn't continue: its group didn't form within {FORMED_WITHIN:g} s"
    workers = next_workers(situation)
    if can_open(situation, workers):
        transition = open_attempt(situation, workers, "AttemptOpened")
        return replace(transition, message=f"{why}; {transition.message}")
    return Transition("Restarting", "WaitingForPods", f"{why}; waiting for the pods of all workers")


def falls_back_at(situation: Situation) -> float | None:
    """Returns when the ranks of a continued attempt have had their time to form a group; None where they have one."""
    if situation.status.continues is None or not situation.running or not situation.has_leaders_reports:
        return None
    if has_formed(situation):
        return None
    return situation.now - since(situation.now, situation.status.attempt_start_time) + FORMED_WITHIN


def join(situation: Situation) -> Transition | None:
    """Opens the next attempt with ranks that are ready, or with a spare that is to start in an absent one's place."""
    if not _lacks_ranks(situation) or situation.finished or not has_formed(situation):
        return None
    ready, age = ready_ranks(situation), since(situation.now, situation.status.attempt_start_time)
    if age < RECOVERED_WITHIN and _recovers(situation):
        return None
    stands_in = age >= JOINED_WITHIN and continued_workers(situation, situation.members.absent) != situation.workers
    members = members_left(situation, ready=ready) if ready or stands_in else ""
    if isinstance(members, str):
        return None
    transition = opened(situation, members, continued(situation, members))
    if not ready:
        return transition
    before = situation.members.shown(len(desired_workers(situation)))
    joined = f"continued with {before} for {duration(age)} until {situation.members.named(ready)} joined"
    return replace(transition, reason="Joined", message=f"{transition.message}; {joined}")


def retry(situation: Situation) -> Transition | None:
    """Has ranks start once more that failed before they could join, or all ranks where some hang again and again: they
    may wait for those that train."""
    for report, due in _failed_to_join(situation):
        if due is None or situation.now < due:
            continue
        cause = failure_of(situation, report)
        hung = _hangs(situation, cause)
        if hung >= HANGS_BEFORE_ALL_START and can_open(situation, next_workers(situation)):
            return end_attempt(situation, cause, anew=f"it hung {hung} times in a row before it could join the others")
        if not isinstance(members_left(situation), str):
            return end_attempt(situation, cause)
    return None


def retries_at(situation: Situation) -> float | None:
    """Returns when ranks may join, when some that failed before start once more, or a spare in a worker's place."""
    times = [due for _, due in _failed_to_join(situation) if due is not None]
    if _lacks_ranks(situation) and _recovers(situation):
        times.append(situation.now - since(situation.now, situation.status.attempt_start_time) + RECOVERED_WITHIN)
    if _lacks_ranks(situation) and situation.has_spares:
        times.append(situation.now - since(situation.now, situation.status.attempt_start_time) + JOINED_WITHIN)
    return min((due for due in times if due > situation.now), default=None)


def follow(situation: Situation) -> Transition | None:
    """Says who trains, and what the absent ones wait for, while a continued attempt runs."""
    if situation.status.continues is None or situation.status.phase != "Running":
        return None
    if not _lacks_ranks(situation):
        return Transition("Running", "", "")
    failed = {report.worker: failure_of(situation, report) for report, _ in _failed_to_join(situation)}
    missing = dict[int, str]()
    for worker in situation.members.incomplete:
        pod = situation.pods.get(worker)
        problem = pod_problem(pod) if pod is not None and is_alive(pod) else None
        if worker in failed:
            missing[worker] = f"couldn't join: {failed[worker].message}"
        elif worker in desired_workers(situation):
            # What keeps it changes its words with every try, so only its kind is written down.
            missing[worker] = "is starting" if problem is None else f"doesn't start ({problem.reason})"
    message = training(situation, situation.members, missing, attempt=situation.status.attempt)
    return Transition("Running", "Continued", message)


def _recovers(situation: Situation) -> bool:
    """Returns whether the attempt follows a fault of which it isn't known yet what it has cost."""
    failure = situation.last_failure
    return failure is not None and failure.attempt == situation.status.attempt - 1 and failure.recovery is None


def _lacks_ranks(situation: Situation) -> bool:
    return situation.running and situation.status.continues is not None and bool(situation.status.absent_ranks)


def _failed_to_join(situation: Situation) -> Iterator[tuple[Report, float | None]]:
    """Yields what was reported of ranks that ended before they could join, and when they are to start once more, if
    ever."""
    if not _lacks_ranks(situation):
        return
    for worker in situation.members.incomplete:
        report, pod = situation.reports.get(worker), situation.pods.get(worker)
        if report is None or not _speaks_of_absent_ranks(situation, report):
            continue
        if pod is None or not is_alive(pod) or pod.uid != report.uid:
            # Another pod comes, and starts by itself.
            continue
        if is_unresponsive_report(report.reason, report.exit_code):
            continue
        restarts, cause = situation.status.restarts, failure_of(situation, report)
        response = choose_response(situation.spec, cause, restarts)
        if response.answer == "Fail":
            yield report, None
            continue
        wait = delay(situation.spec, response.answer, cause=cause, restarts=restarts + 1, lived=0.0)
        yield report, min(report.at, situation.now) + max(wait, PAUSE_AFTER_SHORT_LIFE)


def _speaks_of_absent_ranks(situation: Situation, report: Report) -> bool:
    """Returns whether a report says how ranks ended that were to join: the end of all of a worker, or the failure of
    one beside others that train."""
    if report.worker in situation.members.absent:
        return report.state in ("Failed", "Stopped")
    return not report.ended and bool(report.reason) and report.rank in situation.members.absent_ranks


def _hangs(situation: Situation, cause: Failure) -> int:
    """Returns how often in a row a worker's ranks have hung before they could join, the last time by this cause."""
    reasons, attempt = [cause.reason], cause.attempt
    for failure in situation.status.failures:
        attempt -= 1
        if failure.attempt != attempt:
            # Some have joined.
            break
        if failure.worker == cause.worker:
            reasons.append(failure.reason)
    # The oldest failure is why they are absent.
    before = reasons[:-1] if len(reasons) > 1 else reasons
    return len(list(takewhile(lambda reason: reason == "Hung", before)))

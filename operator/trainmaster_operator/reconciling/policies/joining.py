"""Absent ranks join a continued attempt after they have restarted. Until then, the others train without them.

If a worker doesn't return, the others keep training. If a worker fails while it starts, the failure counts as in any
other attempt, and the worker is restarted after the back-off. If no restart is left, or the failure would end the job,
the worker stays absent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile

from trainmaster_operator.api.times import duration, since
from trainmaster_operator.api.v1alpha1 import Failure
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.observed.snapshot import is_unresponsive_report
from trainmaster_operator.reconciling.observed.spares import can_open, continued_workers, desired_workers, next_workers
from trainmaster_operator.reconciling.policies import continuing
from trainmaster_operator.reconciling.policies.attempts import end_attempt
from trainmaster_operator.reconciling.policies.attribution import cause_of, failure_of
from trainmaster_operator.reconciling.policies.backoff import PAUSE_AFTER_SHORT_LIFE, delay
from trainmaster_operator.reconciling.policies.failure_rules import choose_response
from trainmaster_operator.reconciling.policies.missing_workers import JOINED_WITHIN
from trainmaster_operator.reconciling.policies.opening import open_attempt
from trainmaster_operator.reconciling.policies.startup import pod_problems
from trainmaster_operator.reconciling.transition import Transition
from trainmaster_operator.wire.report import Report

# Maximum seconds to wait until the cost of the preceding fault is known. Ranks that are ready by then join together.
RECOVERED_WITHIN = 2.0
# Seconds in which a continued attempt must form its group. Forming takes a fraction of a second, but each rank first
# finishes its step, evaluation or save.
FORMED_WITHIN = 180.0
# If a rank has hung this often in a row before joining, all ranks restart together.
HANGS_BEFORE_ALL_START = 2


def leave_out(situation: Situation) -> Transition | None:
    """Continues without workers of an elastic job that the user no longer wants."""
    if situation.spec.elastic is None or not situation.running:
        return None
    if cause_of(situation, situation.status.attempt) is not None:
        # The response to a failure comes first.
        return None
    wanted = desired_workers(situation)
    going = frozenset(uid for worker, uid in situation.worker_uids.items() if worker not in wanted)
    members = continuing.members_left(situation, going) if going else ""
    return None if isinstance(members, str) else continuing.opened(situation, members)


def fall_back(situation: Situation) -> Transition | None:
    """Restarts all ranks if a continued attempt doesn't form its group in time."""
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
    """Returns the deadline for a continued attempt to form its group, or None if the group has formed."""
    if situation.status.continues is None or not situation.running or not situation.has_leaders_reports:
        return None
    if continuing.has_formed(situation):
        return None
    return situation.after(situation.status.attempt_start_time, FORMED_WITHIN)


def join(situation: Situation) -> Transition | None:
    """Opens the next attempt with ranks that are ready to join, or with a spare in an absent worker's place."""
    if not _lacks_ranks(situation) or situation.finished or not continuing.has_formed(situation):
        return None
    ready, age = continuing.ready_ranks(situation), since(situation.now, situation.status.attempt_start_time)
    if age < RECOVERED_WITHIN and _recovers(situation):
        return None
    stands_in = age >= JOINED_WITHIN and continued_workers(situation, situation.members.absent) != situation.workers
    members = continuing.members_left(situation, ready=ready) if ready or stands_in else ""
    if isinstance(members, str):
        return None
    transition = continuing.opened(situation, members)
    if not ready:
        return transition
    before = situation.members.shown(len(desired_workers(situation)))
    joined = f"continued with {before} for {duration(age)} until {situation.members.named(ready)} joined"
    return replace(transition, reason="Joined", message=f"{transition.message}; {joined}")


def retry(situation: Situation) -> Transition | None:
    """Restarts ranks that failed before they could join, or all ranks if some repeatedly hang before joining.

    All ranks restart then, because a rank that hangs may be waiting for the training ranks.
    """
    for report, due in _failed_to_join(situation):
        if due is None or situation.now < due:
            continue
        cause = failure_of(situation, report)
        hung = _hangs(situation, cause)
        if hung >= HANGS_BEFORE_ALL_START and can_open(situation, next_workers(situation)):
            return end_attempt(situation, cause, anew=f"it hung {hung} times in a row before it could join the others")
        if not isinstance(continuing.members_left(situation), str):
            return end_attempt(situation, cause)
    return None


def retries_at(situation: Situation) -> float | None:
    """Returns the next time at which ranks may join or restart, or a spare may take an absent worker's place."""
    times = [due for _, due in _failed_to_join(situation) if due is not None]
    if _lacks_ranks(situation) and _recovers(situation):
        times.append(situation.after(situation.status.attempt_start_time, RECOVERED_WITHIN))
    if _lacks_ranks(situation) and situation.has_spares:
        times.append(situation.after(situation.status.attempt_start_time, JOINED_WITHIN))
    return min((due for due in times if due > situation.now), default=None)


def follow(situation: Situation) -> Transition | None:
    """Reports which ranks train in a continued attempt, and why the others are absent."""
    if situation.status.continues is None or situation.status.phase != "Running":
        return None
    if not _lacks_ranks(situation):
        return Transition("Running", "", "")
    failed = {report.worker: failure_of(situation, report) for report, _ in _failed_to_join(situation)}
    missing = dict[int, str]()
    for worker in situation.members.incomplete:
        pod = situation.living.get(worker)
        problem = next(pod_problems(pod, situation.observed.init_output), None) if pod is not None else None
        if worker in failed:
            missing[worker] = f"couldn't join: {failed[worker].message}"
        elif worker in desired_workers(situation):
            # The problem's message can change with every try, so only the reason is shown.
            missing[worker] = "is starting" if problem is None else f"doesn't start ({problem.reason})"
    message = continuing.training(situation, situation.members, missing, attempt=situation.status.attempt)
    return Transition("Running", "Continued", message)


def _recovers(situation: Situation) -> bool:
    """Returns whether the attempt follows a fault whose recovery time isn't known yet."""
    failure = situation.last_failure
    return failure is not None and failure.attempt == situation.status.attempt - 1 and failure.recovery is None


def _lacks_ranks(situation: Situation) -> bool:
    return situation.running and situation.status.continues is not None and bool(situation.status.absent_ranks)


def _failed_to_join(situation: Situation) -> Iterator[tuple[Report, float | None]]:
    """Yields each report of ranks that ended before they could join, and the time at which they restart, or None."""
    if not _lacks_ranks(situation):
        return
    for worker in situation.members.incomplete:
        report, pod = situation.reports.get(worker), situation.living.get(worker)
        if report is None or not _speaks_of_absent_ranks(situation, report) or is_unresponsive_report(report):
            continue
        if pod is None or pod.uid != report.uid:
            # The ranks of a new pod start by themselves, without this policy.
            continue
        restarts, cause = situation.status.restarts, failure_of(situation, report)
        response = choose_response(situation.spec, cause, restarts)
        if response.answer == "Fail":
            yield report, None
            continue
        wait = delay(situation.spec, response.answer, cause=cause, restarts=restarts + 1, lived=0.0)
        yield report, min(report.at, situation.now) + max(wait, PAUSE_AFTER_SHORT_LIFE)


def _speaks_of_absent_ranks(situation: Situation, report: Report) -> bool:
    """Returns whether a report is about ranks that ended before joining.

    Either all ranks of the worker are absent, or one rank is absent while the worker's others train.
    """
    if report.worker in situation.members.absent:
        return report.state in ("Failed", "Stopped")
    return not report.ended and bool(report.reason) and report.rank in situation.members.absent_ranks


def _hangs(situation: Situation, cause: Failure) -> int:
    """Returns how often in a row a worker's ranks hung before joining, including this cause."""
    reasons, attempt = [cause.reason], cause.attempt
    for failure in situation.status.failures:
        attempt -= 1
        if failure.attempt != attempt:
            # In the attempt between these two failures, some ranks joined.
            break
        first, count = failure.first_attempt or failure.attempt, failure.count or 1
        is_in_a_row = failure.attempt - first + 1 == count
        if failure.worker == cause.worker:
            reasons += [failure.reason] * (count if is_in_a_row else 1)
        if not is_in_a_row:
            break
        attempt = first
    # The oldest failure made the ranks absent, so it isn't a failure to join.
    before = reasons[:-1] if len(reasons) > 1 else reasons
    return len(list(takewhile(lambda reason: reason == "Hung", before)))

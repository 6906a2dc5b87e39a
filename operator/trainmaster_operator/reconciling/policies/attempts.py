"""Opens attempts, ends them when they fail, and opens the next ones.

If all pods exist and there is no back-off, the next attempt opens in the pass that detects the failure, even if only
bystanders have reported. For SETTLE_SECONDS afterwards, a stronger cause (the culprit's own report, a lost pod)
replaces the recorded cause and corrects the counts. Ending the job can't be corrected, so the operator first waits for
SETTLE_SECONDS. If a worker hasn't reported, it waits until Kubernetes could have detected a lost node.

After a pod is lost, exactly one attempt opens: at once if a spare is ready, or else when every worker has a living pod.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from trainmaster_operator.api.reasons import Strength, known_reason
from trainmaster_operator.api.times import since, to_text
from trainmaster_operator.api.v1alpha1 import Failure
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.observed.snapshot import PodView, is_unresponsive_report
from trainmaster_operator.reconciling.observed.spares import alone_until, can_open, desired_workers, next_workers
from trainmaster_operator.reconciling.policies import backoff, continuing, opening
from trainmaster_operator.reconciling.policies.attribution import cause_of
from trainmaster_operator.reconciling.policies.failure_rules import FailureResponse, choose_response
from trainmaster_operator.reconciling.policies.quarantine import with_failure, without_failure
from trainmaster_operator.reconciling.policies.repeated import repeats_start, with_recorded, without_newest
from trainmaster_operator.reconciling.transition import (
    MAX_MESSAGE_CHARACTERS,
    NEW_STARTUP,
    NO_CHANGE,
    NO_WAIT,
    StatusChange,
    Transition,
)


def create(situation: Situation) -> Transition | None:
    """Opens attempt 1 of a new job, or of a job that was suspended before it ever ran.

    The pods' template contains attempt 1 from the start.
    """
    if situation.status.attempt > 0:
        return None
    started = to_text(situation.now)
    own = (child.assignment for child in situation.observed.children if child.owner_uid == situation.job.uid)
    assignments = (*own, *(pod.assignment for pod in situation.pods.values()))
    known = max((assignment.attempt for assignment in assignments if assignment is not None), default=0)
    if known > 0:
        # The status was lost, for example because a restored backup lacks it. Agents only follow a higher attempt.
        message = f"the status was lost; attempt {known} is replaced when all pods are there"
        change = StatusChange(attempt=known, start_time=started, attempt_start_time=started)
        return Transition("Restarting", "StatusLost", message, change)
    return Transition(
        "Pending",
        "Created",
        f"waiting for the pods of {opening.count_workers(len(desired_workers(situation)))}",
        StatusChange(
            attempt=1,
            start_time=started,
            attempt_start_time=started,
            pod_uids=[],
            pod_restart_counts=[],
            worker_order=opening.worker_order(situation, desired_workers(situation)),
            code_digest=situation.code_digest,
            unproven_since=1,
            restart_request=situation.job.restart_request,
        ),
    )


def fail_attempt(situation: Situation) -> Transition | None:
    """Ends the current attempt if a rank failed or a worker's pod is lost."""
    if not situation.running:
        return None
    cause = cause_of(situation, situation.status.attempt)
    failure = situation.last_failure
    if cause is None or failure is None or not _is_same_fault(situation, failure, cause):
        return None if cause is None else end_attempt(situation, cause)
    return _respond(_without(situation, failure), failure, at=failure.failed_at)


def end_attempt(
    situation: Situation, cause: Failure, going: frozenset[str] = frozenset(), anew: str = ""
) -> Transition:
    """Ends the current attempt for this cause.

    `going` contains the uids of pods that are replaced because of the cause. If `anew` contains a reason, all ranks
    restart at once, although some could continue.
    """
    return _respond(_with_early_failures_merged(situation, cause), cause, going=going, anew=anew)


def reattribute(situation: Situation) -> Transition | None:
    """Replaces the recorded cause of an attempt that just ended, if a stronger cause appears."""
    failure, held = situation.last_failure, situation.held
    if failure is None or failure.attempt != situation.status.attempt - (0 if held else 1):
        return None
    if since(situation.now, failure.failed_at) >= backoff.SETTLE_SECONDS and not failure.provisional:
        return None
    cause = cause_of(situation, failure.attempt)
    if cause is None or known_reason(cause.reason).strength <= known_reason(failure.reason).strength:
        return None
    # The pod may be gone only because the operator deleted it when its agent was silent.
    if held and cause.reason == "PodDeleted" and cause.worker == failure.worker and is_unresponsive_report(failure):
        return None
    before = _without(situation, failure)
    if held:
        return _respond(before, cause, at=failure.failed_at)
    return _correct(situation, before, cause, failure)


def reopen(situation: Situation) -> Transition | None:
    """Opens the next attempt when the back-off is over and every worker has a living pod."""
    status, failure = situation.status, situation.last_failure
    if not situation.held or status.resizing or situation.now < backoff.restart_at(situation):
        return None
    if failure is not None and failure.provisional:
        return _fail_for(_without(situation, failure), failure, _response(situation, failure), at=failure.failed_at)
    workers = next_workers(situation)
    return opening.open_attempt(situation, workers, "AttemptOpened") if can_open(situation, workers) else None


def held_since(situation: Situation) -> str | None:
    """Returns when the job's current wait began, which is the start of the attempt or the time of the failure."""
    status, failure = situation.status, situation.last_failure
    held = not situation.running and failure is not None and failure.attempt == status.attempt
    return failure.failed_at if held and failure is not None else status.attempt_start_time


def advance(situation: Situation) -> Transition:
    """Updates the phase of the current attempt as pods appear and ranks start, if no other policy answered."""
    status = situation.status
    waiting = Transition(status.phase or "Pending", "", "")
    if not situation.running:
        return waiting
    change = NO_CHANGE
    if situation.stalled_before_attempt:
        # These ends must never count. Kubernetes deletes the kubelet's Events after an hour, so the ends are recorded.
        ends = {**situation.restart_counts, **situation.stalled_before_attempt}
        change = StatusChange(pod_restart_counts=[ends.get(worker, 0) for worker in situation.workers])
    are_placed = opening.have_nodes(situation, situation.workers)
    if are_placed and not situation.worker_uids and not situation.lacks_domains:
        # From now on, the replacement of a pod ends the attempt. Before, the ranks can't all have formed a group.
        workers = situation.workers
        if opening.is_unordered(situation):
            workers = opening.in_rank_order(situation, workers)
        change = opening.pods_recorded(situation, workers)
    if situation.up >= set(situation.workers) and (situation.worker_uids or change):
        message = f"attempt {status.attempt}: all ranks are up"
        return Transition("Running", "AllRanksUp", message, change | NEW_STARTUP)
    # The pods of a later attempt are recorded when it opens, even if they have no nodes.
    if status.phase == "Pending" and are_placed and (situation.worker_uids or change):
        return Transition("Starting", "PodsScheduled", f"attempt {status.attempt}: the workers are starting", change)
    return replace(waiting, change=change)


def fail(situation: Situation, reason: str, message: str, change: StatusChange = NO_CHANGE) -> Transition:
    """Returns the transition to a failed job."""
    ended = NO_WAIT | StatusChange(completion_time=to_text(situation.now), replacing_pod_uids=[])
    return Transition("Failed", reason, message, change | ended)


def _respond(
    situation: Situation, cause: Failure, at: str | None = None, going: frozenset[str] = frozenset(), anew: str = ""
) -> Transition:
    response = _response(situation, cause)
    if response.answer == "Fail":
        if known_reason(cause.reason).strength is Strength.PEER:
            return _wait_for_cause(situation, cause)
        return _fail_for(situation, cause, response, at)
    status = situation.status
    counted = response.answer == "Restart"
    restarts = status.restarts + (1 if counted else 0)
    lived = since(situation.now, status.attempt_start_time)
    wait = 0.0 if anew else backoff.delay(situation.spec, response.answer, cause=cause, restarts=restarts, lived=lived)
    nodes = with_failure(situation, cause)
    moving = cause.node is not None and cause.node in nodes.apply(status).avoided_nodes
    waiting: tuple[PodView, ...] = ()
    if backoff.is_limited(cause.reason, counted=counted):
        waiting = backoff.outlasting(situation, desired_workers(situation), status.attempt, situation.now + wait)
    replacing = _replacing(situation, cause, waiting, moved_from=cause.node if moving else None)
    going |= frozenset(replacing)
    left = anew or continuing.members_left(situation, going, continuing.ready_ranks(situation))
    cause = cause.model_copy(update={"not_continued": left if isinstance(left, str) and left else None})
    change = nodes | StatusChange(
        restarts=restarts,
        disruptions=status.disruptions + (0 if counted else 1),
        failures=_with_failure_recorded(situation, cause, counted=counted, at=at),
        next_attempt_time=to_text(situation.now + wait) if wait > 0 else None,
        startup_start_time=to_text(situation.now + wait) if status.scheduling_backoffs else None,
    )
    if not isinstance(left, str):
        return continuing.opened(situation, left, going, change)
    message = f"attempt {cause.attempt} ended: {cause.message}" + (f"; {left}" if left else "")
    if situation.unresponsive:
        message += "; its pod is replaced if it doesn't answer"
    if (until := alone_until(situation)) is not None:
        seconds = f"{until - situation.now:.0f} s"
        message += f"; its unreachable ranks may keep training for {seconds}, so the next attempt waits"
    if moving:
        message += f"; node {cause.node} is avoided from now on"
    if waiting:
        message += f"; {backoff.sentence(waiting)}"
    workers = next_workers(situation, without=going)
    if wait <= 0 and can_open(situation, workers, without=going):
        message += "".join(f"; {sentence}" for sentence in opening.stand_ins(situation, workers))
        change |= opening.status_change(situation, workers, going)
        return Transition(opening.opening_phase(situation, workers), "AttemptOpened", message, change)
    change |= StatusChange(replacing_pod_uids=list(dict.fromkeys([*situation.status.replacing_pod_uids, *replacing])))
    if wait > 0:
        return Transition("Restarting", "BackOff", f"{message}; the next attempt waits {wait:g} s", change)
    if waiting:
        return Transition("Restarting", "ReplacingPods", message, change)
    return Transition("Restarting", "WaitingForPods", f"{message}; waiting for the pods of all workers", change)


def _replacing(situation: Situation, cause: Failure, waiting: Iterable[PodView], moved_from: str | None) -> list[str]:
    current = frozenset(situation.worker_uids.values())
    if cause.worker is not None and cause.worker in situation.members.absent:
        # The worker failed before it joined, so the others keep training on their nodes.
        current = frozenset(pod.uid for worker, pod in situation.pods.items() if worker == cause.worker)
    moved = [pod.uid for pod in situation.pods.values() if pod.node == moved_from is not None and pod.uid in current]
    return list(dict.fromkeys([*moved, *(pod.uid for pod in waiting)]))


def _wait_for_cause(situation: Situation, cause: Failure) -> Transition:
    silent = backoff.silent(situation, cause.attempt)
    awaited = f"for a report of worker {silent[0]}, or of its node" if silent else "a moment for the cause"
    until = to_text(situation.now + backoff.settling_seconds(situation, cause.attempt))
    return Transition(
        "Restarting",
        "DeterminingCause",
        f"attempt {cause.attempt} ended: {cause.message}; waiting {awaited}",
        StatusChange(
            failures=_with_failure_recorded(situation, cause, counted=False, provisional=True),
            next_attempt_time=until,
            startup_start_time=until if situation.status.scheduling_backoffs else None,
        ),
    )


def _fail_for(situation: Situation, cause: Failure, response: FailureResponse, at: str | None = None) -> Transition:
    change = StatusChange(
        restarts=situation.status.restarts,
        disruptions=situation.status.disruptions,
        failures=_with_failure_recorded(situation, cause, counted=False, at=at),
    )
    message = f"attempt {cause.attempt} failed: {response.message or cause.message}"
    return fail(situation, response.reason or cause.reason, message, change)


def _correct(situation: Situation, before: Situation, cause: Failure, failure: Failure) -> Transition:
    """Corrects the recorded failure and the counts while the next attempt already runs, or ends the job."""
    response = _response(before, cause)
    if response.answer == "Fail":
        return _fail_for(before, cause, response, failure.failed_at)
    counted = response.answer == "Restart"
    change = with_failure(before, cause) | StatusChange(
        restarts=before.status.restarts + (1 if counted else 0),
        disruptions=before.status.disruptions + (0 if counted else 1),
        failures=_with_failure_recorded(before, cause, counted=counted, at=failure.failed_at, step=failure.step),
    )
    return Transition(situation.status.phase or "Starting", "", "", change)


def _response(situation: Situation, cause: Failure) -> FailureResponse:
    return choose_response(situation.spec, cause, situation.status.restarts, repeats_start(situation, cause))


def _without(situation: Situation, failure: Failure) -> Situation:
    """Returns the situation as if the newest failure hadn't been recorded and counted."""
    status = situation.status
    uncounted = not failure.counted and not failure.provisional
    change = without_failure(situation, failure) | StatusChange(
        failures=without_newest(status.failures),
        restarts=max(status.restarts - (1 if failure.counted else 0), 0),
        disruptions=max(status.disruptions - (1 if uncounted else 0), 0),
    )
    return situation.with_status(change.apply(status))


def _with_early_failures_merged(situation: Situation, cause: Failure) -> Situation:
    """Returns the situation without the last failure, if the cause explains that failure too.

    A lost pod is often detected late (a lost node after 40 s or more). By then, broken connections of the pod's peers
    have ended the previous attempt, and this attempt can't start. Both failures count as one disruption.
    """
    failure = situation.last_failure
    if known_reason(cause.reason).strength is not Strength.DISRUPTION or cause.worker in situation.reports:
        return situation
    if failure is None or failure.attempt != situation.status.attempt - 1:
        return situation
    strength = known_reason(failure.reason).strength
    same = strength is Strength.PEER or (strength is Strength.DISRUPTION and failure.pod == cause.pod)
    return _without(situation, failure) if same else situation


def _is_same_fault(situation: Situation, failure: Failure, cause: Failure) -> bool:
    """Returns whether a continued attempt ends before its group has formed, because of the preceding fault.

    The cause is then a late report of a bystander, or of ranks that had ended in the previous attempt.
    """
    status = situation.status
    if status.continues is None or failure.attempt != status.attempt - 1 or continuing.has_formed(situation):
        return False
    return known_reason(cause.reason).strength is Strength.PEER or cause.worker in situation.ended_before


def _with_failure_recorded(
    situation: Situation,
    cause: Failure,
    *,
    counted: bool,
    provisional: bool = False,
    at: str | None = None,
    step: int | None = None,
) -> list[Failure]:
    recorded = {
        "message": cause.message[:MAX_MESSAGE_CHARACTERS],
        "counted": counted,
        "provisional": provisional or None,
        "failed_at": at or cause.failed_at,
        "step": step if step is not None else _furthest_step(situation, cause.attempt),
        "recovery": None,
    }
    return with_recorded(situation.status.failures, cause.model_copy(update=recorded))


def _furthest_step(situation: Situation, attempt: int) -> int | None:
    """Returns the furthest step of any attempt so far.

    It can be further than the published step, because agents report a failed rank's last step before the rank's end.
    """
    observed, published = situation.observed, situation.status.progress
    steps = [] if published is None else [published.furthest_step, published.step]
    if observed.progress_attempt == attempt:
        steps += [rank.step for ranks in observed.progress.values() for rank in ranks.values()]
    return max((step for step in steps if step is not None), default=None)

"""A continued attempt keeps the processes of healthy ranks, and trains without the lost ranks.

It opens in the pass that detects the loss. The remaining ranks form a new group, share the work of the lost ranks, and
repeat the interrupted step. `joining` lets the lost ranks join after their restart. A rank keeps its number while its
process lives, so the lineup changes only if a spare takes the place of an absent worker. If a remaining rank can't
continue, all ranks restart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainmaster_operator.api.times import to_text
from trainmaster_operator.reconciling.observed.members import Members
from trainmaster_operator.reconciling.observed.situation import Situation
from trainmaster_operator.reconciling.observed.spares import continued_workers, desired_workers
from trainmaster_operator.reconciling.policies.opening import worker_order
from trainmaster_operator.reconciling.transition import NO_CHANGE, StatusChange, Transition


def members_left(
    situation: Situation, going: frozenset[str] = frozenset(), ready: frozenset[int] = frozenset()
) -> Members | str:
    """Returns the members of a continued attempt, or the reason why it isn't possible.

    The reason is empty if no rank supports continuing. `going` contains the uids of further lost pods, and `ready` the
    absent ranks that can join.
    """
    if not situation.running:
        return ""
    absent = (lost_ranks(situation, going) | {*situation.members.absent_ranks}) - ready
    left = situation.members.without(absent)
    survivors = situation.members.without(absent | ready).present
    if not any(_holds_state(situation, worker) or _said(situation, worker) for worker in survivors):
        return ""
    for worker in survivors:
        report = situation.reports.get(worker)
        starts = report is None or report.state == "Starting"
        if not _holds_state(situation, worker) and not (starts and was_about_to_join(situation, worker)):
            return f"worker {worker}'s ranks can't continue: {_why_not(situation, worker)}"
    elastic = situation.spec.elastic
    if elastic is not None and len(left.present) < elastic.min_workers:
        return f"too few workers are left: {len(left.present)}, and elastic.minWorkers is {elastic.min_workers}"
    return Members.of(continued_workers(situation, left.absent, going), situation.layout, absent)


def lost_ranks(situation: Situation, going: frozenset[str] = frozenset()) -> frozenset[int]:
    """Returns the ranks that the current attempt has lost.

    They are the ranks that ended, and the ranks of pods that are lost or listed in `going`.
    """
    lost = set[int]()
    for worker in situation.members.present:
        ranks = situation.members.present_ranks(worker)
        pod, report = situation.healthy_pod(worker, going), situation.reports.get(worker)
        if pod is None or pod.uid != situation.worker_uids.get(worker):
            lost.update(ranks)
        elif report is not None and report.state in ("Failed", "Stopped"):
            # If `able` is set in the report of a failed rank, the worker's other ranks still run.
            lost.update(ranks if report.rank is None or not report.able else {report.rank})
    return frozenset(lost)


def _change(situation: Situation, members: Members, going: frozenset[str]) -> StatusChange:
    status = situation.status
    pods = {worker: situation.pods.get(worker) for worker in members.ranks}
    # The pod of a worker that was just lost stays recorded, because the cause of the loss may still appear.
    uids = {worker: pod.uid for worker, pod in pods.items() if pod is not None and worker not in members.absent}
    uids |= {worker: uid for worker, uid in situation.worker_uids.items() if worker in members.absent}
    replaced = situation.leaving | going
    replaced |= {uid for uid in situation.unresponsive if uid not in uids.values()}
    wanted = desired_workers(situation)
    return StatusChange(
        attempt=status.attempt + 1,
        continues=status.attempt if status.continues is None else status.continues,
        absent_ranks=list(members.absent_ranks),
        training_with=members.shown(len(wanted)) if any(worker in wanted for worker in members.incomplete) else None,
        attempt_start_time=to_text(situation.now),
        next_attempt_time=None,
        startup_start_time=None,
        worker_order=worker_order(situation, tuple(members.ranks)),
        pod_uids=[uids.get(worker) for worker in members.ranks],
        pod_restart_counts=[pod.ends if pod is not None else 0 for pod in pods.values()],
        replacing_pod_uids=[
            pod.uid for worker, pod in situation.living.items() if worker not in members.present and pod.uid in replaced
        ],
    )


def opened(
    situation: Situation, members: Members, going: frozenset[str] = frozenset(), more: StatusChange = NO_CHANGE
) -> Transition:
    """Returns the transition to a continued attempt with these members."""
    left_out = {*situation.workers} - {*desired_workers(situation)}
    missing = {worker: "is starting" for worker in members.incomplete if worker not in left_out}
    message = training(situation, members, missing, attempt=situation.status.attempt + 1)
    return Transition("Running", "Continued", message, more | _change(situation, members, going))


def training(situation: Situation, members: Members, missing: Mapping[int, str], attempt: int) -> str:
    """Describes which workers train in a continued attempt, and the state of the missing workers."""
    shown = f"attempt {attempt}: training with {members.shown(len(desired_workers(situation)))}"
    known = dict[str, list[int]]()
    for worker, what in missing.items():
        known.setdefault(what, []).extend(sorted({*members.ranks[worker]} & {*members.absent_ranks}))
    named = [_sentence(members.named(ranks), what) for what, ranks in known.items()]
    return "; ".join([shown, *named[:2], *([f"and {len(named) - 2} more"] if len(named) > 2 else [])])


def _sentence(names: str, what: str) -> str:
    """Returns a sentence such as `worker 1 is starting` or `workers 1, 2 are starting`."""
    if names.startswith("workers") or ", " in names or " and " in names:
        what = re.sub("^is ", "are ", re.sub("^doesn't ", "don't ", what))
    return f"{names} {what}"


def has_formed(situation: Situation) -> bool:
    """Returns whether every present worker has reported that its ranks train in the current attempt."""
    joined = {worker for worker, report in situation.reports.items() if report.state == "Running"}
    return situation.finished | joined >= {*situation.members.present}


def ready_ranks(situation: Situation) -> frozenset[int]:
    """Returns the absent ranks that have started again and wait to join."""
    ready = set[int]()
    for worker in situation.members.incomplete:
        report, pod = situation.reports.get(worker), situation.living.get(worker)
        if report is None or report.ended or not report.ready or worker not in desired_workers(situation):
            continue
        if pod is not None and pod.uid == report.uid and pod.uid not in situation.leaving and pod.container_runs:
            ready.update({*situation.members.ranks[worker]} & {*situation.members.absent_ranks})
    return frozenset(ready)


def was_about_to_join(situation: Situation, worker: int) -> bool:
    """Returns whether a worker's ranks join the group in the current attempt, and so may have no state yet."""
    before = situation.reports_before.get(worker)
    return before is not None and before.ready


def _holds_state(situation: Situation, worker: int) -> bool:
    report = situation.reports.get(worker)
    if report is not None and (report.able or report.state != "Starting"):
        return report.able
    # While a group forms, the report on the previous attempt counts.
    before = situation.reports_before.get(worker)
    return before is not None and before.able and worker not in situation.finished


def _why_not(situation: Situation, worker: int) -> str:
    if worker in situation.finished:
        return "they have finished"
    if worker not in situation.up:
        return "they weren't up"
    return _said(situation, worker) or "its script doesn't use trainloop.recovery"


def _said(situation: Situation, worker: int) -> str:
    """Returns the reason that a worker's ranks report for not continuing, or an empty string."""
    if situation.observed.progress_attempt != situation.status.attempt:
        return ""
    said = (rank.cannot_continue for rank in situation.observed.progress.get(worker, {}).values())
    return next(filter(None, said), "")

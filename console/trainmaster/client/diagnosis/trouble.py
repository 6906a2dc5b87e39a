"""Explains why a job that looks well isn't: a stopped operator, a stall, a crash loop, or progress that isn't known.

A job's phase and its books (status.timeSpent) show such trouble late or never, so these rules come before the rules
about slow jobs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainmaster.client.diagnosis.operators import operator_down_since
from trainmaster.client.diagnosis.situation import Finding, Situation, Step
from trainmaster.client.objects import at, joined, name_of, short, text
from trainmaster.client.view import LOOP_WINDOW, FailureView, duration, plural
from trainmaster_operator.api import times
from trainmaster_operator.api.v1alpha1.spec import FailurePolicy

# A script that has reported nothing for this long (seconds) after its start is said to report no progress.
UNREPORTED_SECONDS = 120.0
DEFAULT_RESTARTS = FailurePolicy().max_restarts
# The operator's notice about ranks that trained alone, in contrast to one about a script without progress.
_APART = re.compile(r"never (?:met|formed|joined)|trained alone|trains alone|by itself|on its own", re.IGNORECASE)
_PROGRESS = "docs/progress.md lists what is recognised"
_JOIN = "make the script join one process group: RANK, WORLD_SIZE and MASTER_ADDR are set (docs/pods.md)"


def operator_findings(situation: Situation) -> Iterator[Finding]:
    """Yields a finding on an operator that has stopped, so that the status of its jobs is out of date."""
    job = situation.job
    if job.finished or job.status.phase is None:
        return
    down = operator_down_since(situation)
    if down is None:
        return
    since, evidence, step = down
    if since:
        clock = times.to_datetime(since)
        seconds = times.since(situation.now.timestamp(), since)
        old = f" for {times.duration(seconds)}"
        shown = f": what is shown is from {clock:%H:%M} UTC" if clock else ""
    else:
        old, shown = "", ", so what is shown is out of date"
    then = "ranks train on, but nobody restarts them" if job.phase == "Running" else "it gets no further until one runs"
    clause = f"no operator has been running{old}{shown}; {then}"
    yield Finding("OperatorDown", clause, evidence, step)


def trouble_findings(situation: Situation) -> Iterator[Finding]:
    """Yields why a job isn't well although it runs, or although it has succeeded."""
    job, view = situation.job, situation.view
    if job.phase == "Suspending":
        yield _suspending(situation)
    if job.phase == "Running":
        if view.stalled_since is not None:
            yield _stalled(situation)
            return
        if loop := view.crash_loop(situation.now):
            yield _crash_loop(situation, loop)
            return
    if job.phase == "Succeeded" and not _APART.search(view.notice):
        yield Finding("Succeeded", f"all ranks exited with code 0{f' ({view.progress})' if view.progress else ''}")
    elif view.notice and job.phase in ("Running", "Succeeded"):
        yield _notice(situation)
    elif job.phase == "Running":
        yield from _unreported(situation)


def _suspending(situation: Situation) -> Finding:
    job = situation.job
    pods = [name_of(pod) for pod in situation.pods if text(pod, "status", "phase") in ("Running", "Pending")]
    still = f"its pods {joined(pods)} still save a checkpoint and hold" if pods else "its pods still save and hold"
    if len(pods) == 1:
        still = f"its pod {pods[0]} still saves a checkpoint and holds"
    clause = f"it is being suspended; {still} resources until the ranks have ended"
    look = Step("its pods", f"kubectl get pods {situation.where} -l trainmaster.dev/job-name={job.name}")
    resume = Step("to continue instead", f"kubectl dtj resume {job.name} {situation.where}")
    return Finding("Suspending", clause, (), (look, resume))


def _stalled(situation: Situation) -> Finding:
    job, view = situation.job, situation.view
    name = f"{job.name} {situation.where}"
    first, _, rest = view.stall_message.strip().partition("\n")
    where = f": {short(first, 500)}" if first else ""
    evidence = [f"last progress at {view.stalled_since}" + (f", {view.progress}" if view.progress else "")]
    evidence += rest.splitlines()[:8]
    rank = "" if view.stalled_rank is None else f" --rank {view.stalled_rank}"
    steps = [Step("the stacks of its ranks, now", f"kubectl dtj stacks {name}{rank}")]
    limit = "failurePolicy.hang.firstStepSeconds" if view.step is None else "failurePolicy.hang.progressSeconds"
    restart = times.to_datetime(view.restart_at)
    if at(job.raw, "spec", "failurePolicy", "hang", "action") == "Fail":
        then = "the job fails"
    else:
        then = "all ranks are restarted"
    if restart is None:
        steps.append(Step(f"nothing ends this by itself; spec.{limit} sets a limit"))
    else:
        left = (restart - situation.now).total_seconds()
        when = f"at {restart:%H:%M:%S} UTC" + (f" (in {duration(left)})" if left > 0 else "")
        steps.append(Step(f"if this lasts, {then} {when}; spec.{limit} sets another limit"))
    steps.append(Step("restart all ranks now", f"kubectl dtj restart {name}"))
    early = ", before its first step" if view.step is None else ""
    return Finding("Stalled", f"{view.stall(situation.now)}{early}{where}", tuple(evidence), tuple(steps))


def _crash_loop(situation: Situation, loop: str) -> Finding:
    job, view = situation.job, situation.view
    name, failures = f"{job.name} {situation.where}", view.failures
    evidence = [
        f"attempt {one.attempt}: {one.reason}{f', {one.count} times in a row' if one.count > 1 else ''}, "
        f"at {one.failed_at}: {short(one.message)}"
        for one in failures[:4]
    ]
    limit = at(job.raw, "spec", "failurePolicy", "maxRestarts")
    limit = limit if isinstance(limit, int) else DEFAULT_RESTARTS
    evidence.append(f"{plural(view.restarts, 'restart')} of {limit} counted (spec.failurePolicy.maxRestarts)")
    steps = [
        Step("what its ranks print", f"kubectl dtj logs {name}"),
        Step("stop it until the cause is mended", f"kubectl dtj suspend {name}"),
    ]
    if any(one.attempt == failures[0].attempt for one in situation.evidence):
        newest = f"kubectl dtj evidence {name} --attempt {failures[0].attempt}"
        steps.insert(0, Step("the newest failure", newest))
    recent = [one for one in failures[1:] if one.times(situation.now.timestamp() - LOOP_WINDOW) is not None]
    other = next((one for one in recent if _kind(one) != _kind(failures[0])), None)
    also = f"; before that also by {short(other.exception or other.last_line, 200)}" if other is not None else ""
    clause = f"its ranks run again, but it has {loop.rstrip('.')}{also}"
    return Finding("CrashLoop", clause, tuple(evidence), tuple(steps))


def _kind(failure: FailureView) -> tuple[str, str, str]:
    """Returns what equal failures have in common."""
    return failure.reason, failure.exception.partition(":")[0], failure.location


def _notice(situation: Situation) -> Finding:
    """Returns the finding on the operator's notice, whose second part says what mends it."""
    job, notice = situation.job, short(situation.view.notice, 600)
    logs = Step("what its ranks print", f"kubectl dtj logs {job.name} {situation.where}")
    is_apart = _APART.search(notice) is not None
    clause, _, mend = notice.partition("; " if is_apart else ": ")
    steps = (Step(mend or (_JOIN if is_apart else _PROGRESS)), logs)
    if not is_apart:
        return Finding("NoProgress", clause, (), steps)
    ended = "all ranks exited with code 0, but " if job.phase == "Succeeded" else ""
    return Finding("RanksNeverMet", f"{ended}{clause}", (), steps)


def _unreported(situation: Situation) -> Iterator[Finding]:
    """Yields a finding on a running attempt without any report, before the operator has published its notice."""
    status, view = situation.job.status, situation.view
    progress = status.progress
    seconds = times.since(situation.now.timestamp(), status.attempt_start_time)
    if view.step is not None or view.section or seconds < UNREPORTED_SECONDS:
        return
    if progress is not None and progress.attempt == status.attempt and progress.reported_at:
        return
    clause = (
        f"its ranks run, but its script has reported no progress for {times.duration(seconds)}: "
        "it still loads, or its progress isn't recognised"
    )
    steps = (
        Step(f"if it trains already, have it report its steps ({_PROGRESS})"),
        Step("what its ranks do now", f"kubectl dtj stacks {situation.job.name} {situation.where}"),
        Step("what its ranks print", f"kubectl dtj logs {situation.job.name} {situation.where}"),
    )
    yield Finding("NoProgress", clause, (), steps, is_certain=False)

"""The view of a job in a terminal is the same for `kubectl dtj status` and for the demo's live picture."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.text import Text

from trainmaster.cli.columns import columns
from trainmaster.cli.evidence import recovery_sentence
from trainmaster.cli.program import called
from trainmaster.client import TrainingJob
from trainmaster.client.sentences import rest, trains_with
from trainmaster_operator.api.v1alpha1 import TIME_CATEGORIES, Condition, Failure, Progress, TimeSpent
from trainmaster_operator.wire.names import POD_INDEX_LABEL
from trainmaster_operator.wire.values import is_number

PHASE_STYLES = {
    "Succeeded": "bold green",
    "Failed": "bold red",
    "Running": "bold cyan",
    "Restarting": "bold yellow",
    "Starting": "yellow",
    "Suspended": "magenta",
}
MAX_FAILURES = 5
# The bar that shows where the time went is so wide; suspended time isn't the job's.
TIME_WIDTH = 40
# Progress moves the account of a running job's time every few seconds; less than this isn't worth a line.
UNACCOUNTED_SECONDS = 20.0
UNSEEN = "no operator has accepted this job yet; if that lasts: is one running that serves its namespace?"
# What differs between the ends of two attempts that failed for the same cause: process ids, attempts, times, addresses.
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|[0-9]+")
TIME_STYLES = {"productive": "green", "recompute": "red", "stall": "red", "restart": "yellow"}
TIME_STYLES |= {"suspended": "dim", "unobserved": "dim"}


def duration(seconds: float) -> str:
    """Returns seconds as kubectl writes them: 42s, 3m5s, 2h7m, 4d3h."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60}m"
    return f"{whole // 86400}d{whole % 86400 // 3600}h"


def parse_time(text: str | None) -> datetime | None:
    """Returns a time of the API (RFC 3339) as an aware datetime; None for a text that is no time."""
    try:
        time = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def job_view(job: TrainingJob, pods: Sequence[Mapping[str, Any]], now: datetime | None = None) -> RenderableType:
    """Returns everything about one job: phase, attempt, workers, progress, failures."""
    now = now or datetime.now(UTC)
    parts: list[RenderableType] = [headline(job, now)]
    if members := trains_with(job, now):
        parts.append(Text("; ".join(filter(None, [f"training {members}", rest(job)])), style="yellow"))
    elif rest(job):
        parts.append(Text(rest(job), style="dim"))
    if job.status.progress is not None:
        parts.append(_progress(job.status.progress, running=job.phase == "Running"))
    if job.status.time_spent is not None:
        parts.extend(where_time_went(job, job.status.time_spent, pods, now))
    if pods:
        parts.append(pod_table(pods, now, () if job.status.workers.spares is None else job.status.worker_order))
    if job.status.failures:
        parts.append(_failures(job.status.failures))
        parts.append(Text(f"more: {called()} evidence {job.name} --attempt {job.status.failures[0].attempt}", "dim"))
    if job.status.avoided_nodes and not job.finished:
        avoided = (f"{node} ({job.status.node_failures.get(node, 0)} failures)" for node in job.status.avoided_nodes)
        parts.append(Text(f"avoids nodes: {', '.join(avoided)}", style="yellow"))
    if job.status.phase is None:
        parts.append(Text(UNSEEN, style="yellow"))
    message = _blocking_message(job)
    if job.status.failures:
        message = _without_failure(message, job.status.failures[0])
    if message:
        parts.append(Text(message, style="yellow" if not job.finished else ""))
    return Group(*parts)


def job_columns(*, namespaces: bool, wide: bool = False) -> list[str]:
    """Returns the names of the columns of a table of jobs."""
    columns = ["NAME", "PHASE", "ATTEMPT", "RESTARTS", "WORKERS", "STEP", "LOSS", "AGE"]
    more = ["SAMPLES/S", "ETA", "GOODPUT", "REASON"]
    return [*(["NAMESPACE"] if namespaces else []), *columns, *(more if wide else [])]


def job_cells(job: TrainingJob, now: datetime | None = None, *, namespaces: bool, wide: bool = False) -> list[str]:
    """Returns a job's row of a table of jobs, of which the age changes by itself."""
    now = now or datetime.now(UTC)
    status, progress = job.status, job.status.progress or Progress()
    created = parse_time(job.raw["metadata"].get("creationTimestamp"))
    cells = [
        *([job.namespace] if namespaces else []),
        job.name,
        job.phase,
        str(status.attempt),
        str(status.restarts),
        f"{status.workers.running}/{status.workers.desired}",
        steps_done(progress),
        "" if progress.loss is None else f"{progress.loss:.4g}",
        duration((now - created).total_seconds()) if created else "",
    ]
    if not wide:
        return cells
    running = job.phase == "Running"
    return [
        *cells,
        "" if progress.samples_per_second is None or not running else f"{progress.samples_per_second:.0f}",
        "" if progress.eta_seconds is None or not running else duration(progress.eta_seconds),
        "" if progress.goodput is None else f"{progress.goodput:.0%}",
        _reason(job),
    ]


def job_table(
    jobs: Sequence[TrainingJob], now: datetime | None = None, *, namespaces: bool = False, wide: bool = False
) -> Text:
    """Returns a table with one line a job, and their namespaces where there are several."""
    names = job_columns(namespaces=namespaces, wide=wide)
    rows = [job_cells(job, now, namespaces=namespaces, wide=wide) for job in jobs]
    return columns(names, rows, {names.index("PHASE"): PHASE_STYLES})


def pod_table(pods: Sequence[Mapping[str, Any]], now: datetime, training: Collection[int]) -> Text:
    """Returns a table with one line a worker's pod. `training`: of a job with spares, who isn't one."""
    rows = []
    for pod in pods:
        metadata, status = pod["metadata"], pod.get("status") or {}
        created = parse_time(metadata.get("creationTimestamp"))
        containers = status.get("containerStatuses") or []
        index = _index(pod)
        rows.append(
            [
                f"{index} (spare)" if training and index not in map(str, training) else index,
                str(metadata["name"]),
                pod_state(pod),
                str(sum(container.get("restartCount", 0) for container in containers)),
                str((pod.get("spec") or {}).get("nodeName", "")),
                duration((now - created).total_seconds()) if created else "",
            ]
        )
    return columns(["WORKER", "POD", "STATUS", "RESTARTS", "NODE", "AGE"], rows)


def _index(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"].get("labels", {}).get(POD_INDEX_LABEL, ""))


def pod_state(pod: Mapping[str, Any]) -> str:
    """Returns a pod's state in one word, as kubectl's STATUS column has it for the plain cases."""
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    status = pod.get("status") or {}
    statuses = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    for container in statuses:
        waiting = (container.get("state") or {}).get("waiting")
        if waiting and waiting.get("reason") not in (None, "PodInitializing"):
            return str(waiting["reason"])
    return str(status.get("reason") or status.get("phase") or "Unknown")


def pod_trouble(pod: Mapping[str, Any]) -> str:
    """Returns a pod's state with what Kubernetes says of it: Pending (Unschedulable: 0/3 nodes are available)."""
    state, status = pod_state(pod), pod.get("status") or {}
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") == state and waiting.get("message"):
            return f"{state} ({waiting['message']})"
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"{state} ({condition.get('reason')}: {condition.get('message')})"
    return state


def job_trouble(job: TrainingJob) -> str:
    """Returns why a job that has no pods has none."""
    if job.status.phase is None:
        return UNSEEN
    return f"{job.phase}: {_blocking_message(job)}" if _blocking_message(job) else job.phase


def failure_summary(job: TrainingJob) -> str:
    """Returns which failure ended a failed job; empty for other jobs."""
    if job.phase != "Failed":
        return ""
    ended = next((each for each in job.status.conditions if each.type == "Failed"), None)
    failure = job.status.failures[0] if job.status.failures else None
    reason = "" if ended is None else ended.reason
    if failure is None or reason not in ("", "MaxRestartsExceeded", failure.reason):
        # What ended the job was no failure of a rank: a deadline, no room, an image, a spec that can't run.
        return f"{reason}: {ended.message}" if ended is not None and ended.message else reason
    rank = "" if failure.rank is None else f" of rank {failure.rank}"
    code = "" if failure.exit_code is None else f", exit code {failure.exit_code}"
    return f"{failure.reason}{rank}{code}"


def outcome(job: TrainingJob) -> str:
    """Returns what a command says that has waited for a job: raises: Failed (Error of rank 1, exit code 1)."""
    summary = failure_summary(job)
    return f"{job.name}: {job.phase}" + (f" ({summary})" if summary else "")


def job_end(job: TrainingJob) -> str:
    """Returns one sentence about how a job ended, with the operator's message."""
    ended = next((each for each in job.status.conditions if each.type == job.phase and each.message), None)
    if job.phase != "Failed":
        return f"Job {job.name} has ended: {job.phase}."
    return f"Job {job.name} has failed: {f'{ended.reason}: {ended.message}' if ended else failure_summary(job)}"


def headline(job: TrainingJob, now: datetime) -> Text:
    """Returns the line that says where a job stands: phase, attempt, restarts, workers, time."""
    status = job.status
    text = Text()
    text.append(f"{job.name}  ", style="bold")
    text.append(job.phase, style=PHASE_STYLES.get(job.phase, ""))
    text.append(f"  attempt {status.attempt}  restarts {status.restarts}")
    if status.disruptions:
        text.append(f"  disruptions {status.disruptions}")
    workers = status.workers
    if job.finished:
        text.append(f"  workers finished {workers.finished}/{workers.desired}")
    else:
        text.append(f"  workers {workers.running}/{workers.desired}")
        if workers.spares is not None:
            text.append(f"  spares {workers.spares}")
    start = parse_time(status.start_time)
    if start is not None:
        end = parse_time(status.completion_time) or now
        text.append(f"  time {duration((end - start).total_seconds())}")
    return text


def _progress(progress: Progress, *, running: bool) -> RenderableType:
    """Returns how far the job is. One that doesn't run has no speed and nothing that it will end after."""
    cells: list[RenderableType] = []
    if progress.step is not None and progress.total_steps:
        cells.append(ProgressBar(total=progress.total_steps, completed=progress.step, width=30))
    if progress.step is not None:
        cells.append(f"step {steps_done(progress)}")
    if progress.loss is not None:
        cells.append(f"loss {progress.loss:.4f}")
    if running and progress.samples_per_second is not None:
        cells.append(f"{progress.samples_per_second:,.0f} samples/s")
    if running and progress.eta_seconds is not None and progress.step != progress.total_steps:
        cells.append(f"ETA {duration(progress.eta_seconds)}")
    if progress.section is not None and progress.section != "train":
        cells.append(progress.section)
    if progress.goodput is not None:
        cells.append(f"goodput {progress.goodput:.0%}")
    cells.extend(f"{name} {value:.4g}" for name, value in (progress.result or {}).items())
    return Columns(cells, padding=(0, 2))


def where_time_went(
    job: TrainingJob, spent: TimeSpent, pods: Sequence[Mapping[str, Any]], now: datetime
) -> list[RenderableType]:
    """Returns a bar of where the time went, and its legend with the largest share first; empty without entries.

    The operator books time when it writes a status for another reason, so a job that goes on has time that isn't booked
    yet. Before it runs that time counts into what the job waits in. Of a job that runs only its reports can say what
    the time went into: for a script without any, the last line says how much is open.
    """
    # Anybody may have edited a status, and a bar needs shares.
    amounts = {name: seconds for name in TIME_CATEGORIES if is_number(seconds := getattr(spent, name)) and seconds > 0}
    until = parse_time(spent.until)
    unbooked = max((now - until).total_seconds(), 0.0) if until is not None and not job.finished else 0.0
    waits_in = _waits_in(job, pods)
    if unbooked and waits_in is not None:
        amounts[waits_in] = amounts.get(waits_in, 0.0) + unbooked
        unbooked = 0.0
    whole = sum(amounts.values())
    if not whole:
        return []
    bar = Text("time ")
    ordered = sorted(amounts.items(), key=lambda item: -item[1])
    cells: list[RenderableType] = []
    drawn, reached = 0, 0.0
    for name, seconds in ordered:
        style = TIME_STYLES.get(name, "blue")
        reached += seconds
        width = round(TIME_WIDTH * reached / whole) - drawn
        bar.append(("█" if name == "productive" else "▒") * width, style=style)
        drawn += width
        share = "<1%" if seconds / whole < 0.005 else f"{seconds / whole:.0%}"
        shown = f"{seconds:.1f}s" if seconds < 10 else duration(seconds)
        cells.append(Text.assemble((name, style), f" {shown} ({share})", no_wrap=True))
    parts: list[RenderableType] = [bar, Columns(cells, padding=(0, 2))]
    if unbooked >= UNACCOUNTED_SECONDS:
        unreported = ", without progress reports" if job.phase == "Running" else ""
        parts.append(Text(f"and {duration(unbooked)} since{unreported}", "dim"))
    return parts


def _waits_in(job: TrainingJob, pods: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns the category in which a job that doesn't run waits, as the operator will book it
    (reconciling/status/time_spent.py); None for one that runs, and where its pods can't be seen."""
    status = job.status
    if job.phase == "Suspended":
        by_user = all(each.reason == "Suspended" for each in status.conditions if each.type == "Suspended")
        return "suspended" if by_user else "queue"
    if job.phase not in ("Pending", "Starting", "Restarting"):
        return None
    if status.scheduling_backoff:
        return "queue"
    training = () if status.workers.spares is None else status.worker_order
    alive = [
        pod
        for pod in pods
        if not pod["metadata"].get("deletionTimestamp") and (not training or _index(pod) in map(str, training))
    ]
    if len(alive) < status.workers.desired:
        if not pods and status.workers.created:
            return None
        return "restart" if job.phase == "Restarting" or status.attempt > 1 else "queue"
    if not all((pod.get("spec") or {}).get("nodeName") for pod in alive):
        return "schedule"
    if any((pod.get("status") or {}).get("phase") == "Pending" for pod in alive):
        return "pull"
    return "restart" if job.phase == "Restarting" else "rendezvous"


def steps_done(progress: Progress) -> str:
    """Returns the steps done, of how many; empty where that isn't known."""
    if progress.step is None:
        return ""
    return f"{progress.step}/{progress.total_steps}" if progress.total_steps else str(progress.step)


def _failures(failures: Sequence[Failure]) -> RenderableType:
    """Returns the newest failures, a message that says the same as a newer one's only once."""
    parts: list[RenderableType] = []
    shown: dict[tuple[str, str], int] = {}
    for failure in failures[:MAX_FAILURES]:
        where = [f"attempt {failure.attempt}"]
        if failure.rank is not None:
            where.append(f"rank {failure.rank}")
        if failure.pod:
            where.append(f"pod {failure.pod}")
        if failure.node:
            where.append(f"node {failure.node}")
        if failure.exit_code is not None:
            where.append(f"exit code {failure.exit_code}")
        heading = Text(f"{failure.reason}: {', '.join(where)}", style="red")
        newer = shown.setdefault((failure.reason, _cause(failure)), failure.attempt)
        if newer == failure.attempt or not failure.message:
            parts.append(heading)
            parts.extend(Text(f"  {line}", style="dim") for line in failure.message.splitlines()[-8:])
        else:
            parts.append(Text.assemble(heading, (f" (the same as attempt {newer})", "dim")))
        if failure.not_continued:
            parts.append(Text(f"  all ranks started anew: {failure.not_continued}", style="dim"))
        if failure.recovery is not None:
            times = failure.recovery.model_dump(by_alias=True)
            parts.append(Text(f"  {recovery_sentence(times)}", style="green"))
    return Group(*parts)


def _cause(failure: Failure) -> str:
    """Returns a failure's message without what differs from one attempt to another that fails for the same cause."""
    message = failure.message
    for name in filter(None, (failure.pod, failure.node)):
        message = message.replace(name, "")
    return _NUMBER.sub("0", message)


def _without_failure(message: str, failure: Failure) -> str:
    """Returns what a condition's message says beside the failure's own, which is shown already.

    "attempt 7 failed: CAUSE; no restart is left" is "attempt 7 failed; no restart is left", and nothing is left of
    "attempt 7 failed: CAUSE".
    """
    cause = failure.message
    before, _, said = message.partition(": ")
    if not cause or not before.startswith("attempt ") or not said.startswith(cause):
        return message
    beside = said.removeprefix(cause)
    return f"{before}{beside}" if beside else ""


def _reason(job: TrainingJob) -> str:
    """Returns why a job doesn't run, in a word; empty for one that runs or has succeeded."""
    if job.phase in ("Running", "Succeeded"):
        return ""
    return newest.reason if (newest := _newest_condition(job)) is not None else ""


def _blocking_message(job: TrainingJob) -> str:
    """Returns what keeps the job from running: the message of the newest condition that has one."""
    newest = _newest_condition(job)
    if newest is None or job.phase == "Running":
        return ""
    if job.phase == "Suspended" and newest.reason == "Suspended":
        resume = f"{called()} resume {job.name} -n {job.namespace}"
        return f"runPolicy.suspend is true; to let it go on: {resume}"
    return newest.message


def _newest_condition(job: TrainingJob) -> Condition | None:
    # That the spec can be run is no news; that it can't be is.
    with_message = [
        condition
        for condition in job.status.conditions
        if condition.message and not (condition.type == "Accepted" and condition.status == "True")
    ]
    return max(with_message, key=lambda condition: condition.last_transition_time, default=None)

"""Draws jobs for a terminal: one job's whole view, the table of jobs, a job's pods, and a job's use of time."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.text import Text

from trainmaster.cli.console import columns
from trainmaster.cli.terminal import called
from trainmaster.client import TrainingJob
from trainmaster.client.view import FailureView, JobView, duration, figure, percent, rate, view_of
from trainmaster_operator.api.printable import one_line
from trainmaster_operator.api.times import to_datetime
from trainmaster_operator.api.v1alpha1 import TIME_CATEGORIES, TimeSpent
from trainmaster_operator.wire.names import POD_INDEX_LABEL
from trainmaster_operator.wire.values import is_number, mapping

PHASE_STYLES = {"Succeeded": "bold green", "Failed": "bold red", "Running": "bold cyan", "Restarting": "bold yellow"}
PHASE_STYLES |= {"Starting": "yellow", "Suspending": "magenta", "Suspended": "magenta"}
TROUBLE_STYLE = "bold yellow"
MAX_FAILURES = 5
# Width of the bar that shows the use of time (columns).
TIME_WIDTH = 40
# The operator updates a running job's time account every few seconds, so a shorter unaccounted time isn't shown.
UNACCOUNTED_SECONDS = 20.0
TIME_STYLES = {"productive": "green", "recompute": "red", "stall": "red", "restart": "yellow"}
TIME_STYLES |= {"suspended": "dim", "unobserved": "dim", "unreported": "dim"}
# Parts of a message that differ between failures with the same cause: process ids, attempts, times, addresses.
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|[0-9]+")


def job_view(job: TrainingJob, pods: Sequence[Mapping[str, Any]], now: datetime | None = None) -> RenderableType:
    """Returns everything about one job: phase, attempt, workers, progress, time, pods, failures."""
    now, view = now or datetime.now(UTC), view_of(job.raw)
    parts: list[RenderableType] = [headline(view, now)]
    if trouble := view.trouble(now):
        parts.append(Text(trouble, style=TROUBLE_STYLE))
    if members := view.members(now):
        parts.append(Text("; ".join(filter(None, [f"training {members}", view.rest])), style="yellow"))
    elif view.rest:
        parts.append(Text(view.rest, style="dim"))
    cells = figure_cells(view)
    if view.share is not None:
        cells.insert(0, ProgressBar(total=view.total_steps, completed=view.step or 0, width=30))
    parts += [Columns(cells, padding=(0, 2))] if cells else []
    if job.status.time_spent is not None:
        parts.extend(where_time_went(job, job.status.time_spent, now))
    if pods:
        parts.append(pod_table(pods, now, job))
    if view.failures:
        parts += _failures(view.failures)
        parts.append(Text(f"more: {called()} evidence {view.name} --attempt {view.failures[0].attempt}", "dim"))
    if view.avoided_nodes and not view.is_finished:
        avoided = (f"{node} ({view.node_failures.get(node, 0)} failures)" for node in view.avoided_nodes)
        parts.append(Text(f"avoids nodes: {', '.join(avoided)}", style="yellow"))
    message = view.obstacle(called())
    if view.failures:
        message = _without_failure(message, view.failures[0])
    if message:
        parts.append(Text(message, style="" if view.is_finished else "yellow"))
    return Group(*parts)


def headline(view: JobView, now: datetime) -> Text:
    text = Text.assemble((f"{view.name}  ", "bold"), (view.phase, PHASE_STYLES.get(view.phase, "")))
    text.append(f"  attempt {view.attempt}  restarts {view.restarts}")
    text.append(f"  disruptions {view.disruptions}" if view.disruptions else "")
    text.append(f"  workers {'finished ' if view.is_finished else ''}{view.workers}")
    if view.spares is not None and not view.is_finished:
        text.append(f"  spares {view.spares}")
    elapsed = view.elapsed(now)
    return text.append(f"  time {elapsed}" if elapsed else "")


def figure_cells(view: JobView, *, without: Collection[str] = ()) -> list[RenderableType]:
    """Returns the training's figures in readable form, e.g. "step 120/1000" and "5,123 samples/s"."""
    figures = {name: shown for name, shown in view.figures.items() if name not in without}
    words = {"samples/s": "{1} {0}", "section": "{1}"}
    return [words.get(name, "{0} {1}").format(name, shown) for name, shown in figures.items()]


def job_columns(*, namespaces: bool = False, wide: bool = False) -> list[str]:
    usual = ["NAME", "PHASE", "ATTEMPT", "RESTARTS", "WORKERS", "STEP", "LOSS", "AGE"]
    more = ["SAMPLES/S", "ETA", "GOODPUT", "REASON"]
    return [*(["NAMESPACE"] if namespaces else []), *usual, *(more if wide else [])]


def job_cells(view: JobView) -> dict[str, str]:
    """Returns a job's cells by column. Only the age changes while the job doesn't."""
    return {
        "NAMESPACE": view.namespace,
        "NAME": view.name,
        "PHASE": view.phase,
        "ATTEMPT": str(view.attempt),
        "RESTARTS": str(view.restarts),
        "WORKERS": f"{view.running}/{view.desired}",
        "STEP": view.steps,
        "LOSS": figure(view.loss),
        "AGE": view.age(datetime.now(UTC)),
        "SAMPLES/S": rate(view.samples_per_second),
        "ETA": "" if view.eta_seconds is None else duration(view.eta_seconds),
        "GOODPUT": percent(view.goodput),
        "REASON": view.reason,
    }


def job_table(jobs: Sequence[TrainingJob], names: Sequence[str]) -> Group:
    """Returns the table of jobs, and below it a line for each job in trouble."""
    views = [view_of(job.raw) for job in jobs]
    table = columns([job_cells(view) for view in views], names, {"PHASE": PHASE_STYLES})
    return Group(table, *trouble_lines(views, namespaces="NAMESPACE" in names))


def trouble_lines(views: Sequence[JobView], *, namespaces: bool) -> list[Text]:
    """Returns a line for each job that isn't well although it may be running."""
    now = datetime.now(UTC)
    return [
        Text(one_line(f"{f'{view.namespace}/' if namespaces else ''}{view.name}: {trouble}"), style=TROUBLE_STYLE)
        for view in views
        if (trouble := view.trouble(now))
    ]


def pod_table(pods: Sequence[Mapping[str, Any]], now: datetime, job: TrainingJob) -> Text:
    training = () if job.status.workers.spares is None else tuple(map(str, job.status.worker_order))
    rows = []
    for pod in pods:
        metadata, status = pod["metadata"], pod.get("status") or {}
        created = to_datetime(metadata.get("creationTimestamp"))
        index = str(metadata.get("labels", {}).get(POD_INDEX_LABEL, ""))
        restarts = sum(container.get("restartCount", 0) for container in status.get("containerStatuses") or [])
        row = {
            "WORKER": f"{index} (spare)" if training and index not in training else index,
            "POD": str(metadata["name"]),
            "STATUS": pod_state(pod),
            "RESTARTS": str(restarts),
            "NODE": str((pod.get("spec") or {}).get("nodeName", "")),
            "AGE": duration((now - created).total_seconds()) if created else "",
        }
        rows.append(row)
    return columns(rows)


def _waiting(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the reason and message of each waiting container."""
    status = pod.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return [mapping(mapping(container.get("state")).get("waiting")) for container in containers]


def pod_state(pod: Mapping[str, Any]) -> str:
    """Returns a pod's state in one word, as in kubectl's STATUS column."""
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    for waiting in _waiting(pod):
        if waiting.get("reason") not in (None, "PodInitializing"):
            return str(waiting["reason"])
    status = pod.get("status") or {}
    return str(status.get("reason") or status.get("phase") or "Unknown")


def pod_trouble(pod: Mapping[str, Any]) -> str:
    """Returns a pod's state with Kubernetes' message, e.g. "Pending (Unschedulable: 0/3 nodes are available)"."""
    state = pod_state(pod)
    for waiting in _waiting(pod):
        if waiting.get("reason") == state and waiting.get("message"):
            return f"{state} ({waiting['message']})"
    for condition in (pod.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"{state} ({condition.get('reason')}: {condition.get('message')})"
    return state


def job_trouble(job: TrainingJob) -> str:
    """Returns the reason why a job has no pods."""
    view = view_of(job.raw)
    obstacle = view.obstacle(called())
    return f"{view.phase}: {obstacle}" if view.is_accepted and obstacle else obstacle or view.phase


def where_time_went(job: TrainingJob, spent: TimeSpent, now: datetime) -> list[RenderableType]:
    """Returns a bar for the use of time and its legend, largest share first, if any time is accounted.

    The operator updates the account only with other changes of the status. If the last update is at least
    UNACCOUNTED_SECONDS old, a last line shows the time since that update.
    """
    # Users may have edited the status, and the bar needs valid shares.
    amounts = {name: seconds for name in TIME_CATEGORIES if is_number(seconds := getattr(spent, name)) and seconds > 0}
    until = to_datetime(spent.until)
    open_seconds = max((now - until).total_seconds(), 0.0) if until is not None and not job.finished else 0.0
    total = sum(amounts.values())
    bar = Text("time ")
    cells: list[RenderableType] = []
    drawn, reached = 0, 0.0
    for name, seconds in sorted(amounts.items(), key=lambda item: -item[1]):
        style = TIME_STYLES.get(name, "blue")
        reached += seconds
        width = round(TIME_WIDTH * reached / total) - drawn
        bar.append(("█" if name == "productive" else "▒") * width, style=style)
        drawn += width
        share = "<1%" if seconds / total < 0.005 else percent(seconds / total)
        shown = f"{seconds:.1f}s" if seconds < 10 else duration(seconds)
        cells.append(Text.assemble((name, style), f" {shown} ({share})", no_wrap=True))
    parts: list[RenderableType] = [bar, Columns(cells, padding=(0, 2))] if cells else []
    if open_seconds >= UNACCOUNTED_SECONDS:
        why = "without progress reports" if job.phase == "Running" else job.phase
        parts.append(Text(f"last {duration(open_seconds)} {why}, not accounted yet", "dim"))
    return parts


def _failures(failures: Sequence[FailureView]) -> list[RenderableType]:
    """Returns the newest failures. If a newer failure has the same cause, the message isn't repeated."""
    parts: list[RenderableType] = []
    shown: dict[tuple[str, str], int] = {}
    for failure in failures[:MAX_FAILURES]:
        heading = Text(f"{failure.reason}: {failure.place}", style="red")
        newer = shown.setdefault((failure.reason, _cause(failure)), failure.attempt)
        if newer == failure.attempt or not failure.message:
            parts.append(heading)
            parts.extend(Text(f"  {line}", style="dim") for line in failure.message.splitlines()[-8:])
        else:
            parts.append(Text.assemble(heading, (f" (the same as attempt {newer})", "dim")))
        if failure.not_continued:
            parts.append(Text(f"  all ranks restarted: {failure.not_continued}", style="dim"))
        if failure.recovery:
            parts.append(Text(f"  {failure.recovery}", style="green"))
    return parts


def _cause(failure: FailureView) -> str:
    """Returns a failure's message without the parts that differ between failures with the same cause."""
    message = failure.message
    for name in filter(None, (failure.pod, failure.node)):
        message = message.replace(name, "")
    return _NUMBER.sub("0", message)


def _without_failure(message: str, failure: FailureView) -> str:
    """Returns a condition's message without the failure's own message, which is already shown.

    "attempt 7 failed: CAUSE; no restart is left" becomes "attempt 7 failed; no restart is left", and "attempt 7 failed:
    CAUSE" becomes empty.
    """
    before, _, rest = message.partition(": ")
    if not failure.message or not before.startswith("attempt ") or not rest.startswith(failure.message):
        return message
    beside = rest.removeprefix(failure.message)
    return f"{before}{beside}" if beside else ""

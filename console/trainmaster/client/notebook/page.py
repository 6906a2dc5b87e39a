"""A job is shown as a small table, with the notebook's own look: no script, no style sheet, nothing from a network.

What users and their programs have written into a job stands in it as text.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from trainmaster.client.job import TrainingJob
from trainmaster_operator.api.printable import printable

_COLOURS = {"Succeeded": "#2e7d32", "Failed": "#c62828", "Running": "#1565c0"}
# The newest failures; kubectl dtj status has all that the job keeps.
_FAILURES = 3


def job_text(job: TrainingJob) -> str:
    """Returns the job in a few lines."""
    return "\n".join([f"{job.name}: {job.phase}", *(f"  {name}: {value}" for name, value in _rows(job))])


def job_html(job: TrainingJob) -> str:
    """Returns the job as a table."""
    colour = _COLOURS.get(job.phase, "inherit")
    head = f'<b>{_safe(job.name)}</b> <span style="color:{colour}">{_safe(job.phase)}</span>'
    progress = job.status.progress
    bar = ""
    if progress is not None and progress.step is not None and progress.total_steps:
        bar = f' <progress value="{min(progress.step, progress.total_steps)}" max="{progress.total_steps}"></progress>'
    cell = 'style="text-align:left;vertical-align:top"'
    rows = "".join(
        f"<tr><th {cell}>{_safe(name)}</th><td {cell}>{_safe(value)}</td></tr>" for name, value in _rows(job)
    )
    return f"<div>{head}{bar}<table>{rows}</table></div>"


def _rows(job: TrainingJob) -> Iterator[tuple[str, str]]:
    status = job.status
    yield "attempt", f"{status.attempt} ({status.restarts} restarts, {status.disruptions} disruptions)"
    yield "workers", f"{status.workers.running} of {status.workers.desired} running"
    progress = status.progress
    if progress is not None:
        if progress.step is not None:
            yield "step", f"{progress.step} of {progress.total_steps}" if progress.total_steps else str(progress.step)
        if progress.loss is not None:
            yield "loss", f"{progress.loss:.4g}"
        if progress.samples_per_second is not None:
            yield "samples a second", f"{progress.samples_per_second:,.0f}"
        if progress.eta_seconds is not None:
            yield "time left", f"{progress.eta_seconds:,.0f} s"
    if job.phase == "Failed":
        yield from (("failed", each.message) for each in status.conditions if each.type == "Failed")
    for failure in status.failures[:_FAILURES]:
        yield "failure", f"{failure.reason} in attempt {failure.attempt}: {failure.message}"


def _safe(text: str) -> str:
    return escape(printable(text))

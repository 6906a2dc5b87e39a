"""A notebook shows a job: `page` as a plain table, `widget` as one that follows it (where anywidget is installed)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmaster.client.errors import ClientError
from trainmaster.client.job import TrainingJob
from trainmaster.client.jobs import JobClient
from trainmaster.client.notebook.page import job_html, job_text

if TYPE_CHECKING:
    from trainmaster.client.notebook.widget import JobWidget

__all__ = ["job_bundle", "job_html", "job_text", "live", "mimebundle"]


def mimebundle(jobs: JobClient, name: str) -> dict[str, str]:
    """Returns a job as a page and as text; what is wrong with it where it can't be read."""
    try:
        job = jobs.get(name)
    except ClientError as error:
        return {"text/plain": str(error)}
    return job_bundle(job)


def job_bundle(job: TrainingJob) -> dict[str, str]:
    """Returns a job as a page and as text."""
    return {"text/plain": job_text(job), "text/html": job_html(job)}


def live(jobs: JobClient, name: str) -> JobWidget:
    """Returns a display that follows a job. Raises ClientError where anywidget isn't installed."""
    try:
        from trainmaster.client.notebook.widget import JobWidget
    except ImportError as error:
        raise ClientError("The live display needs anywidget: pip install 'trainmaster[notebook]'.") from error
    return JobWidget.following(jobs, name)

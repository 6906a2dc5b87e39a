"""Prints the diagnosis of a job: the cause in a sentence, then the evidence, then commands to paste."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainmaster.cli.terminal import wrapped
from trainmaster.client import JobClient, TrainingJob
from trainmaster.client.blocking import Blocking, run
from trainmaster.client.diagnosis import Diagnosis, diagnose
from trainmaster.client.gathering import gather, gather_all
from trainmaster_operator.api.printable import one_line

# Maximum number of jobs to diagnose. Each job needs a few requests.
MAX_JOBS = 50
# Length limit of a line of evidence in characters: a scheduler's or a policy's message can fill pages.
MAX_LINE = 1_000
MAX_INDENT = 12
FINE = frozenset({"Healthy", "Succeeded", "Starting"})


def why_lines(diagnosis: Diagnosis, width: int | None = None) -> Iterator[str]:
    """Yields the lines of a diagnosis. If a width is given, they are wrapped between words.

    The lines below "Next:" can be pasted into a shell, because texts are comments and commands aren't wrapped.
    """
    yield from wrapped(_line(diagnosis.sentence), width)
    yield from _section("Evidence:", diagnosis.evidence, width)
    if diagnosis.steps:
        yield "Next:"
        for step in diagnosis.steps:
            yield from wrapped(_line(step.text), width, first="  # ", further="  # ")
            if step.command:
                yield f"  {_line(' '.join(step.command.split()))}"
    yield from _section("Also seen:", diagnosis.others, width)
    yield from _section("Not read:", diagnosis.unread, width)


def why(jobs: JobClient, job: TrainingJob) -> Diagnosis:
    return diagnose(run(gather(Blocking(jobs.transport), job)))


def why_not_fine(jobs: JobClient, listed: Sequence[TrainingJob]) -> list[Diagnosis]:
    """Diagnoses the newest MAX_JOBS jobs that haven't succeeded, and returns the diagnoses that found trouble."""
    open_jobs = [job for job in listed if job.phase != "Succeeded"]
    newest = sorted(open_jobs, key=lambda job: str(job.raw["metadata"].get("creationTimestamp")), reverse=True)
    answers = (diagnose(situation) for situation in run(gather_all(Blocking(jobs.transport), newest[:MAX_JOBS])))
    return [answer for answer in answers if answer.cause not in FINE]


def brief(diagnosis: Diagnosis, *, namespaces: bool) -> str:
    where = f"{diagnosis.namespace}/" if namespaces else ""
    return _line(f"{where}{diagnosis.sentence}")


def _section(title: str, texts: Sequence[str], width: int | None) -> Iterator[str]:
    if texts:
        yield title
    for line in (line for text in texts for line in text.splitlines() if line.strip()):
        # A log's lines keep their indentation.
        first = "  " + " " * min(len(line) - len(line.lstrip()), MAX_INDENT)
        yield from wrapped(_line(line), width, first=first, further=f"{first}  ")


def _line(text: str) -> str:
    text = one_line(text.strip())
    return text if len(text) <= MAX_LINE else f"{text[:MAX_LINE]}..."

"""The answer to "why" as a person reads it: the cause in a sentence, then the evidence, then what can be pasted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainmaster.api.printable import one_line
from trainmaster.client import JobClient, TrainingJob
from trainmaster.client.diagnosis import Diagnosis, diagnose
from trainmaster.client.gathering import gather, gather_all

# Jobs of a list that are looked into, each with its own few requests.
MAX_JOBS = 50
# Characters of a line of evidence: the scheduler's words about a large cluster, or a policy's, go on for pages.
MAX_LINE = 1_000
FINE = frozenset({"Healthy", "Succeeded", "Starting"})


def why_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Yields the lines of an answer. The lines below "Next:" can be pasted into a shell: what isn't a command is a
    comment."""
    yield _line(diagnosis.sentence)
    if diagnosis.evidence:
        yield "Evidence:"
        yield from (f"  {_line(line)}" for line in diagnosis.evidence)
    if diagnosis.steps:
        yield "Next:"
        for step in diagnosis.steps:
            yield f"  # {_line(step.text)}"
            if step.command:
                yield f"  {_line(' '.join(step.command.split()))}"
    if diagnosis.others:
        yield "Also seen:"
        yield from (f"  {_line(other)}" for other in diagnosis.others)
    if diagnosis.unread:
        yield "Not read:"
        yield from (f"  {_line(line)}" for line in diagnosis.unread)


def why(jobs: JobClient, job: TrainingJob) -> Diagnosis:
    """Returns the answer for a job."""
    return diagnose(gather(jobs.transport, job))


def why_not_fine(jobs: JobClient, listed: Sequence[TrainingJob]) -> list[Diagnosis]:
    """Returns the answers for the jobs that aren't fine, of the newest MAX_JOBS that haven't succeeded."""
    open_jobs = [job for job in listed if job.phase != "Succeeded"]
    newest = sorted(open_jobs, key=lambda job: str(job.raw["metadata"].get("creationTimestamp")), reverse=True)
    answers = (diagnose(situation) for situation in gather_all(jobs.transport, newest[:MAX_JOBS]))
    return [answer for answer in answers if answer.cause not in FINE]


def brief(diagnosis: Diagnosis, *, namespaces: bool) -> str:
    """Returns an answer in one line."""
    where = f"{diagnosis.namespace}/" if namespaces else ""
    return _line(f"{where}{diagnosis.sentence}")


def _line(text: str) -> str:
    text = one_line(text.strip("\n").replace("\n", " | "))
    return text if len(text) <= MAX_LINE else f"{text[:MAX_LINE]}..."

"""What a continued attempt says to people: who trains, for how long, and what the others wait for."""

from __future__ import annotations

from datetime import datetime

from trainmaster.client.job import TrainingJob
from trainmaster_operator.api.times import duration, since


def trains_with(job: TrainingJob, now: datetime) -> str:
    """Returns who trains and for how long, as in `with 3 of 4 workers for 14 s`; empty where all ranks do."""
    status = job.status
    if job.phase != "Running" or status.training_with is None:
        return ""
    seconds = since(now.timestamp(), status.attempt_start_time)
    return f"with {status.training_with} for {duration(seconds)}"


def rest(job: TrainingJob) -> str:
    """Returns what the absent ranks wait for, or how they came back: what the operator's sentence ends with."""
    running = next((each for each in job.status.conditions if each.type == "Running"), None)
    if job.phase != "Running" or running is None or running.reason not in ("Continued", "Joined"):
        return ""
    return running.message.partition("; ")[2]

"""A job that trains on without some of its ranks: what these wait for."""

from __future__ import annotations

from collections.abc import Iterator

from trainmaster.client.diagnosis.finding import Finding, Step
from trainmaster.client.diagnosis.situation import Situation
from trainmaster.client.sentences import rest


def continuing_findings(situation: Situation) -> Iterator[Finding]:
    """Yields what the absent ranks wait for, where nothing else keeps their pods from starting."""
    if not situation.lacks_ranks:
        return
    status = situation.job.status
    evidence = tuple(f"attempt {one.attempt} ended: {one.reason}: {one.message[:200]}" for one in status.failures[:1])
    look = Step("what their workers say", f"kubectl dtj logs {situation.name} {situation.where}")
    yield Finding("Continued", rest(situation.job).rstrip(".") or "the others are starting", evidence, (look,))

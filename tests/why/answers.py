"""The diagnosis answers in each situation, and its answer is compared with the cause that a person names."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.why.cluster import ClusterOfObjects
from tests.why.situations import Expected
from trainmaster.client import TrainingJob
from trainmaster.client.blocking import Blocking, run
from trainmaster.client.diagnosis import Diagnosis, Situation, diagnose
from trainmaster.client.gathering import gather


@dataclass(frozen=True)
class Answer:
    """Holds the diagnosis of a situation."""

    expected: Expected
    diagnosis: Diagnosis

    @property
    def is_right(self) -> bool:
        """Returns whether the cause is the expected one, and the sentence contains the required words."""
        sentence = self.diagnosis.sentence.lower()
        return self.diagnosis.cause == self.expected.cause and all(
            word.lower() in sentence for word in self.expected.says
        )


def situation_of(expected: Expected) -> Situation:
    """Reads the situation as `kubectl dtj why` does: from the cluster's objects."""
    raw = next(
        item
        for item in expected.objects
        if item["kind"] == "DistributedTrainingJob" and item["metadata"]["name"] == expected.job
    )
    situation = run(gather(Blocking(ClusterOfObjects(expected)), TrainingJob.of(raw)))
    return situation if expected.now is None else replace(situation, now=expected.now)


def answer(expected: Expected) -> Answer:
    """Asks why the job is in its state."""
    return Answer(expected, diagnose(situation_of(expected)))

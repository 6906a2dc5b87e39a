"""In recorded situations, `why` names the same cause as a person does, in all but two at most."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.why.answers import answer
from tests.why.cluster import ClusterOfObjects
from tests.why.situations import Expected, all_situations
from trainmaster.client import TrainingJob
from trainmaster.client.blocking import Blocking, run
from trainmaster.client.diagnosis import diagnose
from trainmaster.client.gathering import gather

SITUATIONS = all_situations()
LEAST_SITUATIONS, MOST_WRONG = 85, 2


def test_the_causes_are_those_that_a_person_names() -> None:
    answers = [answer(one) for one in SITUATIONS]
    wrong = [f"{one.expected.name}: {one.diagnosis.sentence}" for one in answers if not one.is_right]
    assert len(answers) >= LEAST_SITUATIONS
    assert len(wrong) <= MOST_WRONG, "\n".join(wrong)


@pytest.mark.parametrize("expected", SITUATIONS, ids=lambda one: one.name)
def test_an_answer_is_one_sentence_with_evidence_and_a_next_step(expected: Expected) -> None:
    found = answer(expected).diagnosis
    assert found.sentence.startswith(f"{expected.job} ") and found.sentence.endswith(".")
    assert "\n" not in found.sentence and len(found.sentence) < 700
    if found.cause not in ("Healthy", "Succeeded"):
        assert found.steps, "what to do next"
    for step in found.steps:
        assert step.text or step.command
        assert "{" not in step.command, "a command can be pasted"


@pytest.mark.parametrize("expected", SITUATIONS, ids=lambda one: one.name)
def test_whatever_may_not_be_read_is_said_and_breaks_nothing(expected: Expected) -> None:
    kinds = ("pods", "statefulsets", "events", "configmaps", "nodes")
    kinds += ("persistentvolumeclaims", "workloads", "deployments")
    blind = replace(expected, forbidden=kinds, logs={}, metrics={})
    raw = next(item for item in expected.objects if item["kind"] == "DistributedTrainingJob")
    found = diagnose(run(gather(Blocking(ClusterOfObjects(blind)), TrainingJob.of(raw))))
    assert found.sentence
    assert any("pods couldn't be read" in line for line in found.unread)


@pytest.mark.parametrize("expected", SITUATIONS, ids=lambda one: one.name)
def test_a_question_costs_few_requests(expected: Expected) -> None:
    raw = next(item for item in expected.objects if item["kind"] == "DistributedTrainingJob")
    cluster = ClusterOfObjects(expected)
    run(gather(Blocking(cluster), TrainingJob.of(raw)))
    assert len(cluster.asked) <= 20

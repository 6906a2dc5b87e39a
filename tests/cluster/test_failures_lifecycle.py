"""A job's owner ends it by the deadline or the time to live, and may change some fields while it runs."""

from __future__ import annotations

import re

import pytest

from tests.cluster.scenarios import Scenario, train
from trainmaster_local.testing.clusters import Refused

# Takes a second for SIGTERM, and then prints a line.
PRINT = """
def leave(*_):
    print("has to leave", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, leave)
"""


def test_the_deadline_ends_a_job_with_a_sigterm_and_frees_its_pods(scenario: Scenario) -> None:
    scenario.apply(train(first=PRINT), runPolicy={"activeDeadlineSeconds": 2})
    scenario.until_phase("Failed")
    why = scenario.why("Failed")
    assert why["reason"] == "DeadlineExceeded"
    assert "active for 2 s (runPolicy.activeDeadlineSeconds)" in why["message"]
    assert scenario.accounts == (1, 0, 0)
    scenario.until(lambda: not scenario.pods(), "pods gone")


def test_a_finished_job_goes_with_all_that_is_its_own_when_its_time_is_over(scenario: Scenario) -> None:
    scenario.apply(train(faults=0), runPolicy={"ttlSecondsAfterFinished": 3})
    scenario.until_phase("Succeeded")
    cluster, label = scenario.cluster, f"trainmaster.dev/job-name={scenario.name}"
    kinds = "distributedtrainingjobs,statefulsets,services,configmaps,pods"
    names = [scenario.name, f"{scenario.name}-logs"]
    scenario.until(
        lambda: (
            not cluster.items(kinds, labels=label)
            and not [item for item in cluster.items(kinds) if item["metadata"]["name"] in names]
        ),
        "nothing left",
    )


def test_a_running_job_refuses_what_cannot_change_with_a_sentence_and_takes_what_can(scenario: Scenario) -> None:
    scenario.apply()
    started = scenario.until_training()
    for change, sentence in {
        '{"image": "python:3.12"}': "spec.image: Forbidden: can't be changed once the job exists; delete the job",
        '{"command": ["true"]}': "spec.command: Forbidden: can't be changed once the job exists",
        '{"workers": 3}': "spec.workers: Forbidden: can't be changed, because the job isn't elastic",
        '{"failurePolicy": {"hang": {"progressSeconds": 5}}}': "because agents keep the limits they were started with",
    }.items():
        with pytest.raises(Refused, match=re.escape(sentence)):
            scenario.patch(change)
    scenario.patch('{"failurePolicy": {"maxRestarts": 0}}')
    scenario.cluster.eventually(
        lambda: scenario.status["observedGeneration"] == 2, what="the operator has seen the new budget"
    )
    assert {start.pid for start in scenario.starts()} == {start.pid for start in started.values()}, "trains on"
    scenario.send(0, started[0].pid, 9)
    scenario.until_phase("Failed")
    assert scenario.why("Failed")["reason"] == "MaxRestartsExceeded"

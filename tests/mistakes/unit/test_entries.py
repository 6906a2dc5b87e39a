"""Entries of tests/mistakes are read (`entries`), compared with answers (`agreement`) and shown (`table`)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from tests.mistakes.agreement import offline_differences, online_differences
from tests.mistakes.entries import Entry, WrongEntry, all_entries, read_theme
from tests.mistakes.offline import Verdict
from tests.mistakes.online import Answer
from tests.mistakes.table import table

SENTENCE = "spec.workers: 0 is too small; use at least 1"
ENTRY = Entry("numbers", "no workers", "text", (SENTENCE,), "rule")
REFUSED = Verdict(False, (f"6:3: {SENTENCE}",))


def test_a_part_of_a_job_is_written_into_a_right_one() -> None:
    text = """
theme: variables
refused:
  - name: enviroment for env
    worker: |
      enviroment:
        - {name: A}
    validate: "spec: wrong"
"""
    [entry] = read_theme(text, "variables.yaml")
    assert yaml.safe_load(entry.manifest) == {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": "enviroment-for-env"},
        "spec": {
            "workers": 1,
            "podTemplate": {"spec": {"containers": [{"name": "worker", "enviroment": [{"name": "A"}]}]}},
        },
    }


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("{name: a, spec: 'workers: 1'}", "a.yaml: a: validate has no sentence"),
        ("{name: a, validate: x}", "a.yaml: a: has 0 of file, metadata, spec, training, pod, worker, not one"),
        ("{name: a, spec: x, validate: x, onlin: rule}", "a.yaml: a: unknown keys onlin"),
        ("{name: a, spec: x, validate: x, online: server}", "a.yaml: a: online has server, not one of"),
        ("{name: a, spec: x, validate: x, online: schema}", "a.yaml: a: schema needs its text"),
    ],
)
def test_an_entry_that_is_written_wrong_is_named(raw: str, said: str) -> None:
    with pytest.raises(WrongEntry) as raised:
        list(read_theme(f"theme: t\nrefused: [{raw}]", "a.yaml"))
    assert str(raised.value).startswith(said)


def test_there_are_as_many_as_were_asked_for() -> None:
    assert sum(entry.by is not None for entry in all_entries()) >= 400


def test_an_expected_answer_is_no_difference() -> None:
    assert list(offline_differences(ENTRY, REFUSED)) == []
    assert list(online_differences(ENTRY, Answer("server", f"The job is invalid: {SENTENCE}"))) == []
    shown = 'invalid: spec.workers: Invalid value: "integer": 0 is too small; use at least 1'
    assert list(online_differences(ENTRY, Answer("server", shown))) == []


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (Verdict(True, ()), ["validate accepts it", "validate says nothing"]),
        (Verdict(False, ("6:3: spec.workers: wrong",)), ["validate says spec.workers: wrong"]),
        (Verdict(False, (*REFUSED.lines, "7:1: more")), [f"validate says {SENTENCE} | more"]),
    ],
)
def test_another_verdict_is_a_difference(verdict: Verdict, said: list[str]) -> None:
    assert list(offline_differences(ENTRY, verdict)) == said


@pytest.mark.parametrize(
    ("entry", "answer"),
    [
        (ENTRY, Answer(None)),
        (ENTRY, Answer("operator", f"InvalidSpec: {SENTENCE}")),
        (ENTRY, Answer("server", "invalid: spec.workers: wrong")),
        (ENTRY, Answer("silence", "{'phase': 'Pending'}")),
        (replace(ENTRY, by="schema", says=("should be at least 1",)), Answer("server", SENTENCE)),
        (replace(ENTRY, by="operator"), Answer("operator", f"Unschedulable: {SENTENCE}")),
        (replace(ENTRY, by="nobody"), Answer("server", SENTENCE)),
        (replace(ENTRY, by=None, sentences=()), Answer("server", SENTENCE)),
    ],
)
def test_another_answer_of_the_cluster_is_a_difference(entry: Entry, answer: Answer) -> None:
    assert len(list(online_differences(entry, answer))) == 1


def test_the_table_has_a_row_for_each_entry_and_fits_a_terminal() -> None:
    verdicts = {ENTRY.name: REFUSED}
    shown = table([ENTRY], verdicts, {ENTRY.name: Answer("operator", "x" * 300)})
    assert all(len(line) <= 120 for line in shown.splitlines())
    assert "DIFFERS" in shown and "1 manifest" in shown
    assert "DIFFERS" not in table([ENTRY], verdicts, {ENTRY.name: Answer("server", SENTENCE)})

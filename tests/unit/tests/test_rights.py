"""tests/rights.py compares the operator's rights with the rights that it uses."""

from __future__ import annotations

import json
from pathlib import Path

from tests.rights import Right, asked_for, given, main, problems

ROLE = {
    "rules": [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "patch"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": ["keys"]},
    ]
}
ALL = [Right("", "pods", "get"), Right("", "pods", "patch"), Right("", "secrets", "get", "keys")]


def test_rights_that_are_all_used_are_fine() -> None:
    assert list(given([ROLE])) == ALL
    assert problems(ALL, ALL) == []


def test_a_right_that_is_missing_is_reported() -> None:
    asked = [*ALL, Right("apps", "statefulsets", "delete"), Right("", "secrets", "get", "other")]
    assert problems(ALL, asked) == [
        "The chart doesn't give the operator what it asks for: get secrets other.",
        "The chart doesn't give the operator what it asks for: delete statefulsets.apps.",
    ]


def test_a_right_that_is_never_used_is_reported() -> None:
    assert problems(ALL, ALL[:1]) == [
        "The chart gives the operator what no test makes it ask for: patch pods.",
        "The chart gives the operator what no test makes it ask for: get secrets keys.",
    ]


def test_what_was_asked_for_is_read_of_all_processes(tmp_path: Path) -> None:
    for number, right in enumerate(ALL):
        (tmp_path / f"{number}.jsonl").write_text(
            json.dumps([right.group, right.resource, right.verb, right.name]) + "\n"
        )
    assert asked_for(tmp_path) == set(ALL)
    # The processes asked only to read and patch pods, and the chart gives more rights.
    assert main([str(tmp_path)]) == 1

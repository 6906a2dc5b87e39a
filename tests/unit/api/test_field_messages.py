"""No value that JSON can hold makes a sentence that isn't ours, and every pattern of the schema has a hint."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hostile_json import SCALARS
from trainmaster_operator.api.misplaced import model_in
from trainmaster_operator.api.nearest import nearest
from trainmaster_operator.api.parsing import InvalidJob, parse_job, parse_spec
from trainmaster_operator.api.v1alpha1 import JobSpec, SpecModel
from trainmaster_operator.api.values import HINTS, QUANTITY_PATTERN, SHORT_EXPONENT_PATTERN, number, show

# Each of these has a type of its own, whose sentence says what it may be.
OWN_SENTENCES = {QUANTITY_PATTERN, SHORT_EXPONENT_PATTERN}
# A Python word, an exponent or the begin of a regular expression.
FOREIGN = re.compile(r"Input should|pydantic|Python|\bdict\b|\bNone\b|\d[eE]\+|\^\[|\\d|\\S|\[a-z")

VALUES = SCALARS | st.just([]) | st.just({}) | st.lists(SCALARS, max_size=2) | st.just({"\ud800": 1})


def _fields(model: type[SpecModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every field of the spec, with a list's first item as `0`."""
    for name, info in model.model_fields.items():
        here = (*path, info.alias or name)
        yield here
        is_list = "list[" in str(info.annotation)
        if is_list:
            yield (*here, "0")
        inner = model_in(info.annotation)
        if inner is not None:
            yield from _fields(inner, (*here, "0") if is_list else here)


def _patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        for child in schema.values():
            yield from _patterns(child)
    elif isinstance(schema, list):
        for child in schema:
            yield from _patterns(child)


def _with(path: tuple[str, ...], value: Any) -> Any:
    for part in reversed(path):
        value = [value] if part == "0" else {part: value}
    return value


FIELDS = st.sampled_from(sorted(_fields(JobSpec)))


@given(FIELDS, VALUES, st.sampled_from(["", "extra", "max_restarts", "0", "\ud800"]))
def test_every_sentence_is_ours(path: tuple[str, ...], value: Any, below: str) -> None:
    wrong = {below: value} if below and path[-1] != "0" else value
    try:
        parse_spec({"workers": 1, **_with(path, wrong)}, "bert")
    except InvalidJob as error:
        for problem in error.problems:
            # keepPods has a value of that name.
            ours = problem.message.replace("None, Failed or All", "")
            ours = ours.replace(str(value), "") if isinstance(value, str) and value else ours
            assert not FOREIGN.search(ours), str(problem)


def test_every_pattern_has_a_hint() -> None:
    found = set(_patterns(JobSpec.model_json_schema()))
    assert found & set(HINTS)
    assert found - OWN_SENTENCES - set(HINTS) == set()
    assert not [hint for hint in HINTS.values() if FOREIGN.search(hint)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (31536000.0, "31536000"),
        (1e6, "1000000"),
        (1000000, "1000000"),
        (1e-4, "0.0001"),
        (0.5, "0.5"),
        (40.0, "40"),
        (1e21, "1e21"),
        (1e-7, "1e-7"),
        (0.0, "0"),
        (-2.5, "-2.5"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
    ],
)
def test_a_number_is_shown_as_people_write_it(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("name", "meant"),
    [("maxrestarts", "maxRestarts"), ("max-restarts", "maxRestarts"), ("MAX_RESTART", "maxRestarts"), ("x", None)],
)
def test_names_are_compared_without_case_and_separators(name: str, meant: str | None) -> None:
    assert nearest(name, ["maxRestarts", "backoff"]) == meant


def test_a_very_long_name_is_compared_in_no_time() -> None:
    assert nearest("maxRestarts" * 100_000, ["maxRestarts"]) is None


@given(VALUES)
def test_every_sentence_on_what_stands_beside_the_spec_is_ours(value: Any) -> None:
    for field in ("apiVersion", "kind", "metadata", "spec"):
        job = {"apiVersion": "trainmaster.dev/v1alpha1", "kind": "DistributedTrainingJob", "metadata": {"name": "a"}}
        try:
            parse_job({**job, "spec": {"workers": 1}, field: value})
        except InvalidJob as error:
            for problem in error.problems:
                ours = problem.message.replace(repr(value), "")
                assert not FOREIGN.search(ours), str(problem)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (r"(\d+)+", r"'(\d+)+'"),
        ("it's", '"it\'s"'),
        ("a\nb\tc\x1b[2J\u202ed", r"'a\nb\tc\x1b[2J\u202ed'"),
        ("Schrödinger", "'Schrödinger'"),
    ],
)
def test_a_text_is_shown_as_it_stands_in_the_file_and_what_can_t_be_seen_is_escaped(text: str, shown: str) -> None:
    assert show(text) == shown


def test_a_pattern_is_shown_with_the_backslashes_that_it_has() -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_spec({"image": "a/b:1", "command": ["x"], "progress": {"pattern": r"(?P<step>(\d+)+)"}}, "job")
    assert str(caught.value).startswith(r"spec.progress.pattern: '(?P<step>(\d+)+)' repeats what")

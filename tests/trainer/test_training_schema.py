"""The operator rejects of `training` what the bundled loop would reject, and accepts everything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainloop.config import parse_config
from trainloop.errors import ConfigError
from trainloop.settings import sentences as loop_sentences
from trainloop.tasks import BUILT_IN, imported
from trainmaster_operator.api import training_schema
from trainmaster_operator.api.parsing import InvalidJob, parse_spec

SCHEMAS: dict[str, Any] = json.loads(Path(training_schema.__file__).with_suffix(".json").read_text("utf-8"))
JUNK: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 0.5, 1.0, -0.5, 1e30, 10**30, "", "x", "3", " 3 ", "3.0", "1_000", "0.5", "1e-3"),
    *("inf", "nan", "off", "yes", "True", "(", [], {}, [0.9, 0.99], [0.9], [1, 2], ["x"], ["a:b"], {"x": 1}, "auto"),
]
# JSON schema can't express rules between fields; the loop's own tests cover them.
BETWEEN_FIELDS = (
    "these don't go together",
    "the accumulation follows",
    "period is missing",
    "reference_batch is missing",
)


def values(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    right = [value for one in schema.get("anyOf", [schema]) for value in one.get("enum", ())]
    return st.sampled_from([*right, *right, *JUNK])


def section(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    fields = {
        name: section(child) if "properties" in child else values(child) for name, child in schema["properties"].items()
    }
    drawn = st.lists(st.sampled_from(sorted(fields)), max_size=3, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: fields[name] for name in names})
    )
    return st.one_of(drawn, drawn, drawn, drawn.map(lambda given: {**given, "extra": 1}), st.sampled_from(JUNK))


def refused(document: Any) -> list[str]:
    try:
        parse_spec({"workers": 1, "training": document}, "job")
    except InvalidJob as error:
        return [str(problem) for problem in error.problems]
    return []


def refused_by_the_loop(document: dict[str, Any]) -> str:
    try:
        config = parse_config(document)
    except ConfigError as error:
        return str(error)
    if ":" in config.task.name:
        return ""
    if config.task.name not in BUILT_IN:
        return "no task"
    kind = imported("task.name", BUILT_IN[config.task.name]).Options
    try:
        kind.model_validate(config.task.options)
    except ValueError as error:
        return "\n".join(loop_sentences(error, kind))  # type: ignore[arg-type]
    return ""


DOCUMENTS = section(SCHEMAS["config"]).filter(lambda drawn: isinstance(drawn, dict))
RIGHT = {"steps": 3, "batch": {"size": 8}}


@given(DOCUMENTS, st.booleans())
def test_what_the_loop_accepts_is_accepted_and_what_it_refuses_is_refused(document: Any, complete: bool) -> None:
    if complete:
        document = {**document, **RIGHT}
        document.pop("epochs", None)
    ours, loops = refused(document), refused_by_the_loop(document)
    if any(text in loops for text in BETWEEN_FIELDS):
        return
    assert bool(ours) == bool(loops), f"operator: {ours}\nloop: {loops}"


@pytest.mark.parametrize("task", sorted(BUILT_IN))
@given(st.data())
def test_so_are_the_options_of_the_built_in_tasks(task: str, data: st.DataObject) -> None:
    options = data.draw(section(SCHEMAS["tasks"][task]).filter(lambda drawn: isinstance(drawn, dict)))
    document = {**RIGHT, "task": {"name": task, "options": options}}
    ours, loops = refused(document), refused_by_the_loop(document)
    assert bool(ours) == bool(loops), f"operator: {ours}\nloop: {loops}"

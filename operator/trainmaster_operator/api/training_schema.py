"""Checks `training` by the bundled loop's schema, so that mistakes are found before any pod starts.

`training_schema.json` is generated from the loop's models (`make generate`), because the operator doesn't import the
loop. Other versions of the loop may have other fields, so only jobs with this version's image and without their own
command are checked. Options of a task `module:function` aren't checked. Values are read as leniently as the loop reads
them (pydantic accepts `'3'` as a number). Only the loop reports settings that can't be combined.
"""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from trainmaster_operator.api.problems import (
    SIMILAR,
    Problem,
    did_you_mean,
    either,
    nearest,
    typographic_quotes,
    wrong_type,
)
from trainmaster_operator.api.v1alpha1 import DEFAULT_IMAGE, JobSpec
from trainmaster_operator.api.values import out_of_range, show

SCHEMAS: Mapping[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
# Maximum number of problems, because comparing names takes time and a document can contain many wrong names.
_MOST_PROBLEMS = 10
# Maximum number of fields in a message.
_FEW = 8
_PATH = "spec.training"
# Names that other libraries' trainers use for the outermost fields.
ALIASES: Mapping[str, str] = {
    alias: field
    for field, aliases in {
        "batch.accumulation": "accumulate_grad_batches gradient_accumulation_steps",
        "batch.per_rank": "per_device_train_batch_size",
        "batch.size": "batch_size train_batch_size",
        "checkpoint.every_steps": "save_every save_steps",
        "checkpoint.path": "checkpoint_dir output_dir",
        "data.workers": "num_workers",
        "epochs": "num_train_epochs",
        "optimizer.lr": "learning_rate",
        "optimizer.max_norm": "clip_grad_norm max_grad_norm",
        "precision.compute": "amp bf16 fp16",
        "schedule.warmup": "warmup_steps",
        "task.options": "dataset model",
    }.items()
    for alias in aliases.split()
}
# JSON Schema's names of bounds, and pydantic's names for the same bounds.
_BOUNDS = {"minimum": "ge", "exclusiveMinimum": "gt", "maximum": "le", "exclusiveMaximum": "lt"}
_TYPES = {"integer": int, "number": float, "string": str, "boolean": bool, "object": dict, "null": None}
# pydantic's errors for text that it can't parse as a type, and its errors for other values of a wrong type.
_PARSING = {f"{kind}_parsing": f"{kind}_type" for kind in ("int", "float", "bool")} | {"int_parsing_size": "int_type"}


def check_training(spec: JobSpec) -> Iterator[Problem]:
    """Yields at most ten problems that the bundled loop would find in `training`."""
    ours = spec.image == DEFAULT_IMAGE or spec.image.startswith(f"{DEFAULT_IMAGE}@")
    options = {argument.split("=", 1)[0] for argument in spec.args}
    if spec.training is None or spec.command is not None or not ours or "--config" in options:
        return
    # `--set` may add missing fields.
    partial = "--set" in options
    yield from islice(_check_document(spec.training.value(), partial), _MOST_PROBLEMS)


def _check_document(document: dict[str, Any], partial: bool) -> Iterator[Problem]:
    # The loop ignores a null section, which contains only comments.
    given = {name: value for name, value in document.items() if value is not None}
    yield from _check(_PATH, given, SCHEMAS["config"], partial)
    task = given.get("task")
    name = task.get("name", "reviews") if isinstance(task, dict) else None
    if not isinstance(task, dict) or not isinstance(name, str) or ":" in name:
        return
    tasks = SCHEMAS["tasks"]
    if name not in tasks:
        remedy = did_you_mean(name, tasks, f"use {', '.join(tasks)}, or your own as module:function", SIMILAR)
        yield Problem(f"{_PATH}.task.name", name, f"{show(name)} is not a task; {remedy}")
    elif isinstance(task.get("options"), dict):
        yield from _check(f"{_PATH}.task.options", task["options"], tasks[name], partial)


def _check(path: str, value: Any, schema: Mapping[str, Any], partial: bool) -> Iterator[Problem]:
    if "properties" in schema:
        yield from _check_section(path, value, schema, partial)
        return
    alternatives = schema.get("anyOf", [schema])
    # A list is meant for the alternative that is a list.
    fitting = [one for one in alternatives if (one["type"] == "array") == isinstance(value, list)] or alternatives
    try:
        _reader(json.dumps(fitting)).validate_python(value)
    except ValidationError as error:
        found: dict[str, Problem] = {}
        for detail in error.errors(include_url=False):
            place = path + "".join(f"[{part}]" for part in detail["loc"] if isinstance(part, int))
            found.setdefault(place, Problem(place, detail["input"], _message(detail, fitting[0])))
        yield from found.values()


def _check_section(path: str, value: Any, schema: Mapping[str, Any], partial: bool) -> Iterator[Problem]:
    fields = schema["properties"]
    if not isinstance(value, dict):
        yield Problem(path, value, wrong_type("dict_type", value, fields=list(fields)) or "")
        return
    # A misspelled field isn't also reported as missing.
    given = {name for name, child in value.items() if child is not None}
    for name, child in value.items():
        if name in fields:
            yield from _check(f"{path}.{name}", child, fields[name], partial)
        else:
            shown = name if len(name) <= 80 else show(name)
            aliases = ALIASES if path == _PATH else {}
            near = nearest(name, (*fields, *aliases))
            near = aliases.get(near, near) if near is not None else None
            given.add(near.partition(".")[0] if near else name)
            meant = f"did you mean {near}?" if near is not None else _elsewhere(name, fields)
            yield Problem(f"{path}.{shown}", child, f"unknown field; {meant}")
    if partial:
        return
    for name in schema.get("required", ()):
        if name not in given:
            yield Problem(f"{path}.{name}", None, "is missing; set it")
    for combination, exactly in (("oneOf", True), ("anyOf", False)):
        choices = [name for one in schema.get(combination, ()) for name in one["required"]]
        there = [name for name in choices if name in given]
        if choices and not there:
            yield Problem(path, None, f"has neither {' nor '.join(choices)}; set one of them")
        elif exactly and len(there) > 1:
            yield Problem(path, None, f"has both {' and '.join(there)}; set one of them")


def _elsewhere(name: str, fields: Mapping[str, Any]) -> str:
    sections = SCHEMAS["config"]["properties"]
    found = [f"{section}.{name}" for section, of in sections.items() if name in of.get("properties", ())]
    if found:
        return f"did you mean {' or '.join(found)}?"
    if len(fields) > _FEW:
        return "remove it (docs/training-reference.md lists the fields)"
    return f"use one of {', '.join(fields)}"


@functools.cache
def _reader(alternatives: str) -> TypeAdapter[Any]:
    """Returns the adapter that reads a value as the loop does. `alternatives` are the value's schemas, as JSON."""
    return TypeAdapter(functools.reduce(operator.or_, map(_type, json.loads(alternatives))))


def _type(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        # YAML 1.1 reads an unquoted `off` as false.
        return Literal[tuple(schema["enum"] + [False] * ("off" in schema["enum"]))]
    kind = schema["type"]
    if kind == "array":
        # All items of the loop's lists have one type.
        item = _type(schema["items"] if "items" in schema else schema["prefixItems"][0])
        items = list[item]  # type: ignore[valid-type]
        return Annotated[items, Field(min_length=schema.get("minItems"), max_length=schema.get("maxItems"))]
    if kind in ("integer", "number"):
        bounds = {ours: schema[name] for name, ours in _BOUNDS.items() if name in schema}
        finite = None if kind == "integer" else False
        return Annotated[_TYPES[kind], Field(allow_inf_nan=finite, **bounds), BeforeValidator(_number)]
    return Annotated[str, AfterValidator(_expression)] if schema.get("format") == "regex" else _TYPES[kind]


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "a switch")
    return value


def _expression(text: str) -> str:
    try:
        # Longer regular expressions aren't compiled, because that takes time.
        re.compile(text if len(text) <= 1000 else "")
    except (re.error, RecursionError, OverflowError):
        raise PydanticCustomError(
            "pattern", "{shown} is not a valid regular expression; correct it", {"shown": show(text)}
        ) from None
    return text


def _message(detail: ErrorDetails, schema: Mapping[str, Any]) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    message = typographic_quotes(value) or wrong_type(_PARSING.get(kind, kind), value)
    if message is not None:
        return message
    if kind == "literal_error":
        known = schema.get("items", schema)["enum"]
        remedy = did_you_mean(value if isinstance(value, str) else "", known, f"use {either(known)}", SIMILAR)
        return f"{show(value)} is not known; {remedy}"
    if kind in ("too_short", "too_long"):
        return f"has {context['actual_length']} items; give {schema['minItems']}"
    return detail["msg"] if kind == "pattern" else f"{show(value)} {out_of_range(context)}"

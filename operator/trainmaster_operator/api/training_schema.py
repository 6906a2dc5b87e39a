"""Checks `training` by the bundled loop's schema, so that mistakes are found before any pod starts.

`training_schema.json` is generated from the loop's models (`make generate`), because the operator doesn't import the
loop. Other versions of the loop may have other fields, so only jobs with this version's image and without their own
command are checked. Options of a task `module:function` aren't checked. Values are read as leniently as the loop reads
them (pydantic accepts `'3'` as a number). The loop itself reports settings that can't be combined.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

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
# Maximum number of problems, because comparing names takes time and a document can contain many wrong ones.
_MOST_PROBLEMS = 10
# Maximum number of fields in a message.
_FEW = 8
# Longer regular expressions aren't compiled, because that takes time.
_LONGEST_EXPRESSION = 1000
_PATH = "spec.training"
_WHOLE = re.compile(r"\s*[-+]?[0-9]+(?:_[0-9]+)*(?:[.]0*)?\s*")
_SWITCHES = frozenset({"0", "off", "f", "false", "n", "no", "1", "on", "t", "true", "y", "yes"})
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
# JSON Schema's keywords, each with pydantic's name for the bound and the comparison that finds a number beyond it.
_BOUNDS: Mapping[str, tuple[str, Callable[[float, float], bool]]] = {
    "minimum": ("ge", operator.lt),
    "exclusiveMinimum": ("gt", operator.le),
    "maximum": ("le", operator.gt),
    "exclusiveMaximum": ("lt", operator.ge),
}
# The loop's types, each with the name of pydantic's error for a wrong type.
_KINDS = {
    "integer": "int_type",
    "number": "float_type",
    "string": "string_type",
    "boolean": "bool_type",
    "array": "list_type",
    "object": "dict_type",
}


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
    if value is None and any(one.get("type") == "null" for one in alternatives):
        return
    alternatives = [one for one in alternatives if one.get("type") != "null"]
    messages = [_wrong(value, one) for one in alternatives]
    if all(message is not None for message in messages):
        yield Problem(path, value, typographic_quotes(value) or messages[0] or "")
        return
    fitting = alternatives[messages.index(None)]
    for position, item in enumerate(value if isinstance(value, list) else ()):
        parts = fitting.get("prefixItems", ())
        item_schema = parts[position] if position < len(parts) else fitting.get("items")
        if item_schema is not None:
            yield from _check(f"{path}[{position}]", item, item_schema, partial)


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
            near = _nearest(path, name, fields)
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


def _nearest(path: str, name: str, fields: Mapping[str, Any]) -> str | None:
    aliases = ALIASES if path == _PATH else {}
    near = nearest(name, (*fields, *aliases))
    return aliases.get(near, near) if near is not None else None


def _elsewhere(name: str, fields: Mapping[str, Any]) -> str:
    sections = SCHEMAS["config"]["properties"]
    found = [f"{section}.{name}" for section, of in sections.items() if name in of.get("properties", ())]
    if found:
        return f"did you mean {' or '.join(found)}?"
    if len(fields) > _FEW:
        return "remove it (docs/training-reference.md lists the fields)"
    return f"use one of {', '.join(fields)}"


def _wrong(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Returns the problem of a value that isn't a section, or None."""
    if "enum" in schema:
        # YAML 1.1 reads an unquoted `off` as false.
        known = schema["enum"]
        if value in known or (value is False and "off" in known):
            return None
        remedy = did_you_mean(value if isinstance(value, str) else "", known, f"use {either(known)}", SIMILAR)
        return f"{show(value)} is not known; {remedy}"
    kind = schema["type"]
    read = _read(value, kind)
    if read is None:
        return wrong_type(_KINDS[kind], value)
    if kind in ("integer", "number"):
        range_ = _out_of_range(read, schema)
        return range_ and f"{show(value)} {range_}"
    if kind == "array" and not schema.get("minItems", 0) <= len(read) <= schema.get("maxItems", len(read)):
        return f"has {len(read)} items; give {schema['minItems']}"
    if schema.get("format") == "regex" and len(read) <= _LONGEST_EXPRESSION:
        try:
            re.compile(read)
        except (re.error, RecursionError, OverflowError):
            return f"{show(value)} is not a valid regular expression; correct it"
    return None


def _out_of_range(value: float, schema: Mapping[str, Any]) -> str | None:
    for keyword, (bound, beyond) in _BOUNDS.items():
        if keyword in schema and beyond(value, schema[keyword]):
            return out_of_range({bound: schema[keyword]})
    return None


def _read(value: Any, kind: str) -> Any:
    """Returns a value as the loop reads it for this type, or None if the loop refuses the value."""
    match kind:
        case "integer" if isinstance(value, str):
            return int(float(value)) if _WHOLE.fullmatch(value) and len(value) < 300 else None
        case "integer":
            whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer() and abs(value) < 2**63)
            return int(value) if whole and not isinstance(value, bool) else None
        case "number" if not isinstance(value, bool) and isinstance(value, int | float | str):
            return _finite(value)
        case "boolean":
            return value if str(value).lower() in _SWITCHES and not isinstance(value, list | dict) else None
        case "string":
            return value if isinstance(value, str) else None
        case "array":
            return value if isinstance(value, list) else None
        case "object":
            return value if isinstance(value, dict) else None
    return None


def _finite(value: float | str) -> float | None:
    try:
        read = float(value)
    except (ValueError, OverflowError):
        return None
    return read if math.isfinite(read) else None

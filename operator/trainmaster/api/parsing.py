"""Read a job as the user wrote it: either a checked `JobSpec`, or everything that is wrong in sentences.

What is too large is refused before it is read (`limits`). Fields are checked by the models, then relations between
fields by `rules`, then the podTemplate. As in the API server, the rules only see a spec whose fields are right.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from trainmaster.api.accelerator_names import device_names
from trainmaster.api.limits import check_size
from trainmaster.api.pod_template import check_pod_template
from trainmaster.api.problems import InvalidJob, Problem
from trainmaster.api.quantities import quantity
from trainmaster.api.rules import check_rules
from trainmaster.api.v1alpha1 import API_VERSION, CPU, KIND, JobSpec, SpecModel
from trainmaster.api.values import DNS_LABEL_PATTERN, HINTS, show

__all__ = ["InvalidJob", "ParsedJob", "Problem", "parse_job", "parse_spec"]

# What the API server appends to generateName (apiserver/pkg/storage/names): the base is cut so that it fits.
_GENERATED_SUFFIX = "xxxxx"
_GENERATED_BASE = 58
_TOP_LEVEL = ("apiVersion", "kind", "metadata", "spec", "status")
# Tags of the discriminated union of resources.cpu, which pydantic puts into the location.
_TAGS = frozenset({"object", "quantity"})


@dataclass(frozen=True)
class ParsedJob:
    """A DistributedTrainingJob that can run."""

    # "" where the manifest doesn't say; kubectl's current namespace decides then.
    namespace: str
    # With generateName, a name such as the API server will make.
    name: str
    spec: JobSpec


def parse_job(raw: Mapping[str, Any]) -> ParsedJob:
    """Check a whole manifest. Raises InvalidJob."""
    problems = list(_check_top_level(raw))
    metadata = raw.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    name, namespace = _job_name(metadata), metadata.get("namespace") or ""
    if name is None:
        problems.append(Problem("metadata.name", None, "is missing; give the job a name"))
    if namespace and not (isinstance(namespace, str) and _fits(DNS_LABEL_PATTERN, namespace)):
        problems.append(Problem("metadata.namespace", namespace, _unfit(namespace, DNS_LABEL_PATTERN)))
    spec = None
    try:
        # Without a name there is nothing to say of its length.
        spec = parse_spec(raw.get("spec"), "job" if name is None else name)
    except InvalidJob as error:
        problems.extend(error.problems)
    if problems or spec is None or name is None:
        raise InvalidJob(problems)
    return ParsedJob(namespace=namespace, name=name, spec=spec)


def parse_spec(raw_spec: Any, name: str) -> JobSpec:
    """Check the spec of the job called `name`. Raises InvalidJob."""
    if raw_spec is None:
        raise InvalidJob([Problem("spec", None, "is missing; give the job a spec")])
    if isinstance(raw_spec, Mapping) and (problem := check_size(raw_spec)) is not None:
        raise InvalidJob([problem])
    try:
        spec = JobSpec.model_validate(raw_spec)
    except ValidationError as error:
        raise InvalidJob([_problem(detail) for detail in error.errors(include_url=False)]) from error
    problems = [*check_rules(name, spec), *_check_cpu(spec)]
    if spec.pod_template is not None:
        problems.extend(check_pod_template(spec.pod_template, device_names(spec)))
    if problems:
        raise InvalidJob(problems)
    return spec


def _check_cpu(spec: JobSpec) -> Iterator[Problem]:
    """Kubernetes refuses a request above its limit when the StatefulSet is made; CEL can't see into `cpu`."""
    given = [("spec.resources", spec.resources)]
    for position, group in enumerate(spec.worker_groups or []):
        given.append((f"spec.workerGroups[{position}].resources", group.resources))
    for path, resources in given:
        cpu = resources.cpu
        if not isinstance(cpu, CPU) or cpu.request is None or cpu.limit is None:
            continue
        if quantity(cpu.request) > quantity(cpu.limit):
            message = f"{cpu.request} is more than the limit, {cpu.limit}; use at most that"
            yield Problem(f"{path}.cpu.request", cpu.request, message)


def _check_top_level(raw: Mapping[str, Any]) -> Iterator[Problem]:
    if raw.get("apiVersion") != API_VERSION:
        yield Problem(
            "apiVersion", raw.get("apiVersion"), f"{show(raw.get('apiVersion'))} is not {API_VERSION}; use that"
        )
    if raw.get("kind") != KIND:
        yield Problem("kind", raw.get("kind"), f"{show(raw.get('kind'))} is not {KIND}; use that")
    if not isinstance(raw.get("metadata"), Mapping):
        yield Problem("metadata", raw.get("metadata"), "is missing; give metadata with a name")
    for field in raw:
        if field not in _TOP_LEVEL:
            yield Problem(str(field), raw[field], _unknown(str(field), _TOP_LEVEL))


def _job_name(metadata: Mapping[str, Any]) -> str | None:
    name, prefix = metadata.get("name"), metadata.get("generateName")
    if name is not None:
        return name if isinstance(name, str) else show(name)
    return prefix[:_GENERATED_BASE] + _GENERATED_SUFFIX if prefix and isinstance(prefix, str) else None


def _problem(detail: ErrorDetails) -> Problem:
    """One of pydantic's errors as a sentence."""
    location = detail["loc"]
    path = ["spec", *location]
    model = _model_at(location[:-1])
    shown = location
    if location and location[-1] in _TAGS and _model_at(location) is None:
        shown = location[:-1]
    path = ["spec", *(part for position, part in enumerate(shown) if not _is_tag(shown, position))]
    value = ... if detail["type"] == "missing" else detail["input"]
    return Problem(_join(path), value, _sentence(detail, model, str(location[-1]) if location else "spec"))


def _is_tag(location: tuple[int | str, ...], position: int) -> bool:
    return location[position] in _TAGS and position > 0 and location[position - 1] == "cpu"


def _sentence(detail: ErrorDetails, model: type[SpecModel] | None, field: str) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    # The setup line may hold what isn't meant for the readers of a status.
    shown = "this text" if field == "setup" and isinstance(value, str) else show(value)
    expected = _EXPECTED.get(kind)
    if expected is not None:
        return f"{shown} is not {expected}"
    match kind:
        case "extra_forbidden":
            return _unknown(field, _field_names(model))
        case "missing":
            return f"is missing; set it{_described(model, field)}"
        case "greater_than_equal":
            return f"{shown} is too small; use at least {context['ge']:g}"
        case "greater_than":
            return f"{shown} is too small; use more than {context['gt']:g}"
        case "less_than_equal":
            return f"{shown} is too large; use at most {context['le']:g}"
        case "literal_error":
            return f"{shown} is not known; {_alternatives(value, context['expected'])}"
        case "string_pattern_mismatch":
            return _unfit(value, context["pattern"])
        case "string_too_short" | "too_short":
            return f"{shown} is too short; give at least {context['min_length']}"
        case "string_too_long" | "too_long":
            return f"{shown} is too long; give at most {context['max_length']}"
    # Messages of our own types, and what pydantic may add.
    return detail["msg"]


_EXPECTED = {
    "int_type": "a whole number; write it without quotes and without a fraction",
    "int_from_float": "a whole number; write it without a fraction",
    "float_type": "a number; write it without quotes",
    "finite_number": "a finite number; use one",
    "string_type": "text; write it in quotes",
    "bool_type": "true or false; write one of them without quotes",
    "list_type": "a list; write its items in brackets or one a line after '-'",
    "dict_type": "a mapping; give its fields",
    "model_type": "a mapping; give its fields",
    "model_attributes_type": "a mapping; give its fields",
}


def _unknown(field: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(field, known, n=1, cutoff=0.6)
    remedy = f"did you mean {near[0]}?" if near else f"use one of {', '.join(known)}" if known else "remove it"
    return f"unknown field; {remedy}"


def _unfit(value: Any, pattern: str) -> str:
    return f"{show(value)} can't be used; {HINTS.get(pattern, f'it must fit {pattern}')}"


def _fits(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern.strip("^$"), text) is not None and len(text) <= 63


def _alternatives(value: Any, expected: str) -> str:
    """The values that a field may have, or the nearest where there are many."""
    known = re.findall(r"'([^']*)'", expected)
    near = difflib.get_close_matches(str(value), known, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near and len(known) > 8 else f"use {expected.replace(chr(39), '')}"


def _described(model: type[SpecModel] | None, field: str) -> str:
    for name, info in model.model_fields.items() if model is not None else ():
        if (info.alias or name) == field and info.description:
            return f" ({info.description.rstrip('.')})"
    return ""


def _field_names(model: type[SpecModel] | None) -> tuple[str, ...]:
    return tuple(info.alias or name for name, info in model.model_fields.items()) if model is not None else ()


def _model_at(location: tuple[int | str, ...]) -> type[SpecModel] | None:
    """The model that a location of pydantic's leads to."""
    model: type[SpecModel] | None = JobSpec
    for part in location:
        if isinstance(part, int) or part in _TAGS:
            continue
        model = _model_in(_annotation(model, part))
    return model


def _annotation(model: type[SpecModel] | None, alias: str) -> Any:
    for name, info in model.model_fields.items() if model is not None else ():
        if (info.alias or name) == alias:
            return info.annotation
    return None


def _model_in(annotation: Any) -> type[SpecModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, SpecModel):
        return annotation
    for part in get_args(annotation):
        found = _model_in(part)
        if found is not None:
            return found
    return None


def _join(path: list[Any]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text

"""Reads a job as the user wrote it: either a checked `JobSpec`, or everything that is wrong with it.

What is too large is refused before it is read (`limits`). Fields are checked by the models, which refuse unknown ones
(`field_messages` has the texts), then relations between fields by `rules`, then podTemplate and
`training`. As in the API server,
the rules only see a spec whose fields are right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from trainmaster_operator.api.accelerator_names import device_names
from trainmaster_operator.api.field_messages import problems_of, unknown_field
from trainmaster_operator.api.limits import check_size
from trainmaster_operator.api.metadata import check_metadata
from trainmaster_operator.api.pod_schema import worker_resources
from trainmaster_operator.api.pod_template import check_pod_template
from trainmaster_operator.api.problems import InvalidJob, Problem
from trainmaster_operator.api.quantities import quantity
from trainmaster_operator.api.rules import check_rules
from trainmaster_operator.api.training_schema import check_training
from trainmaster_operator.api.v1alpha1 import API_VERSION, CPU, KIND, JobSpec
from trainmaster_operator.api.values import show
from trainmaster_operator.api.words import check_words
from trainmaster_operator.wire.values import mapping

__all__ = ["InvalidJob", "ParsedJob", "Problem", "parse_job", "parse_spec"]

# The API server appends this to generateName (apiserver/pkg/storage/names): the base is cut so that it fits.
_GENERATED_SUFFIX = "xxxxx"
_GENERATED_BASE = 58
_TOP_LEVEL = ("apiVersion", "kind", "metadata", "spec", "status")


@dataclass(frozen=True)
class ParsedJob:
    """ParsedJob is a DistributedTrainingJob that can run."""

    # "" where the manifest doesn't say; kubectl's current namespace decides then.
    namespace: str
    # A job with generateName has a name here such as the API server will make.
    name: str
    spec: JobSpec


def parse_job(raw: Mapping[str, Any]) -> ParsedJob:
    """Check a whole manifest. Raises InvalidJob."""
    problems = [*_check_top_level(raw), *check_metadata(raw.get("metadata"))]
    metadata = mapping(raw.get("metadata"))
    name = metadata.get("name") or _generated(metadata.get("generateName"))
    spec = None
    # Fields of the spec at the top are in `problems`: the spec is there, but not indented.
    is_indented = raw.get("spec") is not None or not set(raw) - set(_TOP_LEVEL)
    try:
        # Without a name there is nothing to say of its length.
        spec = parse_spec(raw.get("spec"), name if isinstance(name, str) else "job")
    except InvalidJob as error:
        found = [each for each in error.problems if is_indented or each.field != "spec"]
        problems.extend(_of_generated(each) if not metadata.get("name") else each for each in found)
    if problems or spec is None or name is None:
        raise InvalidJob(problems)
    return ParsedJob(namespace=metadata.get("namespace") or "", name=name, spec=spec)


def parse_spec(raw_spec: Any, name: str) -> JobSpec:
    """Check the spec of the job called `name`. Raises InvalidJob."""
    if raw_spec is None:
        raise InvalidJob([Problem("spec", None, "is missing; give the job a spec")])
    if isinstance(raw_spec, Mapping) and (problem := check_size(raw_spec)) is not None:
        raise InvalidJob([problem])
    try:
        # Python's own names of the fields are no other way to write them.
        spec = JobSpec.model_validate(raw_spec, by_alias=True, by_name=False)
    except ValidationError as error:
        raise InvalidJob(problems_of(error, JobSpec, "spec")) from error
    problems = [*check_rules(name, spec), *_check_cpu(spec)]
    if spec.pod_template is not None:
        problems.extend(check_pod_template(spec.pod_template, device_names(spec), worker_resources(spec)))
    problems.extend(check_words(spec))
    problems.extend(check_training(spec))
    if problems:
        raise InvalidJob(problems, spec)
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
    for field, right in (("apiVersion", API_VERSION), ("kind", KIND)):
        given = raw.get(field)
        if given is None:
            yield Problem(field, None, f"is missing; set it to {right}")
        elif given != right:
            yield Problem(field, given, f"{show(given)} is not {right}; use that")
    if not isinstance(raw.get("status"), Mapping | None):
        yield Problem(
            "status", raw["status"], f"{show(raw['status'])} is not a mapping; remove it, the operator sets it"
        )
    for field in raw:
        if field not in _TOP_LEVEL:
            yield Problem(str(field), raw[field], unknown_field("", str(field), _TOP_LEVEL))


def _generated(prefix: Any) -> str | None:
    return prefix[:_GENERATED_BASE] + _GENERATED_SUFFIX if prefix and isinstance(prefix, str) else None


def _of_generated(problem: Problem) -> Problem:
    return replace(problem, field="metadata.generateName") if problem.field == "metadata.name" else problem

"""Defines the rules between fields, each in Python (`holds`) and in CEL (`cel`), with one message for both.

A rule belongs to a model, as an `x-kubernetes-validations` entry belongs to a schema. The input of `holds` is the
parsed model, and the input of `cel` is the corresponding value as `self`. The message shows fields of the model.

The API server estimates a rule's cost from the schema (k8s.io/apiserver/pkg/apis/cel: at most 10,000,000 per rule). So
the schema limits the length of lists and strings that rules read, and no rule compares the items of a list with each
other.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.alias_generators import to_snake

from trainmaster_operator.api.kubernetes_syntax import quantity
from trainmaster_operator.api.pod_template import RESERVED_PATHS, SYSTEM_PATHS, hides_the_image, is_below, matching
from trainmaster_operator.api.problems import Problem
from trainmaster_operator.api.v1alpha1 import (
    BUNDLED_IMAGE,
    Accelerator,
    Backoff,
    Checkpoint,
    CheckpointVolume,
    Code,
    Elastic,
    FailureRule,
    JobSpec,
    LogRules,
    Resources,
    Scheduling,
    SecurityContext,
    WorkerGroup,
    is_bundled,
)
from trainmaster_operator.api.v1alpha1.names import set_names
from trainmaster_operator.api.values import IMAGE_PATTERN, JOB_NAME_PATTERN, MAX_GROUPS, fits, show
from trainmaster_operator.wire.limits import MAX_WORKERS


@dataclass(frozen=True)
class Rule:
    """Rule is a condition that one model must meet."""

    model: type[Any]
    # The field with the mistake, relative to the model. "" is the model itself.
    field: str
    cel: str
    holds: Callable[[Any], bool]
    # One sentence, in which {path} refers to a field of the model, or to a value of `shown`.
    message: str
    # Other values in the message, as CEL expressions of type string or int and as functions of the model.
    shown: Mapping[str, tuple[str, Callable[[Any], Any]]] = dataclasses.field(default_factory=dict)
    # The reason that the API server reports: Required if the field must be present, Forbidden if it must be absent.
    reason: Literal["FieldValueInvalid", "FieldValueRequired", "FieldValueForbidden"] = "FieldValueInvalid"

    def problem(self, path: str, value: Any) -> Problem | None:
        """Returns the problem of a parsed model at a path, or None if the rule holds."""
        if self.holds(value):
            return None
        texts, shown = self._parts()
        values = [get(value) for _, get in shown]
        at = f"{path}.{self.field}" if path and self.field else path or self.field
        return Problem(at, values[0] if values else None, "{}".join(texts).format(*values))

    def message_expression(self) -> str | None:
        """Returns the message as a CEL expression, or None if it shows no values.

        The expression uses format() instead of `+`. The API server assumes an unlimited length for string(x), the text
        of a number. Joining it with `+` exceeds the cost budget, so the CRD is refused (cel-go, checker/cost.go).
        """
        texts, shown = self._parts()
        text = "%s".join(text.replace("%", "%%") for text in texts)
        return f"{json.dumps(text)}.format([{', '.join(cel for cel, _ in shown)}])" if shown else None

    def _parts(self) -> tuple[list[str], list[tuple[str, Callable[[Any], Any]]]]:
        """Returns the texts of the message, and the values between them."""
        parts = PLACEHOLDER.split(self.message)
        return parts[::2], [self.shown.get(name) or (f"self.{name}", _getter(name)) for name in parts[1::2]]


PLACEHOLDER = re.compile(r"\{([\w.]+)\}")


def _getter(path: str) -> Callable[[Any], Any]:
    return attrgetter(".".join(map(to_snake, path.split("."))))


def _fixed(field: str, message: str, *, optional: bool = True, unless: str = "") -> Rule:
    """Returns a rule that makes a field of the spec immutable. Only the API server sees the old and the new value.

    An `optional` field can't be added or removed either. `unless` is a condition in CEL under which the field may
    change.
    """
    same = f"self.{field} == oldSelf.{field}"
    if optional:
        has, had = f"has(self.{field})", f"has(oldSelf.{field})"
        same = f"{has} == {had} && (!{has} || {f'({unless} || {same})' if unless else same})"
    return Rule(JobSpec, field, same, holds=lambda spec: True, message=message, reason="FieldValueForbidden")


# A StatefulSet's pods carry the label controller-revision-hash, `<set>-<hash of up to 10 characters>`, and a label's
# value can have at most 63 characters (k8s.io/kubernetes issue 64023). The names of pods and Services then fit too.
MAX_SET_NAME = 52


@dataclass(frozen=True)
class NamedSpec:
    """NamedSpec is the input of the rules on the job's name. In CEL, the input is the complete object."""

    name: str
    spec: JobSpec


_FIXED = "can't be changed once the job exists; delete the job and apply it again"
_ALWAYS_SET = ("image", "launcher", "backend", "processesPerWorker", "successPolicy")
_MAY_BE_ABSENT = (
    *("imagePullPolicy", "command", "args", "training", "setup", "warmStart", "spares", "workerGroups", "resources"),
    *("accelerator", "interconnect", "elastic", "scheduling", "checkpoint", "progress", "securityContext"),
    "podTemplate",
)
TRANSITIONS: tuple[Rule, ...] = (
    *(_fixed(name, _FIXED, optional=False) for name in _ALWAYS_SET),
    *(_fixed(name, _FIXED) for name in _MAY_BE_ABSENT),
    _fixed(
        "code",
        "can't be changed once the job exists, except for its digest; delete the job and apply it again",
        unless="(has(self.code.configMap) && has(oldSelf.code.configMap) && "
        "self.code.configMap == oldSelf.code.configMap) || "
        "(has(self.code.claim) && has(oldSelf.code.claim) && self.code.claim == oldSelf.code.claim)",
    ),
    _fixed(
        "workers",
        "can't be changed, because the job isn't elastic; delete the job and apply it again with the new number",
        unless="has(self.elastic)",
    ),
    _fixed(
        "failurePolicy.hang",
        "can't be changed once the job exists, because agents keep the limits they were started with; delete the job "
        "and apply it again",
        optional=False,
    ),
)

# The sum is written out, because the API server can't estimate the length of map()'s list and so the cost of its sum().
_SUM_OF_GROUPS = " + ".join(
    f"(size(self.workerGroups) > {position} ? self.workerGroups[{position}].workers : 0)"
    for position in range(MAX_GROUPS)
)

_NAME = {"name": ("self.metadata.name", attrgetter("name"))}

NAME_RULES: tuple[Rule, ...] = (
    Rule(
        NamedSpec,
        "metadata.name",
        cel=f"self.metadata.name.matches('{JOB_NAME_PATTERN}')",
        holds=lambda job: fits(JOB_NAME_PATTERN, job.name),
        message="'{name}' is not a name that a Service can have; use lower case letters, digits and '-', beginning "
        "with a letter and ending with a letter or digit",
        shown=_NAME,
    ),
    Rule(
        NamedSpec,
        "metadata.name",
        cel=f"size(self.metadata.name) <= {MAX_SET_NAME}",
        holds=lambda job: len(job.name) <= MAX_SET_NAME,
        message="'{name}' has {size} characters, and the labels of its pods leave room for "
        f"{MAX_SET_NAME}; use at most {MAX_SET_NAME}",
        shown={**_NAME, "size": ("size(self.metadata.name)", lambda job: len(job.name))},
    ),
    Rule(
        NamedSpec,
        "metadata.name",
        cel=f"size(self.metadata.name) > {MAX_SET_NAME} || !has(self.spec.workerGroups) || "
        "size(self.spec.workerGroups) == 1 || "
        f"self.spec.workerGroups.all(g, size(self.metadata.name) + 1 + size(g.name) <= {MAX_SET_NAME})",
        holds=lambda job: (
            len(job.name) > MAX_SET_NAME
            or all(
                len(name) <= MAX_SET_NAME
                for name in set_names(job.name, [group.name for group in job.spec.worker_groups or []])
            )
        ),
        message="'{name}', joined with a group's name by '-', has more than "
        f"{MAX_SET_NAME} characters, for which the labels of the pods leave no room; shorten one of the two",
        shown=_NAME,
    ),
)


def _at_least(field: str, least: str, why: str) -> Rule:
    """Returns the rule that a size is at least `least`, because smaller sizes come from a wrong unit.

    The CEL expression accepts invalid sizes.
    """
    bytes_, get = int(quantity(least)), _getter(field)
    return Rule(
        Resources,
        field,
        cel=f"!has(self.{field}) || (type(self.{field}) == int ? self.{field} <= 0 || self.{field} >= {bytes_} : "
        f"!isQuantity(self.{field}) || quantity(self.{field}).compareTo(quantity('0')) <= 0 || "
        f"quantity(self.{field}).compareTo(quantity('{least}')) >= 0)",
        holds=lambda resources: not 0 < quantity(get(resources) or 0) < bytes_,
        message=f"{{{field}}} is less than {least}, in which {why}; without a suffix it counts in bytes, and m is a "
        "thousandth of one: write Mi or Gi, such as 512Mi",
    )


def _excludes_groups(field: str, remedy: str) -> Rule:
    """Returns the rule that a job with worker groups doesn't set this field. The message shows a number's value."""
    shown = f"{{{field}}} " if field in ("workers", "spares") else ""
    return Rule(
        JobSpec,
        field,
        cel=f"!(has(self.{field}) && has(self.workerGroups))",
        holds=lambda spec: spec.worker_groups is None or field not in spec.model_fields_set,
        message=f"{shown}can't be combined with spec.workerGroups; {remedy}",
    )


RULES: tuple[Rule, ...] = (
    Rule(
        JobSpec,
        "",
        cel="has(self.workers) || has(self.workerGroups)",
        holds=lambda spec: spec.workers is not None or spec.worker_groups is not None,
        message="has no workers; set spec.workers to the number of pods, or spec.workerGroups",
        reason="FieldValueRequired",
    ),
    _excludes_groups("workers", "remove spec.workers, or make it a group"),
    _excludes_groups("resources", "move it into the groups"),
    _excludes_groups("spares", "move it into the group that needs spares"),
    Rule(
        JobSpec,
        "workerGroups",
        cel=f"!has(self.workerGroups) || {_SUM_OF_GROUPS} <= {MAX_WORKERS}",
        holds=lambda spec: sum(group.workers for group in spec.worker_groups or []) <= MAX_WORKERS,
        message=f"has more than {MAX_WORKERS} workers in all, which an assignment can't name; use fewer",
    ),
    Rule(
        JobSpec,
        "image",
        cel=f"self.image.matches({json.dumps(IMAGE_PATTERN)})",
        holds=lambda spec: fits(IMAGE_PATTERN, spec.image),
        message="'{image}' is not an image that can be pulled; use registry/repository:tag, without https://, spaces "
        "or capitals in the repository, such as ghcr.io/team/train:1.0",
    ),
    Rule(
        JobSpec,
        "command",
        cel=f"has(self.command) || self.image.matches('^{BUNDLED_IMAGE.replace('.', '[.]')}([:@].*)?$')",
        holds=lambda spec: spec.command is not None or is_bundled(spec.image),
        message="is missing, and the image '{image}' has no program that Trainmaster knows; set it to what trains, "
        "such as [python, train.py]",
        reason="FieldValueRequired",
    ),
    Rule(
        Accelerator,
        "resourceName",
        cel="self.kind != 'custom' || has(self.resourceName)",
        holds=lambda accelerator: accelerator.kind != "custom" or accelerator.resource_name is not None,
        message="is missing, and kind custom has no resource of its own; set it, such as example.com/npu",
        reason="FieldValueRequired",
    ),
    Rule(
        SecurityContext,
        "runAsUser",
        cel="!(has(self.runAsNonRoot) && self.runAsNonRoot && has(self.runAsUser) && self.runAsUser == 0)",
        holds=lambda context: not (context.run_as_non_root and context.run_as_user == 0),
        message="0 is root, and runAsNonRoot is true; give another user, or remove one of the two",
    ),
    Rule(
        Backoff,
        "maxSeconds",
        cel="self.maxSeconds >= self.initialSeconds",
        holds=lambda backoff: backoff.max_seconds >= backoff.initial_seconds,
        message="is less than initialSeconds; use at least that",
    ),
    Rule(
        FailureRule,
        "",
        cel="has(self.exitCodes) || has(self.reasons)",
        holds=lambda rule: rule.exit_codes is not None or rule.reasons is not None,
        message="matches nothing; give exitCodes, reasons or both",
    ),
    Rule(
        LogRules,
        "",
        cel="has(self.pattern) != has(self.preset)",
        holds=lambda rules: (rules.pattern is None) != (rules.preset is None),
        message="has none or both of pattern and preset; set exactly one of them",
    ),
    Rule(
        CheckpointVolume,
        "",
        cel="(has(self.claimName) ? 1 : 0) + (has(self.hostPath) ? 1 : 0) + "
        "(has(self.emptyDir) && self.emptyDir ? 1 : 0) == 1",
        holds=lambda volume: (
            (volume.claim_name is not None) + (volume.host_path is not None) + (volume.empty_dir is True) == 1
        ),
        message="names none or several volumes; give exactly one of claimName, hostPath and emptyDir: true",
    ),
    Rule(
        CheckpointVolume,
        "hostPath",
        cel="!has(self.hostPath) || !self.hostPath.matches('(^|/)[.][.](/|$)')",
        holds=lambda volume: volume.host_path is None or ".." not in volume.host_path.split("/"),
        message="'{hostPath}' contains '..'; use a path without it",
    ),
    Rule(
        Checkpoint,
        "path",
        cel=f"!self.path.matches({json.dumps(matching((*RESERVED_PATHS, *SYSTEM_PATHS)))})",
        holds=lambda checkpoint: (
            not (hides_the_image(checkpoint.path) or is_below(checkpoint.path, (*RESERVED_PATHS, *SYSTEM_PATHS)))
        ),
        message="'{path}' is where the system or Trainmaster keeps files; use another path, such as /checkpoints",
    ),
    Rule(
        Code,
        "",
        cel="has(self.configMap) != has(self.claim)",
        holds=lambda code: (code.config_map is None) != (code.claim is None),
        message="names none or both of its places; give exactly one of configMap and claim",
    ),
    # Container runtimes refuse less memory, and Python itself needs more.
    _at_least("memory", "4Mi", "no worker starts"),
    _at_least("sharedMemory", "4Ki", "nothing can be shared"),
    Rule(
        Resources,
        "sharedMemory",
        cel="!has(self.memory) || !has(self.sharedMemory) || !isQuantity(string(self.memory)) || "
        "!isQuantity(string(self.sharedMemory)) || "
        "!quantity(string(self.sharedMemory)).isGreaterThan(quantity(string(self.memory)))",
        holds=lambda resources: (
            resources.memory is None
            or resources.shared_memory is None
            or quantity(resources.shared_memory) <= quantity(resources.memory)
        ),
        message="{sharedMemory} is more than memory, {memory}, to which it counts; use less than that, or more memory",
    ),
    Rule(
        Elastic,
        "minWorkers",
        cel="self.minWorkers <= self.maxWorkers",
        holds=lambda elastic: elastic.min_workers <= elastic.max_workers,
        message="{minWorkers} is more than maxWorkers, which is {maxWorkers}; use at most {maxWorkers}",
    ),
    Rule(
        JobSpec,
        "workers",
        cel="!has(self.elastic) || !has(self.workers) || self.elastic.minWorkers > self.elastic.maxWorkers || "
        "(self.elastic.minWorkers <= self.workers && self.workers <= self.elastic.maxWorkers)",
        holds=lambda spec: (
            spec.elastic is None
            or spec.workers is None
            or spec.elastic.min_workers > spec.elastic.max_workers
            or spec.elastic.min_workers <= spec.workers <= spec.elastic.max_workers
        ),
        message="{workers} is outside spec.elastic; use {elastic.minWorkers} to {elastic.maxWorkers}",
    ),
    _excludes_groups("elastic", "use spec.workers, or remove it"),
    Rule(
        Scheduling,
        "queue",
        cel="!has(self.queue) || (has(self.gang) && self.gang.scheduler in ['volcano', 'kueue'])",
        holds=lambda scheduling: (
            scheduling.queue is None
            or (scheduling.gang is not None and scheduling.gang.scheduler in ("volcano", "kueue"))
        ),
        message="'{queue}' has no scheduler that knows queues; set gang.scheduler to volcano or kueue, or remove it",
    ),
    Rule(
        Scheduling,
        "queue",
        cel="!has(self.gang) || self.gang.scheduler != 'kueue' || has(self.queue)",
        holds=lambda scheduling: (
            scheduling.gang is None or scheduling.gang.scheduler != "kueue" or scheduling.queue is not None
        ),
        message="is missing, and Kueue admits nothing without a LocalQueue; set it to the name of one",
        reason="FieldValueRequired",
    ),
)


def check_rules(name: str, spec: JobSpec) -> Iterator[Problem]:
    """Yields the problems with a spec in which each field by itself is valid."""
    for rule in NAME_RULES:
        if (problem := rule.problem("", NamedSpec(name, spec))) is not None:
            yield problem
    yield from _repeated_groups(spec.worker_groups or [])
    yield from _check_model("spec", spec)


def _check_model(path: str, model: BaseModel) -> Iterator[Problem]:
    for rule in RULES:
        if type(model) is rule.model and (problem := rule.problem(path, model)) is not None:
            yield problem
    for name, info in type(model).model_fields.items():
        value = getattr(model, name)
        here = f"{path}.{info.alias or name}"
        items = [(here, value)]
        if isinstance(value, list):
            items = [(f"{here}[{position}]", item) for position, item in enumerate(value)]
        for place, item in items:
            if isinstance(item, BaseModel):
                yield from _check_model(place, item)


def _repeated_groups(groups: list[WorkerGroup]) -> Iterator[Problem]:
    """Yields problems with repeated names, which the API server itself refuses (x-kubernetes-list-map-keys)."""
    seen: set[str] = set()
    for position, group in enumerate(groups):
        if group.name in seen:
            message = f"{show(group.name)} is already the name of another group; use another name"
            yield Problem(f"spec.workerGroups[{position}].name", group.name, message)
        seen.add(group.name)

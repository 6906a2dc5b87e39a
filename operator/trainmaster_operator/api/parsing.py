"""Parses a user's job into a checked `JobSpec`, or reports all of its problems.

A spec that is too large is refused before it is parsed (`limits`). The models check fields and refuse unknown ones
(`field_messages` words the messages). After that, the relations between fields (`rules`), podTemplate, command and
`training` are checked. As in the API server, the rules are applied only if all fields are valid.

Metadata is checked as strictly as by the API server (apimachinery, pkg/api/validation/objectmeta.go). Before that,
unknown fields and labels with a number as their value are refused. Fields that the API server sets are allowed, because
`kubectl get -o yaml` prints them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StrictBool, StrictInt, StringConstraints, ValidationError
from pydantic_core import PydanticCustomError

from trainmaster_operator.api.field_messages import problems_of, unknown_field
from trainmaster_operator.api.kubernetes_syntax import check_annotations, check_labels, label_key_problem, quantity
from trainmaster_operator.api.limits import check_size
from trainmaster_operator.api.pod_template import attempt_variable, check_pod_template, filled_in_early
from trainmaster_operator.api.problems import Problem, typographic_quotes
from trainmaster_operator.api.rules import check_rules
from trainmaster_operator.api.times import to_datetime
from trainmaster_operator.api.training_schema import check_training
from trainmaster_operator.api.v1alpha1 import API_VERSION, CPU, KIND, JobSpec, SpecModel
from trainmaster_operator.api.values import DNS_LABEL_PATTERN, SUBDOMAIN_PATTERN, fits, show, unfit
from trainmaster_operator.wire.values import mapping

# The API server shortens generateName and appends a random suffix of this length (apiserver/pkg/storage/names).
_GENERATED_SUFFIX = "xxxxx"
_GENERATED_BASE = 58
_TOP_LEVEL = ("apiVersion", "kind", "metadata", "spec", "status")


class InvalidJob(ValueError):
    """The job can't run. `problems` lists all mistakes in the order of the spec's fields.

    If each field is valid by itself, `spec` is set, so that a job accepted before a check was added keeps running.
    """

    def __init__(self, problems: Sequence[Problem], spec: JobSpec | None = None) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = tuple(problems)
        self.spec = spec

    def shortened(self, characters: int) -> str:
        """Returns as many complete sentences as fit, and the number of sentences that were left out."""
        shown = ""
        for position, problem in enumerate(self.problems):
            left = len(self.problems) - position - 1
            longer = f"{shown}; {problem}" if shown else str(problem)
            more = f"; and {left} more" if left else ""
            if shown and len(longer) + len(more) > characters:
                return f"{shown}; and {left + 1} more"
            shown = longer
        return shown[:characters]


@dataclass(frozen=True)
class ParsedJob:
    """ParsedJob is a valid DistributedTrainingJob."""

    # Empty if the manifest sets no namespace. kubectl then uses its current namespace.
    namespace: str
    # If the job uses generateName, this is a name like the one that the API server will create.
    name: str
    spec: JobSpec


def parse_job(raw: Mapping[str, Any]) -> ParsedJob:
    """Parses a complete manifest. Raises InvalidJob."""
    problems = [*_check_top_level(raw), *check_metadata(raw.get("metadata"))]
    metadata = mapping(raw.get("metadata"))
    prefix = metadata.get("generateName")
    generated = prefix[:_GENERATED_BASE] + _GENERATED_SUFFIX if prefix and isinstance(prefix, str) else None
    name = metadata.get("name") or generated
    spec = None
    # If fields of the spec are at the top level, the spec isn't missing but lacks indentation. `problems` reports that.
    is_indented = raw.get("spec") is not None or not set(raw) - set(_TOP_LEVEL)
    try:
        # If the name is missing, "job" is used for the checks.
        spec = parse_spec(raw.get("spec"), name if isinstance(name, str) else "job")
    except InvalidJob as error:
        for each in error.problems:
            if each.field == "metadata.name" and not metadata.get("name"):
                problems.append(replace(each, field="metadata.generateName"))
            elif is_indented or each.field != "spec":
                problems.append(each)
    if problems or spec is None or name is None:
        raise InvalidJob(problems)
    return ParsedJob(namespace=metadata.get("namespace") or "", name=name, spec=spec)


def parse_spec(raw_spec: Any, name: str) -> JobSpec:
    """Parses the spec of the job called `name`. Raises InvalidJob."""
    if raw_spec is None:
        raise InvalidJob([Problem("spec", None, "is missing; give the job a spec")])
    if isinstance(raw_spec, Mapping) and (problem := check_size(raw_spec)) is not None:
        raise InvalidJob([problem])
    try:
        # Users can't write the fields by their Python names.
        spec = JobSpec.model_validate(raw_spec, by_alias=True, by_name=False)
    except ValidationError as error:
        raise InvalidJob(problems_of(error, JobSpec, "spec")) from error
    problems = [*check_rules(name, spec), *_check_cpu(spec), *check_pod_template(spec)]
    problems += [*_check_words(spec), *check_training(spec)]
    if problems:
        raise InvalidJob(problems, spec)
    return spec


def _check_cpu(spec: JobSpec) -> Iterator[Problem]:
    """Checks that the CPU request doesn't exceed the limit. CEL can't compare them. Kubernetes refuses such pods."""
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
        message = f"{show(raw['status'])} is not a mapping; remove it, the operator sets it"
        yield Problem("status", raw["status"], message)
    for field in raw:
        if field not in _TOP_LEVEL:
            yield Problem(str(field), raw[field], unknown_field("", str(field), _TOP_LEVEL))


MAX_ANNOTATION_BYTES = 256 * 1024

_TextMap = dict[str, str | None]


def _time(text: str) -> str:
    if to_datetime(text, zoned=True) is None:
        raise PydanticCustomError(
            "time", "{shown} is not a time; remove it, the API server sets it", {"shown": show(text)}
        )
    return text


_Time = Annotated[str, AfterValidator(_time)]
_Text = Annotated[str, StringConstraints(min_length=1)]


class OwnerReference(SpecModel):
    """OwnerReference names an owner. The object is deleted after its owner is deleted."""

    api_version: _Text
    kind: _Text
    name: _Text
    uid: _Text
    controller: StrictBool | None = None
    block_owner_deletion: StrictBool | None = None


class ObjectMeta(SpecModel):
    """ObjectMeta defines the fields of every object's metadata, with their types."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    labels: _TextMap = Field(default_factory=dict)
    annotations: _TextMap = Field(default_factory=dict)
    finalizers: list[str] = Field(default_factory=list)
    owner_references: list[OwnerReference] = Field(default_factory=list)
    managed_fields: list[dict[str, Any]] = Field(default_factory=list)
    uid: str | None = None
    resource_version: str | None = None
    generation: StrictInt | None = None
    creation_timestamp: _Time | None = None
    deletion_timestamp: _Time | None = None
    deletion_grace_period_seconds: StrictInt | None = None
    self_link: str | None = None


def check_metadata(raw: Any) -> list[Problem]:
    """Returns the problems with a job's metadata. `rules` contains further checks of the name."""
    if raw is None:
        return [Problem("metadata", None, "is empty or missing; give metadata with a name, indented")]
    try:
        metadata = ObjectMeta.model_validate(raw, by_alias=True, by_name=False)
    except ValidationError as error:
        return problems_of(error, ObjectMeta, "metadata")
    return list(_check_values(metadata))


def _check_values(metadata: ObjectMeta) -> Iterator[Problem]:
    if not metadata.name and not metadata.generate_name:
        yield Problem("metadata.name", None, "is missing; give the job a name")
    # The API server appends its suffix, so generateName may end with a hyphen.
    beginning = metadata.generate_name.removesuffix("-") or metadata.generate_name
    if beginning and not fits(SUBDOMAIN_PATTERN, beginning):
        yield Problem("metadata.generateName", beginning, unfit(metadata.generate_name, SUBDOMAIN_PATTERN))
    if len(metadata.namespace) > 63:
        message = f"{show(metadata.namespace)} is too long; use at most 63 characters"
        yield Problem("metadata.namespace", metadata.namespace, message)
    elif metadata.namespace and not fits(DNS_LABEL_PATTERN, metadata.namespace):
        yield Problem("metadata.namespace", metadata.namespace, unfit(metadata.namespace, DNS_LABEL_PATTERN))
    yield from check_labels("metadata.labels", metadata.labels)
    yield from check_annotations("metadata.annotations", metadata.annotations)
    annotations = metadata.annotations.items()
    size = sum(len(f"{key}{value or ''}".encode("utf-8", "surrogatepass")) for key, value in annotations)
    if size > MAX_ANNOTATION_BYTES:
        message = f"has {size} bytes; use at most {MAX_ANNOTATION_BYTES} for all annotations together"
        yield Problem("metadata.annotations", None, message)
    for position, finalizer in enumerate(metadata.finalizers):
        if (wrong := label_key_problem(finalizer)) is not None:
            yield Problem(f"metadata.finalizers[{position}]", finalizer, wrong)


# If such a name is followed by a space, the text is a command line. Paths of other programs may contain a space.
_PROGRAM = re.compile(r"(?:\S*/)?(?:python[0-9.]*|bash|sh|torchrun|accelerate|deepspeed|uv|env|conda|nohup|srun)")
# Hyphens, dashes and the minus sign, except ASCII's hyphen.
_DASHES = "\u2010-\u2015\u2212\ufe58\ufe63\uff0d"
_DASHED = re.compile(rf"[-{_DASHES}]*[{_DASHES}][-{_DASHES}]*[A-Za-z]")
_QUOTED_OPTION = re.compile(rf"[\u201c-\u201f\u2018-\u201a\xab\xbb][-{_DASHES}]+[A-Za-z]\S*")
_SPACES = {"\u00a0": "a no-break space", "\u3000": "a wide space", "\u200b": "a zero-width space", "\ufeff": "a mark"}


def _check_words(spec: JobSpec) -> Iterator[Problem]:
    """Yields problems with words in command and args, such as words that a word processor or a chat has damaged.

    A program accepts any text as an argument, so only obvious mistakes are refused: a complete command line in place of
    the program's name, options that begin with another dash instead of a hyphen, and an attempt's variables as $(NAME).
    """
    command = spec.command or []
    for position, word in enumerate(command):
        # A text of several words may contain such quotes on purpose.
        message = _misread(word) if re.search(r"\s", word) else typographic_quotes(word) or _misread(word)
        if message is None and position == 0:
            message = _no_program(word)
        if message is not None:
            yield Problem(f"spec.command[{position}]", word, message)
    for position, word in enumerate(spec.args):
        if (message := _misread(word)) is not None:
            yield Problem(f"spec.args[{position}]", word, message)
    words = [*command, *spec.args]
    for position, word in enumerate(words):
        if (name := attempt_variable(word)) is not None:
            in_shell = is_shell(words[max(position - 2, 0) : position])
            remedy = f"write ${name}" if in_shell else f"read {name} in the program, or write ${name} in a sh -c"
            at = position - len(command)
            field = f"spec.command[{position}]" if at < 0 else f"spec.args[{at}]"
            yield Problem(field, word, filled_in_early(word, name, remedy))


_SHELL = re.compile(r"(\S*/)?(ba|da|z|k)?sh")
_SHELL_OPTION = re.compile(r"-[a-z]*c")


def is_shell(words: Sequence[str]) -> bool:
    """Returns whether two words start a shell that runs the next word, such as bash and -ec."""
    return len(words) == 2 and bool(_SHELL.fullmatch(words[0]) and _SHELL_OPTION.fullmatch(words[1]))


def _no_program(word: str) -> str | None:
    if not word.strip():
        return f"{show(word)} is not a program; use one, such as python"
    first, *rest = word.split()
    if rest and _PROGRAM.fullmatch(first):
        return f"{show(word)} is a whole command line in one word; write each word as an item, such as {_items(word)}"
    return None


def _items(line: str) -> str:
    words = line.split()
    more = ", ..." if len(words) > 3 else ""
    return f"[{', '.join(words[:3])}{more}]"[:100]


def _misread(word: str) -> str | None:
    """Returns the problem with an option that begins with a wrong dash or contains a wrong space, or None."""
    if _QUOTED_OPTION.fullmatch(word):
        return typographic_quotes(word)
    if _DASHED.match(word):
        return f"{show(word)} begins with a dash that is not a hyphen; write - or -- instead"
    found = next((space for space in _SPACES if space in word.partition("=")[0]), None)
    if found is not None and word.startswith("-"):
        return f"{show(word)} has {_SPACES[found]} (U+{ord(found):04X}) in an option's name; remove it"
    return None

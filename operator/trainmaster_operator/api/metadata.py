"""A job's metadata is checked as the API server checks any object's (apimachinery pkg/api/validation/objectmeta.go).

The API server decodes metadata strictly: an unknown field, or a label that is a number, is refused before anything else
is checked. Fields that it sets itself are right in a manifest too, since `kubectl get -o yaml` prints them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StrictBool, StrictInt, StringConstraints, ValidationError
from pydantic_core import PydanticCustomError

from trainmaster_operator.api.field_messages import problems_of
from trainmaster_operator.api.labels import check_annotations, check_labels, label_key_problem
from trainmaster_operator.api.problems import Problem
from trainmaster_operator.api.v1alpha1 import SpecModel
from trainmaster_operator.api.values import DNS_LABEL_PATTERN, SUBDOMAIN_PATTERN, show, unfit

MAX_ANNOTATION_BYTES = 256 * 1024
_MAX_NAMESPACE = 63
_EXCLUSIVE_FINALIZERS = frozenset({"orphan", "foregroundDeletion"})

_TextMap = dict[str, str | None]


def _time(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise PydanticCustomError(
            "time", "{shown} is no time; remove it, the API server sets it", {"shown": show(text)}
        )
    return text


_Time = Annotated[str, AfterValidator(_time)]
_Text = Annotated[str, StringConstraints(min_length=1)]


class OwnerReference(SpecModel):
    """OwnerReference names an object with which this one is deleted."""

    api_version: _Text
    kind: _Text
    name: _Text
    uid: _Text
    controller: StrictBool | None = None
    block_owner_deletion: StrictBool | None = None


class ManagedFields(SpecModel):
    """ManagedFields says which client has set which fields; the API server writes it."""

    manager: str | None = None
    operation: str | None = None
    api_version: str | None = None
    time: _Time | None = None
    fields_type: str | None = None
    fields_v1: dict[str, Any] | None = None
    subresource: str | None = None


class ObjectMeta(SpecModel):
    """ObjectMeta has the fields that every object's metadata can have, with their types."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    labels: _TextMap = Field(default_factory=dict)
    annotations: _TextMap = Field(default_factory=dict)
    finalizers: list[str] = Field(default_factory=list)
    owner_references: list[OwnerReference] = Field(default_factory=list)
    managed_fields: list[ManagedFields] = Field(default_factory=list)
    uid: str | None = None
    resource_version: str | None = None
    generation: StrictInt | None = None
    creation_timestamp: _Time | None = None
    deletion_timestamp: _Time | None = None
    deletion_grace_period_seconds: StrictInt | None = None
    self_link: str | None = None


def check_metadata(raw: Any) -> list[Problem]:
    """Returns what is wrong with a job's metadata; `rules` has what a job's name must be beyond that."""
    if raw is None:
        return [Problem("metadata", None, "is empty or missing; give metadata with a name, indented")]
    try:
        metadata = ObjectMeta.model_validate(raw, by_alias=True, by_name=False)
    except ValidationError as error:
        return problems_of(error, ObjectMeta, "metadata")
    return list(_check(metadata))


_NO_NAME = Problem("metadata.name", None, "is missing; give the job a name")


def _check(metadata: ObjectMeta) -> Iterator[Problem]:
    if not metadata.name and not metadata.generate_name:
        yield _NO_NAME
    # A hyphen at the end is followed by what the API server appends.
    beginning = metadata.generate_name.removesuffix("-") or metadata.generate_name
    if beginning and not _fits(SUBDOMAIN_PATTERN, beginning):
        yield Problem("metadata.generateName", beginning, unfit(metadata.generate_name, SUBDOMAIN_PATTERN))
    if len(metadata.namespace) > _MAX_NAMESPACE:
        message = f"{show(metadata.namespace)} is too long; use at most {_MAX_NAMESPACE} characters"
        yield Problem("metadata.namespace", metadata.namespace, message)
    elif metadata.namespace and not _fits(DNS_LABEL_PATTERN, metadata.namespace):
        yield Problem("metadata.namespace", metadata.namespace, unfit(metadata.namespace, DNS_LABEL_PATTERN))
    yield from check_labels("metadata.labels", metadata.labels)
    yield from check_annotations("metadata.annotations", metadata.annotations)
    yield from _annotations_too_large(metadata.annotations)
    for position, finalizer in enumerate(metadata.finalizers):
        if (wrong := label_key_problem(finalizer)) is not None:
            yield Problem(f"metadata.finalizers[{position}]", finalizer, wrong)
    if set(metadata.finalizers) >= _EXCLUSIVE_FINALIZERS:
        yield Problem("metadata.finalizers", None, "orphan and foregroundDeletion exclude each other; keep one")
    if sum(owner.controller is True for owner in metadata.owner_references) > 1:
        message = "more than one owner has controller: true; keep it on one"
        yield Problem("metadata.ownerReferences", None, message)


def _annotations_too_large(annotations: Mapping[str, str | None]) -> Iterator[Problem]:
    size = sum(len(f"{key}{value or ''}".encode("utf-8", "surrogatepass")) for key, value in annotations.items())
    if size > MAX_ANNOTATION_BYTES:
        message = f"has {size} bytes; use at most {MAX_ANNOTATION_BYTES} for all annotations together"
        yield Problem("metadata.annotations", None, message)


def _fits(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern.strip("^$"), text) is not None

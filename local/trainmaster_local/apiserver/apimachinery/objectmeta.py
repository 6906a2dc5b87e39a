"""Sets and validates the server's fields in metadata (k8s.io/apimachinery `pkg/api/validation/objectmeta.go`)."""

from __future__ import annotations

import datetime
import random
import uuid
from collections.abc import Callable
from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import FieldError
from trainmaster_local.apiserver.apimachinery.names import (
    dns_label_problems,
    dns_subdomain_problems,
    label_value_problems,
    qualified_name_problems,
)
from trainmaster_local.apiserver.resources import Object

_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH = 5
_MAX_GENERATED = 63
_ANNOTATIONS_LIMIT = 256 * 1024
_FINALIZER_NAMES = ("orphan", "foregroundDeletion", "kubernetes")


def rfc3339(seconds: float) -> str:
    """Returns a time as metadata writes it: UTC, whole seconds."""
    moment = datetime.datetime.fromtimestamp(int(seconds), datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def generate_name(base: str, random_: random.Random) -> str:
    """Returns `base` with five letters or digits, at most 63 bytes."""
    suffix = "".join(random_.choices(_SUFFIX_ALPHABET, k=_SUFFIX_LENGTH))
    return base[: _MAX_GENERATED - _SUFFIX_LENGTH] + suffix


def set_on_create(metadata: dict[str, Any], now: float) -> None:
    """Gives a new object its uid and creation time, and drops fields that a client can't set."""
    for name in ("resourceVersion", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
        metadata.pop(name, None)
    metadata["uid"] = str(uuid.uuid4())
    metadata["creationTimestamp"] = rfc3339(now)


def keep_on_update(metadata: dict[str, Any], old: dict[str, Any]) -> None:
    """Restores the fields that a client can't change; fields that the client omits stay."""
    for name in ("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"):
        if name in old:
            metadata[name] = old[name]
        else:
            metadata.pop(name, None)
    metadata.setdefault("uid", old["uid"])
    metadata.setdefault("generateName", old.get("generateName"))
    if metadata["generateName"] is None:
        del metadata["generateName"]


def drop_empty(metadata: dict[str, Any]) -> None:
    """Drops the fields that Go's `omitempty` wouldn't write."""
    for name in ("labels", "annotations", "finalizers", "ownerReferences", "managedFields"):
        if name in metadata and not metadata[name]:
            del metadata[name]
    for name in ("generateName", "namespace", "selfLink", "creationTimestamp", "uid", "resourceVersion"):
        if name in metadata and metadata[name] in ("", None):
            del metadata[name]


def validate(
    obj: Object, namespaced: bool, name_rule: Callable[[str], list[str]] | None, *, custom: bool = False
) -> list[FieldError]:
    """Returns the errors of an object's metadata; `custom` resources may have finalizers of any name."""
    metadata = obj["metadata"]
    errors = []
    rule = name_rule or dns_subdomain_problems
    if generate := metadata.get("generateName"):
        probe = generate[:-1] + "a" if generate.endswith("-") else generate
        errors += [FieldError.invalid("metadata.generateName", generate, problem) for problem in rule(probe)]
    name = metadata.get("name", "")
    if not name:
        errors.append(FieldError.required("metadata.name", "name or generateName is required"))
    else:
        errors += [FieldError.invalid("metadata.name", name, problem) for problem in rule(name)]
    if namespaced:
        namespace = metadata.get("namespace", "")
        if not namespace:
            errors.append(FieldError.required("metadata.namespace"))
        else:
            problems = dns_label_problems(namespace)
            errors += [FieldError.invalid("metadata.namespace", namespace, problem) for problem in problems]
    elif metadata.get("namespace"):
        errors.append(FieldError.forbidden("metadata.namespace", "not allowed on this type"))
    return errors + _validate_parts(metadata, custom)


def label_errors(labels: dict[str, Any], field: str) -> list[FieldError]:
    """Returns the errors of labels, including those of a template or a selector."""
    errors = []
    for key in sorted(labels):
        errors += [FieldError.invalid(field, key, problem) for problem in qualified_name_problems(key)]
        errors += [FieldError.invalid(field, labels[key], problem) for problem in label_value_problems(labels[key])]
    return errors


def annotation_errors(annotations: dict[str, Any], field: str) -> list[FieldError]:
    errors = []
    for key in sorted(annotations):
        errors += [FieldError.invalid(field, key, problem) for problem in qualified_name_problems(key.lower())]
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > _ANNOTATIONS_LIMIT:
        errors.append(FieldError.too_long(field, _ANNOTATIONS_LIMIT))
    return errors


def _validate_parts(metadata: dict[str, Any], custom: bool) -> list[FieldError]:
    errors = label_errors(metadata.get("labels") or {}, "metadata.labels")
    errors += annotation_errors(metadata.get("annotations") or {}, "metadata.annotations")
    controllers = []
    for owner in metadata.get("ownerReferences") or []:
        version = owner.get("apiVersion", "")
        if not version or version.count("/") > 1:
            field = "metadata.ownerReferences.apiVersion"
            errors.append(FieldError.invalid(field, version, "version must not be empty"))
        for part in ("kind", "name", "uid"):
            if not owner.get(part):
                errors.append(FieldError.invalid(f"metadata.ownerReferences.{part}", "", "must not be empty"))
        if owner.get("controller"):
            controllers.append(owner)
    if len(controllers) > 1:
        problem = (
            "Only one reference can have Controller set to true. Found "
            f'"true" in references for {controllers[0].get("kind")}/{controllers[0].get("name")} '
            f"and {controllers[1].get('kind')}/{controllers[1].get('name')}"
        )
        errors.append(FieldError.invalid("metadata.ownerReferences", metadata["ownerReferences"], problem))
    finalizers = metadata.get("finalizers") or []
    for index, finalizer in enumerate(finalizers):
        problems = qualified_name_problems(finalizer)
        errors += [FieldError.invalid("metadata.finalizers", finalizer, problem) for problem in problems]
        if not custom and "/" not in finalizer and finalizer not in _FINALIZER_NAMES:
            problem = "name is neither a standard finalizer name nor is it fully qualified"
            errors.append(FieldError.invalid(f"metadata.finalizers[{index}]", finalizer, problem))
    if "orphan" in finalizers and "foregroundDeletion" in finalizers:
        problem = "finalizer orphan and foregroundDeletion cannot be both set"
        errors.append(FieldError.invalid("metadata.finalizers", finalizers, problem))
    return errors


def validate_update(new: Object, old: Object) -> list[FieldError]:
    """Returns an error for each change of immutable metadata."""
    metadata = new["metadata"]
    before = old["metadata"]
    errors = []
    if before.get("deletionTimestamp"):
        added = sorted(set(metadata.get("finalizers") or []) - set(before.get("finalizers") or []))
        if added:
            listed = ", ".join(f'"{finalizer}"' for finalizer in added)
            problem = (
                "no new finalizers can be added if the object is being deleted, "
                f"found new finalizers []string{{{listed}}}"
            )
            errors.append(FieldError.forbidden("metadata.finalizers", problem))
    for name in ("name", "namespace", "uid"):
        if metadata.get(name, "") != before.get(name, ""):
            errors.append(FieldError.invalid(f"metadata.{name}", metadata.get(name, ""), "field is immutable"))
    if before.get("generation", 0) > metadata.get("generation", 0):
        errors.append(FieldError.invalid("metadata.generation", metadata.get("generation"), "must not be decremented"))
    return errors

"""Validates a custom resource: schema, scale paths, CEL rules, in kube-apiserver's order."""

from __future__ import annotations

from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import FieldError
from trainmaster_local.apiserver.plans import Plan
from trainmaster_local.apiserver.resources import Object
from trainmaster_local.apiserver.schema.validation import type_name, validate
from trainmaster_local.apiserver.writing.scaling import at_path

_UNCHECKED = (
    "some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation"
)
# CEL isn't evaluated after these errors, because it would fail on the same values (`hasBlockingErr` in the CEL
# validation strategy).
_BLOCKING = (
    "FieldValueNotSupported",
    "FieldValueRequired",
    "FieldValueTooLong",
    "FieldValueTooMany",
    "FieldValueTypeInvalid",
)


def custom_errors(plan: Plan, obj: Object, old: Object | None, found: list[FieldError]) -> list[FieldError]:
    """Returns a custom resource's errors beyond those already `found`; `old` is the object that it replaces."""
    schema = plan.type.schema
    errors = validate(obj, schema, old) if old is not None else validate(obj, schema)
    errors += _scale_errors(plan, obj)
    if plan.rules is None or not plan.rules:
        return errors
    if any(error.reason in _BLOCKING for error in (*found, *errors)):
        return [*errors, FieldError.invalid("<nil>", None, _UNCHECKED)]
    return errors + plan.rules.check(obj, old)


def _scale_errors(plan: Plan, obj: Object) -> list[FieldError]:
    """Returns errors if the scale subresource can't read its numbers."""
    if plan.type.scale is None:
        return []
    errors = []
    for path in (plan.type.scale.spec_replicas, plan.type.scale.status_replicas):
        value: Any = at_path(obj, path)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            go_type = {"string": "string", "boolean": "bool", "number": "float64"}.get(
                type_name(value), type_name(value)
            )
            detail = f"{path} accessor error: {value} is of the type {go_type}, expected int64"
            errors.append(FieldError.invalid(path, 0, detail))
        elif value < 0:
            errors.append(FieldError.invalid(path, value, "should be a non-negative integer"))
    return errors

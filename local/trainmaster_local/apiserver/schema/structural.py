"""Checks that a CRD's schema is structural (apiextensions-apiserver `pkg/apiserver/schema/validation.go`)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import FieldError, bad_request
from trainmaster_local.apiserver.schema.defaulting import set_defaults
from trainmaster_local.apiserver.schema.validation import type_name, validate

_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_LOGICAL = ("allOf", "anyOf", "oneOf", "not")
_EMPTY_IN_LOGIC = ("type", "default", "description", "title", "nullable", "additionalProperties")
_KNOWN = frozenset(
    [
        "additionalItems",
        "additionalProperties",
        "allOf",
        "anyOf",
        "default",
        "definitions",
        "dependencies",
        "description",
        "enum",
        "example",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "externalDocs",
        "format",
        "id",
        "items",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "not",
        "nullable",
        "oneOf",
        "pattern",
        "patternProperties",
        "properties",
        "required",
        "title",
        "type",
        "uniqueItems",
        "$ref",
        "$schema",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
        "x-kubernetes-map-type",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-validations",
    ]
)


_GO_NAMES: dict[Any, str] = {
    str: "string",
    bool: "bool",
    list: "slice",
    dict: "struct",
    (int, float): "float64",
    int: "int64",
}
_KEYWORD_TYPES: dict[str, Any] = {
    **dict.fromkeys(("type", "format", "pattern", "title", "description", "$ref", "id"), str),
    **dict.fromkeys(("x-kubernetes-list-type", "x-kubernetes-map-type"), str),
    **dict.fromkeys(("nullable", "uniqueItems", "exclusiveMinimum", "exclusiveMaximum"), bool),
    **dict.fromkeys(("x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"), bool),
    **dict.fromkeys(("x-kubernetes-embedded-resource",), bool),
    **dict.fromkeys(("enum", "required", "allOf", "anyOf", "oneOf"), list),
    **dict.fromkeys(("x-kubernetes-list-map-keys", "x-kubernetes-validations"), list),
    **dict.fromkeys(("properties", "items", "not"), dict),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), (int, float)),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), int),
}


def drop_unknown(schema: Any, path: str) -> list[str]:
    """Drops keywords that aren't part of JSONSchemaProps, in place; returns their paths.

    Raises ApiError 400 for a keyword with a value of the wrong type.
    """
    if schema is None or (isinstance(schema, bool) and path.endswith(".additionalProperties")):
        return []
    _check_keywords(schema, path)
    unknown = []
    for key in [key for key in schema if key not in _KNOWN]:
        del schema[key]
        unknown.append(f"{path}.{key}")
    properties = schema.get("properties") or {}
    for name in properties:
        if properties[name] is None:
            properties[name] = {}
        unknown += drop_unknown(properties[name], f"{path}.properties.{name}")
    for key in ("items", "additionalProperties", "not"):
        unknown += drop_unknown(schema.get(key), f"{path}.{key}")
    for key in ("allOf", "anyOf", "oneOf"):
        for index, child in enumerate(schema.get(key) or ()):
            unknown += drop_unknown(child, f"{path}.{key}[{index}]")
    return unknown


def _check_keywords(schema: Any, path: str) -> None:
    found: tuple[str, Any, Any] | None = (path, schema, dict) if not isinstance(schema, dict) else None
    for key, wanted in _KEYWORD_TYPES.items() if found is None else ():
        value = schema.get(key)
        if value is None:
            schema.pop(key, None)
        elif not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            found = (f"{path}.{key}", value, wanted)
    if found is None:
        texts = [("required", name) for name in schema.get("required", ())]
        texts += [("x-kubernetes-list-map-keys", name) for name in schema.get("x-kubernetes-list-map-keys", ())]
        found = next(((f"{path}.{key}", name, str) for key, name in texts if not isinstance(name, str)), None)
    if found is None:
        rules = schema.get("x-kubernetes-validations", ())
        found = next(
            ((f"{path}.x-kubernetes-validations", rule, dict) for rule in rules if not isinstance(rule, dict)), None
        )
    if found is not None:
        place, value, wanted = found
        raise bad_request(
            'CustomResourceDefinition in version "v1" cannot be handled as a CustomResourceDefinition: json: cannot '
            f"unmarshal {type_name(value)} into Go struct field JSONSchemaProps.{place} of type {_GO_NAMES[wanted]}"
        )


def structural_errors(schema: Mapping[str, Any], path: str) -> list[FieldError]:
    """Returns the errors that make a whole object's schema non-structural."""
    errors = []
    if not schema.get("type"):
        errors.append(FieldError.required(f"{path}.type", "must not be empty at the root"))
    elif schema["type"] != "object":
        errors.append(FieldError.invalid(f"{path}.type", schema["type"], "must be object at the root"))
    metadata = (schema.get("properties") or {}).get("metadata")
    if isinstance(metadata, Mapping):
        extra = set(metadata) - {"type", "description", "properties"}
        named = set(metadata.get("properties") or {}) - {"name", "generateName"}
        if extra or named:
            problem = "must not specify anything other than name and generateName, but metadata is implicitly specified"
            errors.append(FieldError.forbidden(f"{path}.properties[metadata]", problem))
    return errors + _node_errors(schema, path, root=True)


def _node_errors(schema: Mapping[str, Any], path: str, *, root: bool = False) -> list[FieldError]:
    errors = []
    kind = schema.get("type")
    if kind and kind not in _TYPES:
        errors.append(FieldError.not_supported(f"{path}.type", kind, _TYPES))
    if schema.get("$ref"):
        errors.append(FieldError.forbidden(f"{path}.$ref", "$ref is not supported"))
    if schema.get("uniqueItems"):
        problem = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        errors.append(FieldError.forbidden(f"{path}.uniqueItems", problem))
    if schema.get("properties") and schema.get("additionalProperties") not in (None, False):
        problem = "additionalProperties and properties are mutual exclusive"
        errors.append(FieldError.forbidden(f"{path}.additionalProperties", problem))
    errors += _extension_errors(schema, path, root)
    for name, child in (schema.get("properties") or {}).items():
        errors += _child_errors(child, f"{path}.properties[{name}]", "must not be empty for specified object fields")
    if isinstance(schema.get("items"), Mapping):
        errors += _child_errors(schema["items"], f"{path}.items", "must not be empty for specified array items")
    elif kind == "array" and not schema.get("x-kubernetes-preserve-unknown-fields"):
        errors.append(FieldError.required(f"{path}.items", "must be specified"))
    if isinstance(schema.get("additionalProperties"), Mapping):
        problem = "must not be empty for specified object fields"
        errors += _child_errors(schema["additionalProperties"], f"{path}.additionalProperties", problem)
    errors += _default_errors(schema, path)
    for key in _LOGICAL:
        parts = schema.get(key)
        if isinstance(parts, list):
            for index, part in enumerate(parts):
                errors += _logic_errors(part, f"{path}.{key}[{index}]", schema)
        elif isinstance(parts, Mapping):
            errors += _logic_errors(parts, f"{path}.{key}", schema)
    return errors


def _child_errors(schema: Mapping[str, Any], path: str, problem: str) -> list[FieldError]:
    errors = []
    typeless = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    if not schema.get("type") and not typeless:
        errors.append(FieldError.required(f"{path}.type", problem))
    return errors + _node_errors(schema, path)


def _extension_errors(schema: Mapping[str, Any], path: str, root: bool) -> list[FieldError]:
    errors = []
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string") and kind:
        problem = "must be empty if x-kubernetes-int-or-string is true"
        errors.append(FieldError.forbidden(f"{path}.type", problem))
    if schema.get("x-kubernetes-embedded-resource"):
        if kind != "object":
            problem = "must be object if x-kubernetes-embedded-resource is true"
            errors.append(FieldError.invalid(f"{path}.type", kind or "", problem))
        if not schema.get("properties") and not schema.get("x-kubernetes-preserve-unknown-fields"):
            problem = (
                "must not be empty if x-kubernetes-embedded-resource is true without "
                "x-kubernetes-preserve-unknown-fields"
            )
            errors.append(FieldError.required(f"{path}.properties", problem))
    listed = schema.get("x-kubernetes-list-type")
    if listed is not None:
        if kind != "array":
            problem = "must be array if x-kubernetes-list-type is specified"
            errors.append(FieldError.invalid(f"{path}.type", kind or "", problem))
        if listed not in ("atomic", "set", "map"):
            supported = ("atomic", "set", "map")
            errors.append(FieldError.not_supported(f"{path}.x-kubernetes-list-type", listed, supported))
        if listed == "map":
            errors += _list_key_errors(schema, path)
    if schema.get("x-kubernetes-map-type") not in (None, "granular", "atomic"):
        given = schema["x-kubernetes-map-type"]
        errors.append(FieldError.not_supported(f"{path}.x-kubernetes-map-type", given, ("atomic", "granular")))
    if root and schema.get("x-kubernetes-map-type"):
        errors.append(FieldError.forbidden(f"{path}.x-kubernetes-map-type", "must not be set at the root"))
    return errors


def _list_key_errors(schema: Mapping[str, Any], path: str) -> list[FieldError]:
    keys = schema.get("x-kubernetes-list-map-keys") or []
    if not keys:
        problem = "must not be empty if x-kubernetes-list-type is map"
        return [FieldError.required(f"{path}.x-kubernetes-list-map-keys", problem)]
    errors = []
    items = schema.get("items") or {}
    if items.get("type") != "object":
        errors.append(
            FieldError.invalid(
                f"{path}.items.type",
                items.get("type", ""),
                "must be object if parent array's x-kubernetes-list-type is map",
            )
        )
    properties = items.get("properties") or {}
    for index, key in enumerate(keys):
        if key not in properties:
            field = f"{path}.x-kubernetes-list-map-keys[{index}]"
            errors.append(FieldError.invalid(field, key, "entries must all be names of item properties"))
        elif key not in (items.get("required") or ()) and "default" not in properties[key]:
            problem = (
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"
            )
            errors.append(FieldError.required(f"{path}.items.properties[{key}].default", problem))
    return errors


def _default_errors(schema: Mapping[str, Any], path: str) -> list[FieldError]:
    """Returns the errors of a default, which must be valid once its own defaults are filled in."""
    if "default" not in schema:
        return []
    value = copy.deepcopy(schema["default"])
    set_defaults(value, schema)
    errors = validate(value, schema, path=f"{path}.default")
    if isinstance(value, dict) and "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        unknown = [name for name in value if name not in schema["properties"]]
        if unknown:
            problem = "must not have unknown fields: " + ", ".join(unknown)
            errors.append(FieldError.invalid(f"{path}.default", schema["default"], problem))
    return errors


def _logic_errors(schema: Mapping[str, Any], path: str, parent: Mapping[str, Any]) -> list[FieldError]:
    """Returns the errors below allOf, anyOf, oneOf and not, which may restrict values and not add structure."""
    allowed = ("type",) if parent.get("x-kubernetes-int-or-string") else ()
    errors = [
        FieldError.forbidden(f"{path}.{key}", "must be empty to be structural")
        for key in _EMPTY_IN_LOGIC
        if schema.get(key) not in (None, False) and key not in allowed
    ]
    properties = parent.get("properties") or {}
    for name, child in (schema.get("properties") or {}).items():
        if name not in properties:
            problem = "because it is defined in " + path
            errors.append(FieldError.required(f"{path.rsplit('.', 1)[0]}.properties[{name}]", problem))
        errors += _logic_errors(child, f"{path}.properties[{name}]", properties.get(name, {}))
    for key in _LOGICAL:
        parts = schema.get(key)
        for index, part in enumerate(parts if isinstance(parts, list) else []):
            errors += _logic_errors(part, f"{path}.{key}[{index}]", parent)
    return errors

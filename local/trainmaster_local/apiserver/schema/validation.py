"""Validates custom resources by their schema, in the words of kube-openapi's validator and apiextensions-apiserver.

`validate` returns the field errors of an object, in the order of its fields. An update ignores old errors of unchanged
values (ratcheting, KEP-4008).
"""

from __future__ import annotations

import base64
import binascii
import datetime
import ipaddress
import json
import re
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from trainmaster_local.apiserver.apimachinery.errors import FieldError
from trainmaster_local.apiserver.schema.structure import Schema, list_keys, list_type

_UNSET = object()


def type_name(value: Any) -> str:
    """Returns the JSON type of a value, as validation errors name it.

    A number too large for an int64 is decoded as a float64 (sigs.k8s.io/json), and a float64 is an integer only if it
    is exact (go-openapi/swag, `IsFloat64AJSONInteger`).
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int):
        return "integer" if -(2**63) <= value < 2**63 else "number"
    if isinstance(value, float):
        return "integer" if value.is_integer() and abs(value) < 2**53 else "number"
    return "object" if isinstance(value, dict) else "array"


def validate(value: Any, schema: Schema, old: Any = _UNSET, path: str = "") -> list[FieldError]:
    """Returns the errors of `value`. `old` is the previous value on an update."""
    if old is not _UNSET and old == value:
        return []
    field = path or "<nil>"
    errors = _type_errors(value, schema, field, path)
    if value is None:
        return errors
    errors += _combined(value, schema, path)
    if isinstance(value, str):
        errors += _string_errors(value, schema, field, path)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        errors += _number_errors(value, schema, field, path)
    elif isinstance(value, list):
        errors += _list_errors(value, schema, old, field, path)
    if "enum" in schema and not any(_is_same(value, choice) for choice in schema["enum"]):
        supported = [choice if isinstance(choice, str) else json.dumps(choice) for choice in schema["enum"]]
        errors.append(FieldError.not_supported(field, value, supported))
    if isinstance(value, dict):
        errors += _object_errors(value, schema, old, field, path)
    return errors


def _type_errors(value: Any, schema: Schema, field: str, path: str) -> list[FieldError]:
    """Returns an error if the value's type is wrong; the rest of the schema is checked too."""
    types = ["integer", "string"] if schema.get("x-kubernetes-int-or-string") else [schema.get("type", "")]
    if types == [""] or (value is None and schema.get("nullable")):
        return []
    name = type_name(value)
    if name in types or (name == "integer" and "number" in types):
        return []
    wanted = ",".join(types)
    numeric = "integer" in types or "number" in types
    if schema.get("format") and not isinstance(value, (str, list)) and value is not None:
        # A number's error names its format; other types have none.
        wanted, name = schema["format"], {"integer": "int64", "number": "float64"}.get(name, "")
    elif schema.get("format") and not numeric and value is not None:
        return []
    return [FieldError.type_invalid(field, name, f'{path} in body must be of type {wanted}: "{name}"')]


def _is_same(value: Any, choice: Any) -> bool:
    """Returns whether two values are equal in JSON, where true isn't 1."""
    return bool(value == choice) and isinstance(value, bool) == isinstance(choice, bool)


def _valid(value: Any, schema: Schema) -> bool:
    return not validate(value, schema)


def _combined(value: Any, schema: Schema, path: str) -> list[FieldError]:
    """Returns the errors of combined schemas; kube-openapi's own messages about them name no field."""
    errors = []
    wrong = [part for part in (validate(value, part, path=path) for part in schema.get("allOf", ())) if part]
    for part in wrong:
        errors += part
    if wrong:
        errors.append(_combination(path, "must validate all the schemas (allOf)"))
    if "anyOf" in schema:
        alternatives = [validate(value, part, path=path) for part in schema["anyOf"]]
        if all(alternatives):
            # If alternatives fit equally badly, the first one's errors are shown.
            errors += [_combination(path, "must validate at least one schema (anyOf)"), *alternatives[0]]
    if "oneOf" in schema:
        alternatives = [validate(value, part, path=path) for part in schema["oneOf"]]
        count = alternatives.count([])
        if count != 1:
            found = "Found none valid" if count == 0 else f"Found {count} valid alternatives"
            errors.append(_combination(path, f"must validate one and only one schema (oneOf). {found}"))
            errors += alternatives[0] if count == 0 else []
    if "not" in schema and _valid(value, schema["not"]):
        errors.append(_combination(path, "must not validate the schema (not)"))
    return errors


def _combination(path: str, detail: str) -> FieldError:
    return FieldError.invalid("<nil>", "", f'"{path}" {detail}')


def _plain(field: str, value: Any, detail: str) -> FieldError:
    return FieldError.invalid(field, value, detail)


def _string_errors(value: str, schema: Schema, field: str, path: str) -> list[FieldError]:
    errors = []
    # Kubernetes reports only the first of these.
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        errors.append(FieldError.too_long(field, schema["maxLength"]))
    elif "minLength" in schema and len(value) < schema["minLength"]:
        limit = schema["minLength"]
        errors.append(_plain(field, value, f"{path} in body should be at least {limit} chars long"))
    elif "pattern" in schema and not re.search(schema["pattern"], value):
        errors.append(_plain(field, value, f"{path} in body should match '{schema['pattern']}'"))
    wanted = schema.get("format")
    if wanted in _FORMATS and not _has_format(value, wanted):
        errors.append(FieldError.type_invalid(field, value, f'{path} in body must be of type {wanted}: "{value}"'))
    return errors


def _number_errors(value: float, schema: Schema, field: str, path: str) -> list[FieldError]:
    errors = []
    if schema.get("type") == "integer":
        form = schema.get("format", "")
        limit = 2**31 if form == "int32" else 2**63
        if type_name(value) != "integer" or not -limit <= value < limit:
            said = f"with format {form}" if form else "(default format)"
            errors.append(_plain("<nil>", "", f"Checked value must be of type integer {said} in {path}"))
    if "minimum" in schema:
        exclusive = bool(schema.get("exclusiveMinimum"))
        if value < schema["minimum"] or (exclusive and value == schema["minimum"]):
            rule = "greater than" if exclusive else "greater than or equal to"
            errors.append(_plain(field, value, f"{path} in body should be {rule} {_number(schema['minimum'])}"))
    if "maximum" in schema:
        exclusive = bool(schema.get("exclusiveMaximum"))
        if value > schema["maximum"] or (exclusive and value == schema["maximum"]):
            rule = "less than" if exclusive else "less than or equal to"
            errors.append(_plain(field, value, f"{path} in body should be {rule} {_number(schema['maximum'])}"))
    if "multipleOf" in schema:
        quotient = value / schema["multipleOf"]
        if abs(quotient - round(quotient)) > 1e-9:
            multiple = _number(schema["multipleOf"])
            errors.append(_plain(field, value, f"{path} in body should be a multiple of {multiple}"))
    return errors


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


def _list_errors(value: list[Any], schema: Schema, old: Any, field: str, path: str) -> list[FieldError]:
    errors = []
    items = schema.get("items")
    if isinstance(items, dict):
        before = _old_items(old, schema)
        for index, item in enumerate(value):
            errors += validate(item, items, before(index, item), f"{path}[{index}]")
    if "minItems" in schema and len(value) < schema["minItems"]:
        errors.append(_plain(field, len(value), f"{path} in body should have at least {schema['minItems']} items"))
    if "maxItems" in schema and len(value) > schema["maxItems"]:
        errors.append(FieldError.too_many(field, len(value), schema["maxItems"]))
    kind = list_type(schema)
    seen = set()
    for index, item in enumerate(value):
        if kind == "map":
            if item is None:
                continue
            if not isinstance(item, dict):
                detail = "must be an object for an array of list-type map"
                errors.append(_plain(f"{path}[{index}]", item, detail))
                continue
            properties = items.get("properties", {}) if isinstance(items, dict) else {}
            keys = {key: item.get(key, properties.get(key, {}).get("default")) for key in list_keys(schema)}
            shown: Any = {key: keys[key] for key in sorted(keys) if keys[key] is not None}
        elif kind == "set":
            shown = item
        else:
            break
        identity = json.dumps(shown, sort_keys=True)
        if identity in seen:
            errors.append(FieldError.duplicate(f"{path}[{index}]", shown))
        seen.add(identity)
    return errors


def _old_items(old: Any, schema: Schema) -> Callable[[int, Any], Any]:
    """Returns a function that finds an item's old value, by its key in a list of maps; in an atomic list, none."""
    keys = list_keys(schema) if list_type(schema) == "map" else []
    if not isinstance(old, list) or not keys:
        return lambda index, item: _UNSET
    before = {json.dumps([item.get(key) for key in keys]): item for item in old if isinstance(item, dict)}

    def find(index: int, item: Any) -> Any:
        if not isinstance(item, dict):
            return _UNSET
        return before.get(json.dumps([item.get(key) for key in keys]), _UNSET)

    return find


def _object_errors(value: dict[str, Any], schema: Schema, old: Any, field: str, path: str) -> list[FieldError]:
    errors = []
    properties = schema.get("properties", {})
    additional = schema.get("additionalProperties")
    before = old if isinstance(old, dict) else {}
    required = set(schema.get("required", ()))
    for name in sorted(set(value) | required):
        here = f"{path}.{name}" if path else name
        if name not in value:
            errors.append(FieldError.required(here))
            continue
        child = properties.get(name, additional if isinstance(additional, dict) else None)
        if child is not None and not (not path and name in ("apiVersion", "kind", "metadata")):
            errors += validate(value[name], child, before.get(name, _UNSET), here)
    count = len(value)
    if "minProperties" in schema and count < schema["minProperties"]:
        errors.append(_plain(field, value, f"{path} in body should have at least {schema['minProperties']} properties"))
    if "maxProperties" in schema and count > schema["maxProperties"]:
        errors.append(FieldError.too_many(field, count, schema["maxProperties"]))
    if schema.get("x-kubernetes-embedded-resource") and path:
        for name in ("apiVersion", "kind"):
            if not value.get(name):
                errors.append(FieldError.required(f"{path}.{name}", "must not be empty" if name in value else ""))
    return errors


def _is_date_time(value: str) -> bool:
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})", value):
        return False
    datetime.datetime.fromisoformat(re.sub(r"\.\d+", "", value).upper().replace("Z", "+00:00"))
    return True


def _is_date(value: str) -> bool:
    datetime.date.fromisoformat(value)
    return True


def _is_duration(value: str) -> bool:
    return bool(
        re.fullmatch(r"[-+]?(\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h|d|w)((\d+(\.\d*)?)(ns|us|µs|ms|s|m|h|d|w))*|0", value)
    )


def _is_uri(value: str) -> bool:
    return bool(urlsplit(value).scheme) or value.startswith("/")


def _is_byte(value: str) -> bool:
    base64.b64decode(value, validate=True)
    return True


def _is_ip(version: int) -> Callable[[str], bool]:
    return lambda value: ipaddress.ip_address(value).version == version


def _is_cidr(value: str) -> bool:
    ipaddress.ip_network(value, strict=False)
    return "/" in value


def _is_uuid(value: str) -> bool:
    return bool(uuid.UUID(value))


_FORMATS: dict[str, Callable[[str], bool]] = {
    "date-time": _is_date_time,
    "date": _is_date,
    "duration": _is_duration,
    "uri": _is_uri,
    "byte": _is_byte,
    "ipv4": _is_ip(4),
    "ipv6": _is_ip(6),
    "cidr": _is_cidr,
    "uuid": _is_uuid,
    "email": lambda value: bool(re.fullmatch(r"[^@\s]+@[^@\s]+", value)),
    "hostname": lambda value: bool(re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?", value)),
}


def _has_format(value: str, name: str) -> bool:
    """Checks the formats that structural schemas support; others are ignored, as in Kubernetes."""
    try:
        return _FORMATS[name](value)
    except (ValueError, binascii.Error):
        return False

"""Many types share these checks: selectors, names of other objects, ports, numbers that can't be negative."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import FieldError
from trainmaster_local.apiserver.apimachinery.names import label_value_problems, qualified_name_problems
from trainmaster_local.apiserver.apimachinery.selectors import from_object

Json = dict[str, Any]

NOT_NEGATIVE = "must be greater than or equal to 0"
PORT_RANGE = "must be between 1 and 65535, inclusive"
IMMUTABLE = "field is immutable"
NO_ADDRESS = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"


def invalid_all(field: str, value: Any, problems: Iterable[str]) -> list[FieldError]:
    """Returns one error for each problem."""
    return [FieldError.invalid(field, value, problem) for problem in problems]


def not_negative(obj: Json, name: str, field: str) -> list[FieldError]:
    value = obj.get(name)
    if value is not None and value < 0:
        return [FieldError.invalid(f"{field}.{name}", value, NOT_NEGATIVE)]
    return []


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def port_problems(port: int) -> list[str]:
    return [] if 1 <= port <= 65535 else [PORT_RANGE]


def port_name_problems(name: str) -> list[str]:
    """Checks an IANA service name (k8s.io/apimachinery `IsValidPortName`)."""
    problems = []
    if len(name) > 15:
        problems.append("must be no more than 15 characters")
    if not re.fullmatch(r"[-a-z0-9]+", name):
        problems.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not re.search("[a-z]", name):
        problems.append("must contain at least one letter (a-z)")
    if "--" in name:
        problems.append("must not contain consecutive hyphens")
    if name.startswith("-") or name.endswith("-"):
        problems.append("must not begin or end with a hyphen")
    return problems


def config_key_problems(key: str) -> list[str]:
    """Checks a key of a ConfigMap or Secret."""
    problems = [] if len(key) <= 253 else ["must be no more than 253 characters"]
    if not re.fullmatch(r"[-._a-zA-Z0-9]+", key):
        problems.append(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or "
            "'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
        )
    elif key == "." or key == "..":
        problems.append(f"must not be '{key}'")
    elif key.startswith(".."):
        problems.append("must not start with '..'")
    return problems


def label_selector_errors(selector: Json | None, field: str) -> list[FieldError]:
    """Returns the errors of a `LabelSelector` (k8s.io/apimachinery `ValidateLabelSelector`)."""
    errors: list[FieldError] = []
    labels = (selector or {}).get("matchLabels") or {}
    for key, value in sorted(labels.items()):
        errors += invalid_all(f"{field}.matchLabels", key, qualified_name_problems(key))
        errors += invalid_all(f"{field}.matchLabels", value, label_value_problems(value))
    for index, expression in enumerate((selector or {}).get("matchExpressions") or []):
        errors += selector_requirement_errors(expression, f"{field}.matchExpressions[{index}]")
    return errors


def selector_requirement_errors(expression: Json, here: str) -> list[FieldError]:
    """Returns the errors of one requirement of a label selector."""
    errors: list[FieldError] = []
    operator, values = expression.get("operator", ""), expression.get("values") or []
    if operator in ("In", "NotIn"):
        if not values:
            detail = "must be specified when `operator` is 'In' or 'NotIn'"
            errors.append(FieldError.required(f"{here}.values", detail))
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            errors.append(FieldError.forbidden(f"{here}.values", detail))
    else:
        errors.append(FieldError.invalid(f"{here}.operator", operator, "not a valid selector operator"))
    key = expression.get("key", "")
    errors += invalid_all(f"{here}.key", key, qualified_name_problems(key))
    for position, value in enumerate(values):
        errors += invalid_all(f"{here}.values[{position}]", value, label_value_problems(value))
    return errors


def is_empty_selector(selector: Json | None) -> bool:
    return not (selector or {}).get("matchLabels") and not (selector or {}).get("matchExpressions")


def selects(selector: Json, labels: Json) -> bool:
    """Returns whether a valid selector matches labels."""
    return from_object(selector).matches(labels)


def selector_string(selector: Json | None) -> str:
    """Returns the string form of a selector, as in the scale subresource and the Selector column."""
    if is_empty_selector(selector):
        return "<none>" if selector is None else ""
    assert selector is not None
    terms = [(key, f"{key}={value}") for key, value in (selector.get("matchLabels") or {}).items()]
    for expression in selector.get("matchExpressions") or []:
        key, values = expression["key"], ",".join(sorted(expression.get("values") or []))
        forms = {
            "In": f"{key} in ({values})",
            "NotIn": f"{key} notin ({values})",
            "Exists": key,
            "DoesNotExist": f"!{key}",
        }
        terms.append((key, forms[expression["operator"]]))
    return ",".join(term for _, term in sorted(terms))

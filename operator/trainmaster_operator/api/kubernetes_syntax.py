"""Checks labels, names, ports and quantities by Kubernetes' syntax, which is the same in all objects.

Sources: apimachinery, pkg/util/validation and pkg/api/resource/quantity.go.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from typing import Any

from trainmaster_operator.api.problems import Problem
from trainmaster_operator.api.values import DNS_LABEL_PATTERN, LABEL_KEY_PATTERN, SUBDOMAIN_PATTERN, fits, show, unfit
from trainmaster_operator.wire.values import mapping

_MOST_NAME, _MOST_DOMAIN = 63, 253
_VALUE = re.compile(rf"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{{0,{_MOST_NAME - 2}}}[A-Za-z0-9])?)?")
_FORM = f"use at most {_MOST_NAME} letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"


def keyed(path: str, key: str) -> str:
    """Returns the path of a user-defined key in Kubernetes' form, such as nodeSelector.a or limits[a.com/gpu]."""
    return f"{path}.{key}" if key.replace("-", "").replace("_", "").isalnum() else f"{path}[{key}]"


def label_key_problem(key: str) -> str | None:
    """Returns the problem with a label's key, or with an annotation's key in lower case, or None."""
    prefix, slash, name = key.rpartition("/")
    if len(name) <= _MOST_NAME and len(prefix) <= _MOST_DOMAIN and fits(LABEL_KEY_PATTERN, key):
        return None
    if slash and not fits(SUBDOMAIN_PATTERN, prefix):
        return f"{show(key)} can't be a key; use a domain before the '/', such as example.com/name"
    return f"{show(key)} can't be a key; {_FORM}"


def check_labels(path: str, given: Any) -> Iterator[Problem]:
    """Yields problems with a mapping of labels. Another check covers values that aren't text."""
    for key, value in mapping(given).items():
        key = str(key)
        if key.startswith("$"):
            continue
        message = label_key_problem(key)
        if message is None and isinstance(value, str):
            message = None if _VALUE.fullmatch(value) else f"{show(value)} can't be a label's value; {_FORM}"
        if message is not None:
            yield Problem(keyed(path, key), value, message)


def check_annotations(path: str, given: Any) -> Iterator[Problem]:
    """Yields problems with the keys of annotations."""
    for key, value in mapping(given).items():
        # The API server checks the keys of annotations in lower case.
        if (wrong := label_key_problem(str(key).lower())) is not None:
            yield Problem(keyed(path, str(key)), value, wrong)


_SUFFIXES = {
    "": Decimal(1),
    **{suffix: Decimal(1000) ** -power for power, suffix in enumerate("mun", 1)},
    "k": Decimal(1000),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("MGTPE", 2)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}
_PARTS = re.compile(r"([-+]?[0-9.]+)(?:[eE]([-+]?[0-9]+)|([A-Za-z]*))\Z")


def quantity(value: int | str) -> Decimal:
    """Returns a quantity's value in cores or bytes. Raises ValueError for text that isn't a quantity."""
    parts = _PARTS.match(str(value))
    if parts is None:
        raise ValueError(f"{value!r} is not a quantity")
    number, exponent, suffix = parts.groups()
    if exponent is not None:
        return Decimal(number).scaleb(int(exponent))
    return Decimal(number) * _SUFFIXES[suffix]


# apimachinery pkg/api/resource/quantity.go, ParseQuantity.
_QUANTITY = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?")
_NEARLY = re.compile(r"([+]?[0-9]+(?:[.,][0-9]+)?) *([A-Za-z]*)")
# Wrong suffixes that people write, and what they probably mean.
_UNITS = {
    **{f"{letter}b": (letter.upper().replace("K", "k"), f"{letter.upper()}i") for letter in "kmgtpe"},
    **{f"{letter}ib": (f"{letter.upper()}i",) for letter in "kmgtpe"},
    **{f"{letter}i": (f"{letter.upper()}i",) for letter in "kmgtpe"},
    **{letter: (letter.upper(), f"{letter.upper()}i") for letter in "gtpe"},
    "k": ("k", "Ki"),
    **dict.fromkeys(("", "b", "byte", "bytes", "core", "cores", "cpu", "cpus", "vcpu", "vcpus"), ("",)),
}
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]+(?:-[a-z0-9]+)*")
# The name of a port is an IANA_SVC_NAME.
_LONGEST_PORT_NAME = 15


def quantity_problem(value: Any) -> str | None:
    """Returns the problem of a quantity (a number or text)."""
    if isinstance(value, str) and _QUANTITY.fullmatch(value):
        return None
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return None
    remedy = "use a number with an optional suffix, such as 16, 500m or 128Gi"
    found = _NEARLY.fullmatch(value) if isinstance(value, str) and len(value) <= 32 else None
    meant = _UNITS.get(found[2].lower()) if found is not None else None
    if found is not None and meant is not None:
        remedy = "use " + " or ".join(f"{found[1].replace(',', '.')}{unit}" for unit in meant)
    return f"{show(value)} is not a quantity; {remedy}"


def _name_problem(value: str, pattern: str, most: int) -> str | None:
    if not fits(pattern, value):
        return unfit(value, pattern)
    return f"{show(value)} has {len(value)} characters; use at most {most}" if len(value) > most else None


# The problem of a container's or volume's name, and of an object's name.
dns_label_problem = partial(_name_problem, pattern=DNS_LABEL_PATTERN, most=_MOST_NAME)
subdomain_problem = partial(_name_problem, pattern=SUBDOMAIN_PATTERN, most=_MOST_DOMAIN)


def port_name_problem(value: str) -> str | None:
    """Returns the problem of a container port's name."""
    if len(value) <= _LONGEST_PORT_NAME and _PORT_NAME.fullmatch(value):
        return None
    return (
        f"{show(value)} can't be a port's name; use at most {_LONGEST_PORT_NAME} lower case letters, digits and single "
        "'-', with at least one letter"
    )


def variable_name_problem(value: str) -> str | None:
    """Returns the problem of a variable's name."""
    if value and "=" not in value and value.isascii() and value.isprintable():
        return None
    return f"{show(value)} can't be a variable's name; use letters, digits and '_', such as MY_VARIABLE"

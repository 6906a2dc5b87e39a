"""Forms that values of a pod have: quantities, names and ports."""

from __future__ import annotations

import math
import re
from typing import Any

from trainmaster_operator.api.values import DNS_LABEL_PATTERN, SUBDOMAIN_PATTERN, show, unfit

# apimachinery pkg/api/resource/quantity.go, ParseQuantity.
_QUANTITY = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?")
_NEARLY = re.compile(r"([+]?[0-9]+(?:[.,][0-9]+)?) *([A-Za-z]*)")
# What people write for a suffix, and what they may have meant.
_UNITS = {
    **{f"{letter}b": (letter.upper().replace("K", "k"), f"{letter.upper()}i") for letter in "kmgtpe"},
    **{f"{letter}ib": (f"{letter.upper()}i",) for letter in "kmgtpe"},
    **{f"{letter}i": (f"{letter.upper()}i",) for letter in "kmgtpe"},
    **{letter: (letter.upper(), f"{letter.upper()}i") for letter in "gtpe"},
    "k": ("k", "Ki"),
    **dict.fromkeys(("", "b", "byte", "bytes", "core", "cores", "cpu", "cpus", "vcpu", "vcpus"), ("",)),
}
_DNS_LABEL = re.compile(DNS_LABEL_PATTERN.strip("^$"))
_SUBDOMAIN = re.compile(SUBDOMAIN_PATTERN.strip("^$"))
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]+(?:-[a-z0-9]+)*")
# IANA_SVC_NAME, which names of ports are.
_LONGEST_PORT_NAME = 15
_MOST_PORT = 65_535


def quantity_problem(value: Any) -> str | None:
    """Returns what is wrong with a quantity, which may be a number or text."""
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


def dns_label_problem(value: str) -> str | None:
    """Returns what is wrong with the name of a container or volume."""
    return _too_long(value, 63) if _DNS_LABEL.fullmatch(value) else unfit(value, DNS_LABEL_PATTERN)


def subdomain_problem(value: str) -> str | None:
    """Returns what is wrong with the name of an object."""
    return _too_long(value, 253) if _SUBDOMAIN.fullmatch(value) else unfit(value, SUBDOMAIN_PATTERN)


def port_name_problem(value: str) -> str | None:
    """Returns what is wrong with the name of a container's port."""
    if len(value) <= _LONGEST_PORT_NAME and _PORT_NAME.fullmatch(value):
        return None
    return (
        f"{show(value)} can't be a port's name; use at most {_LONGEST_PORT_NAME} lower case letters, digits and single "
        "'-', with at least one letter"
    )


def port_problem(value: Any) -> str | None:
    """Returns what is wrong with the number of a port; what is no whole number is another check's."""
    if not isinstance(value, int) or isinstance(value, bool) or 1 <= value <= _MOST_PORT:
        return None
    return f"{show(value)} is no port; use 1 to {_MOST_PORT}"


def variable_name_problem(value: str) -> str | None:
    """Returns what is wrong with the name of a variable."""
    if value and "=" not in value and value.isascii() and value.isprintable():
        return None
    return f"{show(value)} can't be a variable's name; use letters, digits and '_', such as MY_VARIABLE"


def _too_long(value: str, most: int) -> str | None:
    return f"{show(value)} has {len(value)} characters; use at most {most}" if len(value) > most else None

"""Kubernetes' quantities become numbers (apimachinery pkg/api/resource/quantity.go)."""

from __future__ import annotations

import re
from decimal import Decimal

_SUFFIXES = {
    "": Decimal(1),
    **{suffix: Decimal(1000) ** -power for power, suffix in enumerate("mun", 1)},
    "k": Decimal(1000),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("MGTPE", 2)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}
_PARTS = re.compile(r"[+]?([0-9.]+)(?:[eE]([-+]?[0-9]+)|([A-Za-z]*))\Z")


def quantity(value: int | str) -> Decimal:
    """Returns a quantity's value: cores, or bytes. Raises ValueError for text that isn't a quantity."""
    parts = _PARTS.match(str(value))
    if parts is None:
        raise ValueError(f"{value!r} is not a quantity")
    number, exponent, suffix = parts.groups()
    if exponent is not None:
        return Decimal(number).scaleb(int(exponent))
    return Decimal(number) * _SUFFIXES[suffix]

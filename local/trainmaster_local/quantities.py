"""Represents quantities of resources (`500m`, `1.5Gi`, `2e3`) exactly, and in Kubernetes' canonical form.

The grammar and the canonical form are those of k8s.io/apimachinery `pkg/api/resource/quantity.go`: no fraction digits,
the largest lossless suffix, the family of suffixes (binary, decimal, exponent) of the input. Digits beyond a billionth
are rounded up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil

FORMAT_PROBLEM = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"

SUFFIX_PROBLEM = "unable to parse quantity's suffix"

_PARTS = re.compile(r"[+-]?\d*(\.\d*)?[eEinumkKMGTP]*[-+]?\d*")
_PATTERN = re.compile(r"([+-]?)(\d*\.?\d*)(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]?|[eE][+-]?\d+)")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIX = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


class QuantityError(ValueError):
    """The text isn't a quantity. The message is Kubernetes'."""


@dataclass(frozen=True)
class Quantity:
    """A quantity is an exact amount with its family of suffixes: `decimal`, `binary` or `exponent`."""

    value: Fraction
    family: str = "decimal"

    def __str__(self) -> str:
        if self.value == 0:
            return "0"
        if self.family == "binary" and abs(self.value) >= 1024 and self.value.denominator == 1:
            amount, power = int(self.value), 0
            while amount % 1024 == 0 and power < len(_BINARY) - 1:
                amount, power = amount // 1024, power + 1
            return f"{amount}{_BINARY[power]}"
        amount, exponent = int(self.value * 10**9), -9
        while amount % 1000 == 0 and exponent < 18:
            amount, exponent = amount // 1000, exponent + 3
        if self.family == "exponent":
            return f"{amount}e{exponent}" if exponent else str(amount)
        return f"{amount}{_DECIMAL_SUFFIX[exponent]}"

    @property
    def is_integer(self) -> bool:
        return self.value.denominator == 1


@lru_cache(maxsize=4096)
def parse(text: str | int | float) -> Quantity:
    """Parses a quantity from the wire. Raises QuantityError."""
    if isinstance(text, bool):
        raise QuantityError(FORMAT_PROBLEM)
    written = str(text).strip()
    match = _PATTERN.fullmatch(written)
    if not match or not written:
        raise QuantityError(SUFFIX_PROBLEM if written and _PARTS.fullmatch(written) else FORMAT_PROBLEM)
    sign, digits, suffix = match.groups()
    # Kubernetes reads `Gi` as 0.
    value = Fraction(digits.removesuffix(".") or 0)
    family = "decimal"
    if suffix in _BINARY[1:]:
        value *= 1024 ** _BINARY.index(suffix)
        family = "binary"
    elif suffix in _DECIMAL:
        value *= Fraction(10) ** _DECIMAL[suffix]
    else:
        value *= Fraction(10) ** int(suffix[1:])
        family = "exponent"
    nano = ceil(value * 10**9)
    value = Fraction(-nano if sign == "-" else nano, 10**9)
    return Quantity(value, family)


def canonical(text: str | int | float) -> str:
    """Returns the quantity as the API server returns it. Raises QuantityError."""
    return str(parse(text))


def parse_quantity(text: str | int | float | None) -> Fraction:
    """Returns the exact amount of a quantity; an empty one is 0. Raises QuantityError."""
    return parse(text).value if text is not None else Fraction(0)

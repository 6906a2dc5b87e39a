"""Kubernetes' quantity library for CEL has `isQuantity`, `quantity`, and comparisons of quantities.

It follows k8s.io/apiserver's pkg/cel/library/quantity.go and apimachinery's pkg/api/resource/quantity.go. The runtime
doesn't support opaque types, so here a quantity is represented by the bytes of its decimal number. Its `add`, `sub`,
`sign`, `asInteger` and `asApproximateFloat` are missing.
"""

from __future__ import annotations

import re
from decimal import Decimal

from cel_expr_python import cel

_PARTS = re.compile(r"([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:[eE]([-+]?[0-9]{1,9})|([A-Za-z]*))\Z")
_SCALES = {
    **{suffix: Decimal(10) ** (3 * power) for power, suffix in enumerate(("n", "u", "m", "", "k", *"MGTPE"), -3)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}
# Beyond 2^63 - 1 (and below a billionth) Kubernetes' numbers are capped; a larger exponent changes nothing.
_LARGEST_EXPONENT = 40


def _number(text: str) -> Decimal | None:
    parts = _PARTS.match(text)
    if parts is None:
        return None
    digits, exponent, suffix = parts.groups()
    if exponent is not None:
        return Decimal(digits).scaleb(max(-_LARGEST_EXPONENT, min(int(exponent), _LARGEST_EXPONENT)))
    return Decimal(digits) * _SCALES[suffix] if suffix in _SCALES else None


def _is_quantity(text: str) -> bool:
    return _number(text) is not None


def _quantity(text: str) -> bytes:
    number = _number(text)
    if number is None:
        raise ValueError("quantities must match the regular expression")
    return str(number).encode()


def _compare(one: bytes, other: bytes) -> int:
    difference = Decimal(one.decode()) - Decimal(other.decode())
    return (difference > 0) - (difference < 0)


_QUANTITY = cel.Type.BYTES
_TWO = [_QUANTITY, _QUANTITY]

QUANTITIES = [
    cel.FunctionDecl(
        "isQuantity", [cel.Overload("is_quantity", cel.Type.BOOL, [cel.Type.STRING], False, _is_quantity)]
    ),
    cel.FunctionDecl("quantity", [cel.Overload("to_quantity", _QUANTITY, [cel.Type.STRING], False, _quantity)]),
    cel.FunctionDecl("compareTo", [cel.Overload("quantity_compare_to", cel.Type.INT, _TWO, True, _compare)]),
    cel.FunctionDecl(
        "isGreaterThan",
        [
            cel.Overload(
                "quantity_is_greater_than", cel.Type.BOOL, _TWO, True, lambda one, other: _compare(one, other) > 0
            )
        ],
    ),
    cel.FunctionDecl(
        "isLessThan",
        [cel.Overload("quantity_is_less_than", cel.Type.BOOL, _TWO, True, lambda one, other: _compare(one, other) < 0)],
    ),
]

"""YAML's plain scalars mean what they mean to kubectl, whose library (go-yaml v2) reads YAML 1.1 in its own way.

yes, on and y are true, 010 is 8 and 1_000 is 1000, as in YAML 1.1; 1e-4 is a number, and 1:30 and a date are text, as
in YAML 1.2. What is a whole number is sent as one, however it was written (1.0, 1e3): JSON makes no difference.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from typing import Any

_CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
}
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_INTEGER = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[oO]?([0-7]+)|0[bB]([01]+)|(0|[1-9][0-9]*))")
_BASES = (16, 8, 2, 10)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_MOST_UNSIGNED = 2**64
_MOST_DIGITS = len(str(_MOST_UNSIGNED))
_MOST_SIGNED = 2**63
_STANDARD = "tag:yaml.org,2002:"
_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
}


def plain_scalar(text: str) -> Any:
    """Returns the value of a scalar without quotes and without a tag."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", "").lower())
    digits = text.replace("_", "") if text[:1] in "+-0123456789" else text
    whole = _INTEGER.fullmatch(digits)
    # A longer one is no whole number of 64 bits, and Python refuses to read more than 4,300 digits.
    if whole is not None and len(whole[5] or "") <= _MOST_DIGITS:
        sign, *written = whole.groups()
        number = next(int(each, base) for each, base in zip(written, _BASES, strict=True) if each is not None)
        if number < (_MOST_SIGNED if sign else _MOST_UNSIGNED):
            return -number if sign == "-" else number
    if _FLOAT.fullmatch(digits):
        value = float(digits)
        # What no float can hold is text.
        return text if math.isinf(value) else _as_sent(value)
    return text


def tagged_scalar(tag: str, text: str) -> Any:
    """Returns the value of a scalar with a tag. Raises ValueError for a text that isn't of that type."""
    name = tag.removeprefix(_STANDARD)
    if name == "binary":
        try:
            return base64.b64decode("".join(text.split()), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise ValueError("isn't base64 of a text") from error
    if name not in _TYPES or name == tag:
        return text
    value = plain_scalar(text)
    if not isinstance(value, _TYPES[name]):
        raise ValueError(f"isn't of the type !!{name}")
    return value


def key_text(value: Any) -> str | None:
    """Returns a mapping's key as JSON has it, a text; None for what can be no key."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    return value if isinstance(value, str) else None


def _as_sent(value: float) -> int | float:
    return int(value) if value.is_integer() and abs(value) < _MOST_SIGNED else value

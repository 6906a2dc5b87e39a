"""A spec has limits of size, which are checked before anything in it is read.

One job's size must cost only itself, so a spec beyond these limits is refused by reading no more of it than they
allow. The API server counts neither bytes nor depth of what it has no schema for, so that it accepts such a job, and
the operator refuses it with the sentences of here, as `trainmaster validate` does. A size is that of compact JSON in
UTF-8; a legal job that has one of each is about as large as what etcd takes (1.5 MiB, with its managed fields).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainmaster_operator.api.json_codec import compact, least_bytes
from trainmaster_operator.api.problems import Problem
from trainmaster_operator.api.values import HALF_A_CHARACTER, show

# Items of any list of podTemplate and training; lists of the spec's own fields have limits of their own.
MAX_ITEMS = 1_000
# Lists and mappings in each other, each field of the spec by itself.
MAX_NESTING = 64
# What a sentence each is worth, of a pod that is wrong everywhere.
MAX_POD_PROBLEMS = 20
KIB = 1024
# Bytes. What is mounted into pods goes into a ConfigMap, which holds 1 MiB, as YAML.
MAX_BYTES: Mapping[str, int] = {"podTemplate": 256 * KIB, "training": 512 * KIB}
# Bytes of all other fields together: 128 KiB is also what Linux takes for one argument (MAX_ARG_STRLEN).
MAX_OTHER_BYTES = 128 * KIB

_SURROGATE = re.compile("[\ud800-\udfff]")
# A character takes at most this many bytes of JSON (a control character: \u0000).
_BYTES_A_CHARACTER = 6


def check_size(spec: Mapping[str, Any]) -> Problem | None:
    """Returns the first field of a raw spec that is found to be too large, if any is."""
    others = {name: value for name, value in spec.items() if name not in MAX_BYTES}
    parts = [("spec", others, MAX_OTHER_BYTES)]
    parts += [(f"spec.{name}", spec[name], most) for name, most in MAX_BYTES.items() if name in spec]
    return next((problem for path, value, most in parts if (problem := _check(path, value, most)) is not None), None)


def _check(path: str, value: Any, most: int) -> Problem | None:
    # The outermost value has no comma.
    size = -1
    # Each with its depth and its place; the place is written out only for a sentence.
    waiting: list[tuple[Any, int, tuple[Any, ...]]] = [(value, 0 if path == "spec" else 1, ())]
    while waiting:
        one, depth, place = waiting.pop()
        size += least_bytes(one)
        if size > most:
            return _too_large(path, value, most)
        if isinstance(one, str):
            if _has_half_a_character(one):
                return Problem(_written(path, place), None, HALF_A_CHARACTER)
            continue
        if not isinstance(one, dict | list):
            continue
        if depth > MAX_NESTING:
            field = path if path != "spec" else _written(path, place, 1)
            message = f"has more than {MAX_NESTING} lists and mappings in each other; use at most {MAX_NESTING}"
            return Problem(field, None, message)
        if isinstance(one, dict):
            if any(isinstance(name, str) and _has_half_a_character(name) for name in one):
                return Problem(_written(path, place), None, HALF_A_CHARACTER)
            waiting.extend((child, depth + 1, (place, name)) for name, child in one.items())
            continue
        if path != "spec" and len(one) > MAX_ITEMS:
            message = f"has {len(one)} items; use at most {MAX_ITEMS}"
            return Problem(_written(path, place), None, message)
        waiting.extend((child, depth + 1, (place, position)) for position, child in enumerate(one))
    if size * _BYTES_A_CHARACTER <= most:
        return None
    try:
        exact = len(compact(value))
    except (TypeError, ValueError) as error:
        return Problem(path, None, f"can't be written as JSON ({error}); use text, numbers, lists and mappings")
    return _too_large(path, value, most) if exact > most else None


def _has_half_a_character(text: str) -> bool:
    # Python knows of ASCII text that it is, without reading it.
    return not text.isascii() and _SURROGATE.search(text) is not None


def _too_large(path: str, value: Any, most: int) -> Problem:
    if path == "spec":
        return Problem(path, None, f"has more than {most} bytes beside podTemplate and training; use at most {most}")
    return Problem(path, None, f"has more than {most} bytes as JSON; use at most {most}, and mount what is larger")


def _written(path: str, place: tuple[Any, ...], most: int = MAX_NESTING + 1) -> str:
    parts: list[Any] = []
    while place:
        place, part = place
        parts.append(part)
    names = (f"[{part}]" if isinstance(part, int) else f".{_short(part)}" for part in reversed(parts[-most:]))
    return path + "".join(names)


def _short(name: Any) -> str:
    return name if isinstance(name, str) and len(name) <= 80 else show(name)

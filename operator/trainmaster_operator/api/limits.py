"""Size limits of a spec, checked before anything in it is parsed.

A job's size must not affect other jobs, so the check stops reading once a spec exceeds a limit. In fields without a
schema, the API server limits neither bytes nor depth, so it accepts a job that is too large. The operator then refuses
the job with the messages of `trainmaster validate`. Sizes are measured in compact JSON in UTF-8. A job at all limits is
about as large as etcd allows (1.5 MiB, including managed fields).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainmaster_operator.api.json_codec import compact, least_bytes
from trainmaster_operator.api.problems import Problem
from trainmaster_operator.api.values import HALF_A_CHARACTER, show

# Maximum items of any list in podTemplate and training. Lists of the spec's own fields have their own limits.
MAX_ITEMS = 1_000
# Maximum depth of lists and mappings, for each field of the spec.
MAX_NESTING = 64
# Maximum number of problems reported for one pod.
MAX_POD_PROBLEMS = 20
KIB = 1024
# Maximum bytes of each field. Pods mount `training` as YAML from a ConfigMap, which can hold 1 MiB.
MAX_BYTES: Mapping[str, int] = {"podTemplate": 256 * KIB, "training": 512 * KIB}
# Maximum bytes of all other fields together. 128 KiB is also Linux's limit for one argument (MAX_ARG_STRLEN).
MAX_OTHER_BYTES = 128 * KIB

_SURROGATE = re.compile("[\ud800-\udfff]")
# Maximum bytes of a character in JSON. A control character is written as \u0000.
_BYTES_A_CHARACTER = 6


def check_size(spec: Mapping[str, Any]) -> Problem | None:
    """Returns a problem for the first field of a raw spec that is too large, or None."""
    others = {name: value for name, value in spec.items() if name not in MAX_BYTES}
    parts = [("spec", others, MAX_OTHER_BYTES)]
    parts += [(f"spec.{name}", spec[name], most) for name, most in MAX_BYTES.items() if name in spec]
    return next((problem for path, value, most in parts if (problem := _check(path, value, most)) is not None), None)


def _check(path: str, value: Any, most: int) -> Problem | None:
    # The size of each value includes a comma, which the outermost value doesn't need.
    size = -1
    # Values with their depth and place. The place is formatted only for a message.
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
    # isascii() doesn't read the text.
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
    for part in reversed(parts[-most:]):
        is_short = isinstance(part, str) and len(part) <= 80
        path += f"[{part}]" if isinstance(part, int) else f".{part if is_short else show(part)}"
    return path

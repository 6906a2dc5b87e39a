"""A job's manifest is made in a thread, of a spec that isn't too large or too deep for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from trainmaster.dashboard.streams import Refused
from trainmaster_operator.api.limits import MAX_NESTING
from trainmaster_operator.api.printable import yaml_escapes
from trainmaster_operator.wire.values import mapping

# Values of a manifest: YAML takes some hundred bytes and 50 microseconds for each.
MOST_VALUES = 30_000
_HINT = "`kubectl get distributedtrainingjob {name} -o yaml` shows it."


def manifest_of(raw: Mapping[str, Any], name: str) -> str:
    """Returns a job as YAML. Raises Refused for one that is too large or too deep."""
    shown = {key: value for key, value in raw.items() if key != "status"}
    shown["metadata"] = {key: value for key, value in mapping(raw.get("metadata")).items() if key != "managedFields"}
    _check(shown, name)
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return yaml_escapes(yaml.dump(shown, Dumper=dumper, sort_keys=False, allow_unicode=True, width=100))


def too_large(name: str) -> Refused:
    """Returns what says that a manifest is too large for the page."""
    return Refused(413, f"The manifest of {name} is too large for this page. {_HINT.format(name=name)}")


def _check(value: Any, name: str) -> None:
    # Nothing calls itself here, so that no depth breaks it.
    waiting, count = [(value, 0)], 0
    while waiting:
        one, depth = waiting.pop()
        count += 1
        if count > MOST_VALUES:
            raise too_large(name)
        if depth > MAX_NESTING + 2:
            raise Refused(
                422,
                f"The manifest of {name} has more than {MAX_NESTING} levels, too many for this page. "
                f"{_HINT.format(name=name)}",
            )
        if isinstance(one, Mapping):
            waiting.extend((item, depth + 1) for item in one.values())
        elif isinstance(one, list):
            waiting.extend((item, depth + 1) for item in one)

"""Objects that can't be read, though every reader of what they hold is total, are logged and counted.

Whatever the API server shows goes into the store one object at a time, and one that the store can't take costs nobody
else anything: it is logged and counted, once for each of its versions, and a job's own status reports it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from trainmaster_operator.api.printable import one_line
from trainmaster_operator.api.v1alpha1 import Condition, JobStatus
from trainmaster_operator.controller.apiserver.cluster import Resource
from trainmaster_operator.wire.values import mapping, mappings, shown, text, whole

logger = logging.getLogger(__name__)

# Versions of objects that were reported: a sweep meets the same ones again and again.
REMEMBERED = 4_096


class Unreadable:
    """Logs and counts objects that can't be read: `count` is called with the kind of each version of one."""

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count = count
        self._reported: OrderedDict[tuple[str, str, str], None] = OrderedDict()

    def report(
        self,
        resource: Resource,
        raw: object,
        problem: str,
        error: Exception | None = None,
        *,
        of: str = "resourceVersion",
    ) -> None:
        """Log and count a version once. `error`: what no reader has foreseen, so that its traceback is of use.

        `of`: the field of the metadata by which its versions differ; of a spec the generation.
        """
        metadata = mapping(mapping(raw).get("metadata"))
        version = (
            resource.kind,
            text(metadata.get("uid"), 64),
            text(metadata.get(of), 64) or str(whole(metadata.get(of))),
        )
        if version not in self._reported:
            self._reported[version] = None
            while len(self._reported) > REMEMBERED:
                self._reported.popitem(last=False)
            self._count(resource.kind)
            place = one_line(f"{text(metadata.get('namespace'), 64)}/{text(metadata.get('name'), 253)}")
            logger.error("%s %s can't be used: %s", resource.kind, place, one_line(problem[:1_000]), exc_info=error)


def readable_part(raw: Mapping[str, Any]) -> JobStatus:
    """Returns what can be read of a status that can't be read as a whole: its conditions, to add one."""
    return JobStatus(conditions=[found for item in mappings(raw.get("conditions")) if (found := _condition(item))])


def first_problem(error: ValueError) -> str:
    """Returns what is wrong, in short; where pydantic found it, the field, its value and what it should be."""
    if not isinstance(error, ValidationError):
        return str(error)
    found = error.errors(include_url=False)[0]
    return f"{'.'.join(str(part) for part in found['loc']) or 'status'}: {found['msg']}, not {shown(found['input'])}"


def unforeseen(what: str, error: Exception) -> str:
    """Returns what is said of an object that no reader has foreseen."""
    return f"the {what} can't be read ({one_line(repr(error)[:300])})"


def _condition(raw: Mapping[str, Any]) -> Condition | None:
    try:
        return Condition.model_validate(raw)
    except ValidationError:
        return None

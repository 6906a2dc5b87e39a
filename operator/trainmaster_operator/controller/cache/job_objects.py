"""Converts a job's object to the job that `decide` receives: either its spec and status, or the problem.

An unreadable job stays in the store with its readable parts, so that its status can report why the operator leaves it
alone. A large spec is read separately (`large_jobs`); until then the job keeps its old state.

The functions that read objects accept any content. If one of them fails nevertheless, only that object is affected:
each version of the object is logged and counted once. If the object is a job, its status reports the problem too.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from trainmaster_operator.api.evidence import clean
from trainmaster_operator.api.json_codec import is_larger
from trainmaster_operator.api.printable import one_line
from trainmaster_operator.api.trimming import LEFT_OUT
from trainmaster_operator.api.v1alpha1 import Condition, JobStatus
from trainmaster_operator.controller.apiserver.cluster import JOBS, Resource
from trainmaster_operator.controller.apiserver.kept import LARGE_SPEC_BYTES, MAX_STATUS_BYTES
from trainmaster_operator.controller.cache.records import JobKey, ReadSpec, Record, SpecVersion, read_spec, spec_version
from trainmaster_operator.controller.cache.views import annotation, parse_time
from trainmaster_operator.reconciling.observed.snapshot import Job
from trainmaster_operator.wire.limits import MAX_REQUEST
from trainmaster_operator.wire.names import RESTART_ANNOTATION, STACKS_ANNOTATION
from trainmaster_operator.wire.values import mapping, mappings, shown, text, whole

# The metadata fields that are needed while a job's spec is read separately.
_KEPT = ("namespace", "name", "uid", "generation", "creationTimestamp", "deletionTimestamp")
logger = logging.getLogger(__name__)
# Number of reported versions to remember, because every sweep finds the same versions again.
REMEMBERED = 4_096


@dataclass(eq=False)
class JobObjects:
    """Sets the job of a record, from the objects that the store receives."""

    _changed: Callable[[JobKey], None]
    _unreadable: Unreadable
    _read_large: Callable[[JobKey], None] | None

    def set_job(self, key: JobKey, record: Record, raw: Mapping[str, Any]) -> None:
        """Set a record's job from a newer object."""
        metadata, known = mapping(raw.get("metadata")), record.job
        of = spec_version(metadata)
        left_out = raw.get(LEFT_OUT) or ()
        large = "spec" in left_out or is_larger(raw.get("spec"), LARGE_SPEC_BYTES)
        if large and self._read_large is not None and record.parsed != of:
            kept = {field: metadata.get(field) for field in _KEPT}
            kept["annotations"] = {name: annotation(metadata, name) for name in (STACKS_ANNOTATION, RESTART_ANNOTATION)}
            record.without_spec = {"metadata": kept, "status": raw.get("status"), LEFT_OUT: left_out}
            self._read_large(key)
            if known is None:
                return
            # Until the new spec is read, the job keeps its old spec but gets the newest status.
            of = SpecVersion(of.uid, known.generation)
        else:
            if record.parsed != of:
                known = None
            record.without_spec, record.parsed = None, of
        read = read_spec(raw, key.name) if known is None else ReadSpec(known.spec, known.invalid)
        self._set(key, record, raw, of, read, large=large)

    def set_spec(self, key: JobKey, record: Record, of: SpecVersion, read: ReadSpec) -> None:
        """Set a large job's separately read spec, if that spec is still the newest."""
        raw = record.without_spec
        if raw is None or spec_version(raw["metadata"]) != of:
            return
        record.without_spec = None
        record.parsed = of
        self._set(key, record, raw, of, read, large=True)

    def _set(
        self, key: JobKey, record: Record, raw: Mapping[str, Any], of: SpecVersion, read: ReadSpec, *, large: bool
    ) -> None:
        metadata, known = raw["metadata"], record.job
        record.raw_status = raw.get("status") or {}
        try:
            if "status" in (raw.get(LEFT_OUT) or ()) or is_larger(record.raw_status, MAX_STATUS_BYTES):
                raise ValueError(f"it has more than {MAX_STATUS_BYTES} bytes")
            status = JobStatus.model_validate(record.raw_status)
        except ValueError as error:
            # Another client, or a much newer operator, wrote the status. Don't touch a job whose past isn't known.
            problem = f"the status can't be read ({first_problem(error)})"
            self._unreadable.report(JOBS, raw, problem)
            self.set_unreadable(key, record, raw, problem)
            return
        if read.invalid is not None:
            self._unreadable.report(JOBS, raw, read.invalid.message, of="generation")
        record.job = _job(
            key,
            metadata,
            generation=of.generation,
            spec=read.spec,
            status=status,
            invalid=read.invalid,
            large=large,
            restart_request=clean(annotation(metadata, RESTART_ANNOTATION), MAX_REQUEST) or None,
            stacks_request=clean(annotation(metadata, STACKS_ANNOTATION), MAX_REQUEST),
        )
        if known is None or known.uid != of.uid:
            # Pods may be known before their job.
            record.merge_all_termination_reports()
        record.drop_reports({attempt for attempt in record.reported_attempts if record.is_past(attempt)})
        self._changed(key)

    def set_unreadable(self, key: JobKey, record: Record, raw: Mapping[str, Any], problem: str) -> None:
        """Set an unreadable job, which the operator leaves alone; the job's status reports the reason."""
        metadata, conditions = mapping(raw.get("metadata")), mapping(raw.get("status")).get("conditions")
        # The operator writes only the conditions of such a status, which may be large.
        record.raw_status = {} if is_larger(conditions, MAX_STATUS_BYTES) else {"conditions": conditions or []}
        record.parsed = record.without_spec = None
        record.job = _job(
            key,
            metadata,
            generation=spec_version(metadata).generation,
            spec=None,
            status=_readable_part(record.raw_status),
            unreadable=f"{problem}, so nothing is done to the job; correct it, or delete the job and create it again",
        )
        self._changed(key)


class Unreadable:
    """Logs and counts unreadable objects. `count` is called with the object's kind, once for each version."""

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
        """Log and count a version once. `error` is an unforeseen error, whose traceback is logged.

        `of` is the metadata field that identifies a version; for a spec, it is `generation`.
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


def _job(key: JobKey, metadata: Mapping[str, Any], **fields: Any) -> Job:
    return Job(
        namespace=key.namespace,
        name=key.name,
        uid=text(metadata.get("uid"), 64),
        created_at=parse_time(metadata.get("creationTimestamp")) or 0.0,
        deleting=metadata.get("deletionTimestamp") is not None,
        **fields,
    )


def _readable_part(raw: Mapping[str, Any]) -> JobStatus:
    """Returns the readable part of an unreadable status: the conditions, so that a condition can be added."""
    conditions: list[Condition] = []
    for item in mappings(raw.get("conditions")):
        with suppress(ValidationError):
            conditions.append(Condition.model_validate(item))
    return JobStatus(conditions=conditions)


def first_problem(error: ValueError) -> str:
    """Returns a short description of the problem; for pydantic's errors: the field, its value, the expected type."""
    if not isinstance(error, ValidationError):
        return str(error)
    found = error.errors(include_url=False)[0]
    return f"{'.'.join(str(part) for part in found['loc']) or 'status'}: {found['msg']}, not {shown(found['input'])}"


def unforeseen(what: str, error: Exception) -> str:
    """Returns the message about an object that no reader could handle."""
    return f"the {what} can't be read ({one_line(repr(error)[:300])})"

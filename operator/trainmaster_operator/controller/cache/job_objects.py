"""A job as the API server has it becomes the job that `decide` sees: with its spec and status, or what is wrong.

A job that can't be read stays there with what is known of it, so that its status can say why nothing is done to it. A
large spec is read apart (`large_jobs`), and until then the job stands as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainmaster_operator.api.evidence import clean
from trainmaster_operator.api.json_codec import is_larger
from trainmaster_operator.api.trimming import LEFT_OUT
from trainmaster_operator.api.v1alpha1 import JobStatus
from trainmaster_operator.controller.apiserver.cluster import JOBS
from trainmaster_operator.controller.apiserver.kept import LARGE_SPEC_BYTES, MAX_STATUS_BYTES
from trainmaster_operator.controller.cache.records import JobKey, ReadSpec, Record, SpecVersion, spec_version
from trainmaster_operator.controller.cache.unreadable import Unreadable, first_problem, readable_part
from trainmaster_operator.controller.cache.views import annotation, parse_time
from trainmaster_operator.reconciling.observed.snapshot import Job
from trainmaster_operator.wire.limits import MAX_REQUEST
from trainmaster_operator.wire.names import RESTART_ANNOTATION, STACKS_ANNOTATION
from trainmaster_operator.wire.values import mapping, text, whole

# The metadata of a job whose spec is read apart that is needed meanwhile.
_KEPT = ("namespace", "name", "uid", "generation", "creationTimestamp", "deletionTimestamp")
# The annotations by which people ask something of a job.
_ASKING = (STACKS_ANNOTATION, RESTART_ANNOTATION)


class JobObjects:
    """JobObjects sets records' jobs; the arguments are the store's."""

    def __init__(
        self, changed: Callable[[JobKey], None], unreadable: Unreadable, read_large: Callable[[JobKey], None] | None
    ) -> None:
        self._changed, self._unreadable, self._read_large = changed, unreadable, read_large

    def set_job(self, key: JobKey, record: Record, raw: Mapping[str, Any]) -> None:
        """Set a record's job by a newer object."""
        metadata = mapping(raw.get("metadata"))
        of = spec_version(metadata)
        left_out = raw.get(LEFT_OUT) or ()
        large = "spec" in left_out or is_larger(raw.get("spec"), LARGE_SPEC_BYTES)
        if large and self._read_large is not None and record.parsed != of:
            kept = {field: metadata.get(field) for field in _KEPT}
            kept["annotations"] = {name: annotation(metadata, name) for name in _ASKING}
            record.without_spec = {"metadata": kept, "status": raw.get("status"), LEFT_OUT: left_out}
            self._read_large(key)
            if record.job is None:
                return
            # Until it is read, the job stands with its spec as it was and the newest status.
            of = SpecVersion(of.uid, record.job.generation)
            read = ReadSpec(record.job.spec, record.job.invalid)
        else:
            record.without_spec = None
            read = record.parse(raw, key.name, of)
        self._set(key, record, raw, of, read, large=large)

    def set_spec(self, key: JobKey, record: Record, of: SpecVersion, read: ReadSpec) -> None:
        """Set a large job's spec that was read apart, where it is still the newest."""
        raw = record.without_spec
        if raw is None or spec_version(raw["metadata"]) != of:
            return
        record.without_spec = None
        record.parsed = of
        self._set(key, record, raw, of, read, large=True)

    def _set(
        self,
        key: JobKey,
        record: Record,
        raw: Mapping[str, Any],
        of: SpecVersion,
        read: ReadSpec,
        *,
        large: bool,
    ) -> None:
        metadata, known = raw["metadata"], record.job
        record.raw_status = raw.get("status") or {}
        try:
            if "status" in (raw.get(LEFT_OUT) or ()) or is_larger(record.raw_status, MAX_STATUS_BYTES):
                raise ValueError(f"it has more than {MAX_STATUS_BYTES} bytes")
            status = JobStatus.model_validate(record.raw_status)
        except ValueError as error:
            # Somebody's edit, or a much newer operator's: nothing may be done to a job whose past isn't known.
            problem = f"the status can't be read ({first_problem(error)})"
            self._unreadable.report(JOBS, raw, problem)
            self.set_unreadable(key, record, raw, problem)
            return
        if read.invalid is not None:
            self._unreadable.report(JOBS, raw, read.invalid.message, of="generation")
        record.job = Job(
            namespace=key.namespace,
            name=key.name,
            uid=of.uid,
            generation=of.generation,
            created_at=parse_time(metadata.get("creationTimestamp")) or 0.0,
            spec=read.spec,
            status=status,
            deleting=metadata.get("deletionTimestamp") is not None,
            invalid=read.invalid,
            large=large,
            restart_request=clean(annotation(metadata, RESTART_ANNOTATION), MAX_REQUEST) or None,
            stacks_request=clean(annotation(metadata, STACKS_ANNOTATION), MAX_REQUEST),
        )
        if known is None or known.uid != of.uid:
            # Pods may be known before their job.
            record.merge_all_termination_reports()
        record.drop_old_reports()
        self._changed(key)

    def set_unreadable(self, key: JobKey, record: Record, raw: Mapping[str, Any], problem: str) -> None:
        """Set a job to which nothing is done, and whose status says why."""
        metadata, conditions = mapping(raw.get("metadata")), mapping(raw.get("status")).get("conditions")
        # Of such a status nothing else is ever written, and it may be large.
        record.raw_status = {} if is_larger(conditions, MAX_STATUS_BYTES) else {"conditions": conditions or []}
        record.parsed = record.without_spec = None
        record.job = Job(
            namespace=key.namespace,
            name=key.name,
            uid=text(metadata.get("uid"), 64),
            generation=whole(metadata.get("generation")) or 1,
            created_at=parse_time(metadata.get("creationTimestamp")) or 0.0,
            spec=None,
            status=readable_part(record.raw_status),
            deleting=metadata.get("deletionTimestamp") is not None,
            unreadable=f"{problem}, so nothing is done to the job; correct it, or delete the job and create it again",
        )
        self._changed(key)

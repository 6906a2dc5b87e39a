"""Deletes objects, with preconditions, propagation finalizers and grace periods (the generic registry's `store.go`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainmaster_local.apiserver.apimachinery import objectmeta
from trainmaster_local.apiserver.apimachinery.errors import ApiError, FieldError, bad_request, conflict, success
from trainmaster_local.apiserver.plans import Plan
from trainmaster_local.apiserver.resources import SYSTEM, Object, User
from trainmaster_local.apiserver.storage.store import Revision, Storage
from trainmaster_local.apiserver.writing.admission_policies import Write
from trainmaster_local.apiserver.writing.writer import Writer, copied

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
_POLICIES = ("Orphan", "Background", "Foreground")


@dataclass(frozen=True)
class DeleteOptions:
    """`grace_period` is in seconds; None uses the type's. An empty `propagation` uses the type's (Background)."""

    grace_period: int | None = None
    propagation: str = ""
    uid: str = ""
    version: str = ""
    dry_run: bool = False
    user: User = SYSTEM

    @staticmethod
    def parse(body: Any, query: dict[str, str], user: User = SYSTEM) -> DeleteOptions:
        """Parses a DeleteOptions body or, without one, the query. Raises ApiError for an invalid one."""
        values: dict[str, Any] = dict(body) if isinstance(body, dict) and body else dict(query)
        if "orphanDependents" in values and "propagationPolicy" not in values:
            orphan = str(values["orphanDependents"]).lower() == "true"
            values["propagationPolicy"] = "Orphan" if orphan else "Background"
        policy = values.get("propagationPolicy") or ""
        if policy and policy not in _POLICIES:
            error = FieldError.not_supported("propagationPolicy", policy, ["Foreground", "Background", "Orphan", "nil"])
            details = {"group": "meta.k8s.io", "kind": "DeleteOptions", "causes": [error.cause()]}
            raise ApiError(422, "Invalid", f'DeleteOptions.meta.k8s.io "" is invalid: {error}', details=details)
        grace = values.get("gracePeriodSeconds")
        if grace is not None:
            try:
                grace = int(grace)
            except ValueError as error:
                raise bad_request(f"gracePeriodSeconds: Invalid value: {grace!r}: must be an integer") from error
        preconditions = values.get("preconditions") or {}
        dry_run = values.get("dryRun") or ()
        return DeleteOptions(
            grace,
            policy,
            preconditions.get("uid") or "",
            preconditions.get("resourceVersion") or "",
            "All" in ([dry_run] if isinstance(dry_run, str) else dry_run),
            user,
        )


class Deleter:
    """The deleter deletes from the storage for `Api`."""

    def __init__(self, storage: Storage, writer: Writer, clock: Callable[[], float]) -> None:
        self._storage = storage
        self._writer = writer
        self._clock = clock

    def delete(self, plan: Plan, found: Revision, options: DeleteOptions) -> Object:
        """Deletes an object, or marks it as being deleted, and returns the API's answer: the object or a Status."""
        type_ = plan.type
        metadata = found.object["metadata"]
        self._check(plan, found, options)
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        self._writer.policies.check(
            Write(type_, "DELETE", None, found.object, namespace, name, options.user, dry_run=options.dry_run)
        )
        grace = type_.grace_period(found.object, options.grace_period) if type_.grace_period is not None else 0
        if metadata.get("deletionTimestamp"):
            return self._delete_again(plan, found, grace, options)
        finalizers = _with_policy(metadata.get("finalizers") or [], options.propagation)
        held = type_.holds_deletion is not None and type_.holds_deletion(found.object)
        if not finalizers and not grace and not held:
            return self._remove(plan, found, options)
        obj = copied(found.object)
        self._set_deleting(plan, obj, finalizers, grace)
        if options.dry_run:
            return obj
        return self._storage.put(plan.resource, metadata.get("namespace", ""), metadata["name"], obj).object

    def _check(self, plan: Plan, found: Revision, options: DeleteOptions) -> None:
        type_ = plan.type
        metadata = found.object["metadata"]
        again = "The object might have been deleted and then recreated"
        if options.uid and options.uid != metadata["uid"]:
            problem = (
                f"the UID in the precondition ({options.uid}) does not match the UID in record "
                f"({metadata['uid']}). {again}"
            )
            raise conflict(type_.group, type_.kind, metadata["name"], problem)
        if options.version and options.version != metadata["resourceVersion"]:
            problem = (
                f"the ResourceVersion in the precondition ({options.version}) does not match the ResourceVersion in "
                f"record ({metadata['resourceVersion']}). The object might have been modified"
            )
            raise conflict(type_.group, type_.kind, metadata["name"], problem)

    def _set_deleting(self, plan: Plan, obj: Object, finalizers: list[str], grace: int) -> None:
        metadata = obj["metadata"]
        metadata["deletionTimestamp"] = objectmeta.rfc3339(self._clock() + grace)
        if finalizers:
            metadata["finalizers"] = finalizers
        else:
            metadata.pop("finalizers", None)
        if plan.type.begin_deletion is not None:
            plan.type.begin_deletion(obj)
            return
        metadata["deletionGracePeriodSeconds"] = grace
        if metadata.get("generation"):
            metadata["generation"] += 1

    def _delete_again(self, plan: Plan, found: Revision, grace: int, options: DeleteOptions) -> Object:
        """Handles a second deletion.

        It can only shorten the grace period, or change whether the owner or its dependents go first.
        """
        metadata = found.object["metadata"]
        namespace = metadata.get("namespace", "")
        finalizers = _with_policy(metadata.get("finalizers") or [], options.propagation)
        remaining = metadata.get("deletionGracePeriodSeconds") or 0
        if not finalizers and not grace and self._writer.can_go(plan, _without_grace(found.object)):
            return self._remove(plan, found, options)
        shorter = grace < remaining
        if not shorter and finalizers == (metadata.get("finalizers") or []):
            return found.object
        obj = copied(found.object)
        if shorter:
            obj["metadata"]["deletionGracePeriodSeconds"] = grace
            obj["metadata"]["deletionTimestamp"] = objectmeta.rfc3339(self._clock() + grace)
        if finalizers:
            obj["metadata"]["finalizers"] = finalizers
        if options.dry_run:
            return obj
        return self._storage.put(plan.resource, namespace, metadata["name"], obj).object

    def _without_time_left(self, plan: Plan, obj: Object) -> Object:
        """Returns a graceful type's last state, which watchers see as MODIFIED before the deletion (`BeforeDelete`)."""
        last = copied(obj)
        if last["metadata"].get("deletionTimestamp"):
            last["metadata"]["deletionTimestamp"] = objectmeta.rfc3339(self._clock())
            last["metadata"]["deletionGracePeriodSeconds"] = 0
        else:
            self._set_deleting(plan, last, last["metadata"].get("finalizers") or [], 0)
        return last

    def _remove(self, plan: Plan, found: Revision, options: DeleteOptions) -> Object:
        type_ = plan.type
        metadata = found.object["metadata"]
        last = found.object
        if not options.dry_run:
            namespace, name = metadata.get("namespace", ""), metadata["name"]
            if type_.grace_period is not None:
                last = self._storage.put(plan.resource, namespace, name, self._without_time_left(plan, last)).object
            last = self._storage.remove(plan.resource, namespace, name, last).object
        if type_.answers_deleted_object:
            return last
        return success(type_.group, type_.plural, metadata["name"], metadata["uid"])


def _without_grace(obj: Object) -> Object:
    metadata = {key: value for key, value in obj["metadata"].items() if key != "deletionGracePeriodSeconds"}
    return {**obj, "metadata": metadata}


def _with_policy(finalizers: list[str], propagation: str) -> list[str]:
    """Returns the finalizers that show the policy to the garbage collector. Without a policy, existing ones stay."""
    if not propagation:
        return finalizers
    kept = [finalizer for finalizer in finalizers if finalizer not in (ORPHAN, FOREGROUND)]
    if propagation == "Orphan":
        return [*kept, ORPHAN]
    if propagation == "Foreground":
        return [*kept, FOREGROUND]
    return kept

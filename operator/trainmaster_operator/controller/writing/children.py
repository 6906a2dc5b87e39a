"""A job's children are first written by a create, and later by server-side apply.

- **Create.** An unknown child is written by a create, so another owner's object is never overwritten.
- **Apply.** An apply contains the uid and the resourceVersion that were decided on, so a deposed leader's late write
  fails. After a failure, the object is read. If only the object's status has changed, the apply is repeated. Otherwise
  the job is decided on again.
- **Ownership of fields.** An apply removes fields that the manager's last *apply* contained and this one doesn't. The
  fields of a create belong to another entry of `metadata.managedFields` and would never be removed (for example, the
  node selector of an earlier Kueue flavor). So before the first apply, that entry is declared to be an apply, as
  client-go does for kubectl (`util/csaupgrade`). This costs each child one more write, except a StatefulSet that is
  only scaled to zero.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from trainmaster_operator.controller.apiserver.cluster import (
    CHILDREN,
    GANGS,
    STATEFUL_SETS,
    Cluster,
    RawObject,
    Resource,
    whole,
)
from trainmaster_operator.controller.apiserver.errors import (
    AlreadyExists,
    Conflict,
    Invalid,
    NotFound,
    Refused,
    is_unserved,
)
from trainmaster_operator.controller.cache.records import JobKey, Snapshot, Versioned
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.cache.views import agent_source, is_from_create, owner_uid
from trainmaster_operator.controller.keys import AgentsSecrets
from trainmaster_operator.controller.writing.agent_config_maps import AgentConfigMaps
from trainmaster_operator.controller.writing.status import read_again
from trainmaster_operator.reconciling.observed.snapshot import ChildView
from trainmaster_operator.rendering import GANG_APIS, child_kind
from trainmaster_operator.wire.names import FIELD_MANAGER
from trainmaster_operator.wire.values import mapping, mappings

# Limit on the applies of one decision, because a StatefulSet's status can change as often as its pods do.
APPLY_TRIES = 3


@dataclass(frozen=True)
class ChildWriter:
    """Writes children. Raises ClusterError: `Refused` concerns only the child, any other error the whole pass."""

    cluster: Cluster
    store: Store
    agents_secrets: AgentsSecrets
    agents: AgentConfigMaps

    async def write(self, key: JobKey, snapshot: Snapshot, manifest: Mapping[str, Any]) -> None:
        """Create or apply one child from its manifest, depending on its state in the snapshot."""
        kind, name = child_kind(manifest["apiVersion"], manifest["kind"]), str(manifest["metadata"]["name"])
        resource = CHILDREN[kind]
        found = (child for child in snapshot.observed.children if (child.kind, child.name) == (kind, name))
        known = next(found, None)
        try:
            async with await self._what_pods_need(key.namespace, resource, manifest):
                if known is None:
                    answer = await self._create(key, resource, name, manifest, snapshot.job.uid)
                else:
                    _refuse_foreign(key, resource, name, known.owner_uid, snapshot.job.uid)
                    answer = await self._apply(key, resource, known, manifest)
                self.store.upsert(resource, answer)
        except NotFound as error:
            raise _without_place(error, resource) from error
        except Invalid as error:
            if resource != STATEFUL_SETS:
                raise
            raise _as_written(error) from error

    async def _what_pods_need(
        self, namespace: str, resource: Resource, manifest: Mapping[str, Any]
    ) -> AbstractAsyncContextManager[None]:
        """Provide the objects that a StatefulSet's pods need in the namespace, while the StatefulSet is written."""
        if resource != STATEFUL_SETS or _makes_no_pods(manifest):
            return nullcontext()
        await self.agents_secrets.make(namespace)
        agent = agent_source(manifest["spec"]["template"])
        return nullcontext() if agent is None else self.agents.provided(namespace, agent.name)

    async def _create(
        self, key: JobKey, resource: Resource, name: str, manifest: Mapping[str, Any], job_uid: str
    ) -> RawObject:
        try:
            return await self.cluster.create(resource, key.namespace, manifest)
        except AlreadyExists:
            try:
                live = await self.cluster.get(resource, key.namespace, name)
            except NotFound as error:
                raise _changed(key, resource, name) from error
            self.store.upsert(resource, live)
            _refuse_foreign(key, resource, name, owner_uid(live["metadata"]), job_uid)
            # The decision assumed that no such child exists. An apply could now restart a finished job.
            raise

    async def _apply(self, key: JobKey, resource: Resource, known: ChildView, manifest: Mapping[str, Any]) -> RawObject:
        if known.created and not _makes_no_pods(manifest):
            known = await self._declare_applied(key, resource, known)
        tries = APPLY_TRIES
        while True:
            version = self._decided_on(key, resource, known)
            metadata = {**manifest["metadata"], "uid": version.uid, "resourceVersion": version.resource_version}
            body = {**manifest, "metadata": metadata}
            apply = self.cluster.apply(resource, key.namespace, known.name, body)
            tries -= 1
            try:
                return await self._if_unchanged(key, resource, known, apply)
            except Conflict:
                # A StatefulSet's status changes with every pod. If nothing else has changed, the decision stays valid.
                if not tries:
                    raise

    async def _declare_applied(self, key: JobKey, resource: Resource, known: ChildView) -> ChildView:
        """Convert our create's `managedFields` entry to an apply's; returns the child's new state."""
        live = await read_again(self.cluster, self.store, key, whole(resource), known.name, known.uid)
        if live is None:
            raise _changed(key, resource, known.name)
        version = self._decided_on(key, resource, known)
        metadata = {
            "uid": version.uid,
            "resourceVersion": version.resource_version,
            "managedFields": as_applied(mappings(live["metadata"].get("managedFields"))),
        }
        patch = self.cluster.patch(resource, key.namespace, known.name, {"metadata": metadata})
        self.store.upsert(resource, await self._if_unchanged(key, resource, known, patch))
        return replace(known, created=False)

    async def _if_unchanged(
        self, key: JobKey, resource: Resource, known: ChildView, write: Awaitable[RawObject]
    ) -> RawObject:
        """Await a write. If it fails, read the object, so that the next decision uses the object's current state."""
        try:
            return await write
        except (Conflict, Invalid, NotFound) as error:
            if await read_again(self.cluster, self.store, key, resource, known.name, known.uid) is None:
                # The API server also answers "invalid" if the uid differs, because the uid is an immutable field.
                raise _changed(key, resource, known.name) from error
            raise

    def _decided_on(self, key: JobKey, resource: Resource, known: ChildView) -> Versioned:
        """Returns the child's newest version, if only its status has changed since the job was decided on."""
        view, version = self.store.child(key, resource, known.name) or (None, None)
        if view != known or version is None:
            raise _changed(key, resource, known.name)
        return version


def as_applied(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns `metadata.managedFields` with our creates' and updates' fields moved to the entry of our applies."""
    ours = [dict(entry) for entry in entries if is_from_create(entry) or _is_applied(entry)]
    fields: dict[str, Any] = {}
    for entry in ours:
        fields = _union(fields, mapping(entry.get("fieldsV1")))
    others = [dict(entry) for entry in entries if not (is_from_create(entry) or _is_applied(entry))]
    return [*({**entry, "operation": "Apply", "fieldsV1": fields} for entry in ours[:1]), *others]


def _is_applied(entry: Mapping[str, Any]) -> bool:
    return entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply" and not entry.get("subresource")


def _union(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Merges two sets of fields in `fieldsV1`'s notation: nested objects whose names are fields, keys or values."""
    return {**one, **{name: _union(mapping(one.get(name)), mapping(inner)) for name, inner in other.items()}}


def _makes_no_pods(manifest: Mapping[str, Any]) -> bool:
    return bool(manifest["kind"] == "StatefulSet" and manifest["spec"]["replicas"] == 0)


def _changed(key: JobKey, resource: Resource, name: str) -> Conflict:
    return Conflict(
        f"apply {resource.kind} {key.namespace}/{name}", "the object has changed since it was decided on", status=409
    )


def _refuse_foreign(key: JobKey, resource: Resource, name: str, owner: str | None, job_uid: str) -> None:
    if owner != job_uid:
        raise Refused(
            f"apply {resource.kind} {key.namespace}/{name}",
            f"{resource.child_kind} {name!r} exists and belongs to "
            + ("nobody" if owner is None else f"another owner ({owner})")
            + "; delete it or rename the job",
            reason="NotOurs",
        )


def _as_written(error: Invalid) -> Invalid:
    """Returns a StatefulSet's refusal with the paths of the user's podTemplate."""
    message = error.message.replace("spec.template.spec.", "spec.podTemplate.spec.")
    message = re.sub(r"spec\.template\.(?:metadata\.)?(labels|annotations)", r"spec.podTemplate.metadata.\1", message)
    return Invalid(error.request, message, status=error.status, reason=error.reason)


def _without_place(error: NotFound, resource: Resource) -> Refused:
    """Returns the error for a write that got 404, because the namespace is gone or the type isn't served."""
    product = next((GANG_APIS[name].product for name, gang in GANGS.items() if gang == resource), None)
    if product is None or not is_unserved(error):
        return Refused(error.request, error.message, status=404, reason="NotFound")
    return Refused(
        error.request,
        f"the cluster doesn't serve {resource.plural} of {resource.api_version}; install {product}, or apply the job "
        "again without scheduling.gang",
        status=404,
        reason="NotInstalled",
    )

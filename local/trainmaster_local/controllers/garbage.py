"""The garbage collector deletes objects with their owners.

`pkg/controller/garbagecollector`: an object whose owners are all gone (by uid) is deleted in the background. An owner
deleted in the foreground keeps the finalizer `foregroundDeletion` until every dependent that blocks it is gone; an
owner whose dependents are orphaned keeps the finalizer `orphan` until they no longer refer to it. Custom resources can
be owners and dependents too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from trainmaster_local.apiserver.api import Api, ApiError, DeleteOptions
from trainmaster_local.apiserver.storage.store import Change
from trainmaster_local.apiserver.writing.deleter import FOREGROUND, ORPHAN
from trainmaster_local.controllers.loop import Controller, Key, Object
from trainmaster_local.controllers.pods import is_terminating

# Kubernetes uses the same number.
ABSENT_OWNERS = 500


class GarbageCollector(Controller):
    """The garbage collector's keys are `(resource, "namespace/name")`."""

    name = "kube-controller-manager"

    def __init__(self, api: Api) -> None:
        super().__init__(api)
        self._dependents: dict[str, dict[tuple[str, str, str], None]] = {}
        self._watched: set[str] = set()
        # Owners whose deletion was observed (Kubernetes' absentOwnerCache), so that their objects are deleted even if
        # the type disappears right after.
        self._absent: OrderedDict[str, None] = OrderedDict()
        api.registry.on_change(self._watch_all)
        self._watch_all()

    def _watch_all(self) -> None:
        """Follows every served resource, including those of future CustomResourceDefinitions."""
        for type_ in self.api.registry:
            resource = type_.qualified
            if resource in self._watched or not type_.verbs or resource == "events":
                continue
            self._watched.add(resource)

            def changed(change: Change, resource: str = resource) -> None:
                self._changed(resource, change)

            def withdrawn(resource: str = resource) -> None:
                # The type's definition is gone. A new definition gets another table, which is watched from its start.
                self._watched.discard(resource)

            self._ends.append(self.api.storage.subscribe(resource, changed, withdrawn))
            for obj in self.api.peek_all(resource):
                self._index(resource, obj)

    def _changed(self, resource: str, change: Change) -> None:
        old = change.old.object if change.old else None
        new = change.new.object if change.new else None
        if old is not None:
            for uid in _owners(old):
                self._dependents.get(uid, {}).pop(_place(resource, old), None)
        if new is None:
            gone = change.last.object
            dependents = self._dependents.pop(gone["metadata"]["uid"], {})
            if dependents:
                self._absent[gone["metadata"]["uid"]] = None
                if len(self._absent) > ABSENT_OWNERS:
                    self._absent.popitem(last=False)
            for place in dependents:
                self.queue.add((place[0], f"{place[1]}/{place[2]}"))
            # An owner that waits for its dependents may now be deleted.
            self._queue_owners(gone)
        else:
            self._index(resource, new)
            if old is not None and old["metadata"].get("ownerReferences") != new["metadata"].get("ownerReferences"):
                self._queue_owners(old)

    def _index(self, resource: str, obj: Object) -> None:
        place = _place(resource, obj)
        for uid in _owners(obj):
            self._dependents.setdefault(uid, {})[place] = None
        if obj["metadata"].get("ownerReferences") or is_terminating(obj):
            self.queue.add((place[0], f"{place[1]}/{place[2]}"))

    def _queue_owners(self, obj: Object) -> None:
        for reference in obj["metadata"].get("ownerReferences") or []:
            for resource in self._resources_of(reference):
                namespaced = next(t.namespaced for t in self.api.registry if t.qualified == resource)
                namespace = obj["metadata"].get("namespace", "") if namespaced else ""
                self.queue.add((resource, f"{namespace}/{reference['name']}"))

    def _resources_of(self, reference: Object) -> Iterable[str]:
        group = reference["apiVersion"].rpartition("/")[0]
        found = self.api.registry.by_kind(group, reference["kind"])
        return (found.qualified,) if found else ()

    async def reconcile(self, key: Key) -> float | None:
        resource = key[0]
        namespace, _, name = key[1].partition("/")
        obj = self.api.peek(resource, name, namespace)
        if obj is None:
            return None
        finalizers = obj["metadata"].get("finalizers") or []
        if is_terminating(obj) and ORPHAN in finalizers:
            await self._orphan(resource, obj)
        elif is_terminating(obj) and FOREGROUND in finalizers:
            await self._foreground(resource, obj)
        elif not is_terminating(obj):
            await self._collect(resource, obj)
        return None

    async def _collect(self, resource: str, obj: Object) -> None:
        """Deletes an object without a living owner; drops references to missing owners beside living ones."""
        references = obj["metadata"].get("ownerReferences") or []
        if not references:
            return
        owners = [(reference, self._state(obj, reference)) for reference in references]
        living = [reference for reference, state in owners if state != "absent"]
        namespace, name = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
        if not living:
            options = DeleteOptions(uid=obj["metadata"]["uid"], propagation="Background")
            await self.api.delete(resource, name, namespace, options=options)
        elif all(state != "living" for _, state in owners):
            # The remaining owners wait for it in the foreground.
            policy = "Foreground" if self._dependents.get(obj["metadata"]["uid"]) else "Background"
            await self.api.delete(
                resource, name, namespace, options=DeleteOptions(uid=obj["metadata"]["uid"], propagation=policy)
            )
        elif len(living) < len(references):
            patch = {"metadata": {"uid": obj["metadata"]["uid"], "ownerReferences": living}}
            await self.api.patch(resource, name, patch, namespace, options=self.options)

    def _state(self, obj: Object, reference: Object) -> str:
        """Returns `living`, `absent`, or `deleting` in the foreground."""
        if reference["uid"] in self._absent:
            return "absent"
        for resource in self._resources_of(reference):
            namespaced = next(t.namespaced for t in self.api.registry if t.qualified == resource)
            namespace = obj["metadata"].get("namespace", "") if namespaced else ""
            owner = self.api.peek(resource, reference["name"], namespace)
            if owner is None or owner["metadata"]["uid"] != reference["uid"]:
                return "absent"
            finalizers = owner["metadata"].get("finalizers") or []
            return "deleting" if is_terminating(owner) and FOREGROUND in finalizers else "living"
        # The owner's kind isn't served (any more), so its state is unknown.
        return "living"

    def _objects(self, uid: str) -> list[tuple[str, Object]]:
        found: list[tuple[str, Object]] = []
        for resource, namespace, name in list(self._dependents.get(uid, {})):
            obj = self.api.peek(resource, name, namespace)
            if obj is not None:
                found.append((resource, obj))
        return found

    async def _foreground(self, resource: str, owner: Object) -> None:
        uid = owner["metadata"]["uid"]
        blocking = False
        for kind, dependent in self._objects(uid):
            reference = next(ref for ref in dependent["metadata"]["ownerReferences"] if ref["uid"] == uid)
            blocking = blocking or bool(reference.get("blockOwnerDeletion"))
            if not is_terminating(dependent):
                await self._collect(kind, dependent)
        if not blocking or not self._objects(uid):
            await self._drop_finalizer(resource, owner, FOREGROUND)

    async def _orphan(self, resource: str, owner: Object) -> None:
        uid = owner["metadata"]["uid"]
        for kind, dependent in self._objects(uid):
            left = [ref for ref in dependent["metadata"]["ownerReferences"] if ref["uid"] != uid]
            patch = {"metadata": {"uid": dependent["metadata"]["uid"], "ownerReferences": left or None}}
            namespace = dependent["metadata"].get("namespace", "")
            await self.api.patch(kind, dependent["metadata"]["name"], patch, namespace, options=self.options)
        await self._drop_finalizer(resource, owner, ORPHAN)

    async def _drop_finalizer(self, resource: str, obj: Object, finalizer: str) -> None:
        def drop(new: dict[str, Any]) -> None:
            left = [entry for entry in new["metadata"].get("finalizers") or [] if entry != finalizer]
            new["metadata"]["finalizers"] = left
            if not left:
                del new["metadata"]["finalizers"]

        name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace", "")
        try:
            await self.api.modify(resource, name, namespace, drop, options=self.options)
        except ApiError as error:
            if error.code != 404:
                raise


def _owners(obj: Object) -> tuple[str, ...]:
    return tuple(reference["uid"] for reference in obj["metadata"].get("ownerReferences") or [])


def _place(resource: str, obj: Object) -> tuple[str, str, str]:
    return resource, obj["metadata"].get("namespace", ""), obj["metadata"]["name"]

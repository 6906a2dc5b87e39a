"""Carries out the plans of `statefulset` and maintains a set's revisions and status."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from trainmaster_local.apiserver.api import Api, ApiError, DeleteOptions
from trainmaster_local.controllers import statefulset
from trainmaster_local.controllers.loop import Controller, Index, Key, controller_uid
from trainmaster_local.controllers.pods import controller_of, owner_reference
from trainmaster_local.controllers.revisions import revision, revision_hash
from trainmaster_local.events import EventRecorder

Object = Mapping[str, Any]

SETS = "statefulsets.apps"
REVISIONS = "controllerrevisions.apps"


class StatefulSetController(Controller):
    """This controller is `pkg/controller/statefulset`."""

    def __init__(self, api: Api, events: EventRecorder) -> None:
        super().__init__(api)
        self._events = events
        self._pods = Index(api, "pods", controller_uid)
        self._revisions = Index(api, REVISIONS, controller_uid)
        self.watch(SETS)
        self.watch("pods", self._sets_of)

    def _sets_of(self, pod: Object) -> Iterable[Key]:
        reference = controller_of(pod)
        if reference and reference["kind"] == "StatefulSet":
            yield pod["metadata"]["namespace"], reference["name"]

    async def reconcile(self, key: Key) -> float | None:
        namespace, name = key
        found = self.api.peek(SETS, name, namespace)
        if found is None:
            return None
        current, update = await self._sync_revisions(found)
        now = time.time()
        pods = await self._own_pods(found)
        plan = statefulset.plan(found, pods, update, now)
        for index in plan.create:
            await self._create(found, index, current, update)
        for pod_name in plan.delete:
            await self._delete(found, pod_name)
        await self._write_status(key, current, update)
        await self._trim_revisions(found, {current, update})
        return plan.available_in

    async def _own_pods(self, found: Object) -> list[Object]:
        """Returns the pods that the set controls, including matching orphans, which it adopts."""
        metadata = found["metadata"]
        if not metadata.get("deletionTimestamp"):
            for index in self._wanted(found):
                orphan = self.api.peek("pods", f"{metadata['name']}-{index}", metadata["namespace"])
                if orphan and controller_of(orphan) is None and _selects(found, orphan):
                    references = [
                        *(orphan["metadata"].get("ownerReferences") or []),
                        owner_reference(found, "apps/v1", "StatefulSet"),
                    ]
                    patch = {"metadata": {"uid": orphan["metadata"]["uid"], "ownerReferences": references}}
                    await self.api.patch(
                        "pods", orphan["metadata"]["name"], patch, metadata["namespace"], options=self.options
                    )
        return self._pods.get(metadata["uid"])

    @staticmethod
    def _wanted(found: Object) -> range:
        first = statefulset.start_ordinal(found["spec"])
        return range(first, first + statefulset.replicas(found["spec"]))

    async def _sync_revisions(self, found: Object) -> tuple[str, str]:
        """Returns the names of the current and the update revision; creates the latter for a new template."""
        metadata = found["metadata"]
        template = found["spec"]["template"]
        update = f"{metadata['name']}-{revision_hash(template)}"
        history = self._revisions.get(metadata["uid"])
        newest = max((int(entry["revision"]) for entry in history), default=0)
        existing = next((entry for entry in history if entry["metadata"]["name"] == update), None)
        orphan = self.api.peek(REVISIONS, update, metadata["namespace"])
        if existing is None and orphan is not None and controller_of(orphan) is None:
            # The revision's owner was deleted without its dependents (`--cascade=orphan`), so it is adopted as pods
            # are.
            patch = {
                "metadata": {"ownerReferences": [owner_reference(found, "apps/v1", "StatefulSet")]},
                "revision": newest + 1,
            }
            await self.api.patch(REVISIONS, update, patch, metadata["namespace"], options=self.options)
        elif existing is None:
            made = revision(found, "apps/v1", "StatefulSet", template, newest + 1)
            await self.api.create(REVISIONS, made, metadata["namespace"], options=self.options)
        elif int(existing["revision"]) < newest:
            patch = {"revision": newest + 1}
            await self.api.patch(REVISIONS, update, patch, metadata["namespace"], options=self.options)
        return (found.get("status") or {}).get("currentRevision") or update, update

    def _template(self, found: Object, name: str) -> Object:
        """Returns the pod template of a revision."""
        stored = self.api.peek(REVISIONS, name, found["metadata"]["namespace"])
        template = stored["data"]["spec"]["template"] if stored else found["spec"]["template"]
        return {key: value for key, value in template.items() if key != "$patch"}

    async def _create(self, found: Object, index: int, current: str, update: str) -> None:
        namespace = found["metadata"]["namespace"]
        set_name = found["metadata"]["name"]
        name = statefulset.revision_for(found["spec"], index, current, update)
        pod = statefulset.build_pod(found, self._template(found, name), name, index)
        pod_name = pod["metadata"]["name"]
        try:
            await self.api.create("pods", pod, namespace, options=self.options)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                message = f"Create Pod {pod_name} in StatefulSet {set_name} failed error: {error.message}"
                self._events.record(found, "Warning", "FailedCreate", message)
            raise
        message = f"Create Pod {pod_name} in StatefulSet {set_name} successful"
        self._events.record(found, "Normal", "SuccessfulCreate", message)

    async def _delete(self, found: Object, pod_name: str) -> None:
        namespace, set_name = found["metadata"]["namespace"], found["metadata"]["name"]
        pod = self.api.peek("pods", pod_name, namespace)
        if pod is None:
            return
        await self.api.delete("pods", pod_name, namespace, options=DeleteOptions(uid=pod["metadata"]["uid"]))
        message = f"Delete Pod {pod_name} in StatefulSet {set_name} successful"
        self._events.record(found, "Normal", "SuccessfulDelete", message)

    async def _write_status(self, key: Key, current: str, update: str) -> None:
        found = self.api.peek(SETS, key[1], key[0])
        if found is None:
            return
        old = found.get("status") or {}
        pods = self._pods.get(found["metadata"]["uid"])
        collisions = int(old.get("collisionCount") or 0)
        status = statefulset.status(found, pods, current, update, collisions, time.time())
        if old.get("conditions"):
            status["conditions"] = old["conditions"]
        if status != old:
            body = {**found, "status": status}
            await self.api.update(SETS, body, key[0], subresource="status", options=self.options)

    async def _trim_revisions(self, found: Object, live: set[str]) -> None:
        limit = int(found["spec"].get("revisionHistoryLimit", 10))
        used = {
            (pod["metadata"].get("labels") or {}).get(statefulset.REVISION_LABEL)
            for pod in self._pods.get(found["metadata"]["uid"])
        }
        history = self._revisions.get(found["metadata"]["uid"])
        unused = [entry for entry in history if entry["metadata"]["name"] not in live | used]
        unused.sort(key=lambda entry: int(entry["revision"]))
        for entry in unused[: max(0, len(unused) - limit)]:
            await self.api.delete(REVISIONS, entry["metadata"]["name"], found["metadata"]["namespace"])


def _selects(found: Object, pod: Object) -> bool:
    wanted = (found["spec"].get("selector") or {}).get("matchLabels") or {}
    labels = pod["metadata"].get("labels") or {}
    return bool(wanted) and all(labels.get(key) == value for key, value in wanted.items())

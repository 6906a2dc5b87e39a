"""Rolls out, scales and rolls back Deployments and ReplicaSets (`pkg/controller/deployment`, `replicaset`)."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from trainmaster_local.apiserver.api import Api, ApiError, DeleteOptions
from trainmaster_local.controllers.loop import Controller, Index, Key, Object, controller_uid
from trainmaster_local.controllers.pods import (
    available_in,
    controller_of,
    is_finished,
    is_ready,
    is_terminating,
    owner_reference,
)
from trainmaster_local.controllers.revisions import safe_hash
from trainmaster_local.events import EventRecorder
from trainmaster_local.kubelet.status import timestamp

SETS, DEPLOYMENTS = "replicasets.apps", "deployments.apps"
HASH_LABEL = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"


class ReplicaSetController(Controller):
    """This controller keeps as many pods as a ReplicaSet requests."""

    def __init__(self, api: Api, events: EventRecorder) -> None:
        super().__init__(api)
        self._events = events
        self._pods = Index(api, "pods", controller_uid)
        self.watch(SETS)
        self.watch("pods", _owners_of_kind("ReplicaSet"))

    async def reconcile(self, key: Key) -> float | None:
        found = self.api.peek(SETS, key[1], key[0])
        if found is None:
            return None
        now = time.time()
        pods = [pod for pod in self._pods.get(found["metadata"]["uid"]) if not is_finished(pod)]
        active = [pod for pod in pods if not is_terminating(pod)]
        wanted = int(found["spec"].get("replicas", 1))
        if not found["metadata"].get("deletionTimestamp"):
            for _ in range(wanted - len(active)):
                await self._create(found)
            surplus = sorted(active, key=lambda pod: (is_ready(pod), pod["metadata"]["creationTimestamp"]))
            for pod in surplus[: max(0, len(active) - wanted)]:
                await self._delete(found, pod)
        return await self._write_status(key, now)

    async def _create(self, found: Object) -> None:
        template = copy.deepcopy(found["spec"]["template"])
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                **(template.get("metadata") or {}),
                "generateName": f"{found['metadata']['name']}-",
                "ownerReferences": [owner_reference(found, "apps/v1", "ReplicaSet")],
            },
            "spec": template["spec"],
        }
        try:
            made = await self.api.create("pods", pod, found["metadata"]["namespace"], options=self.options)
        except ApiError as error:
            self._events.record(found, "Warning", "FailedCreate", f"Error creating: {error.message}")
            raise
        self._events.record(found, "Normal", "SuccessfulCreate", f"Created pod: {made['metadata']['name']}")

    async def _delete(self, found: Object, pod: Object) -> None:
        metadata = pod["metadata"]
        options = DeleteOptions(uid=metadata["uid"])
        await self.api.delete("pods", metadata["name"], metadata["namespace"], options=options)
        self._events.record(found, "Normal", "SuccessfulDelete", f"Deleted pod: {metadata['name']}")

    async def _write_status(self, key: Key, now: float) -> float | None:
        found = self.api.peek(SETS, key[1], key[0])
        if found is None:
            return None
        minimum = int(found["spec"].get("minReadySeconds") or 0)
        pods = [
            pod for pod in self._pods.get(found["metadata"]["uid"]) if not is_finished(pod) and not is_terminating(pod)
        ]
        waits = [available_in(pod, minimum, now) for pod in pods]
        counts = {
            "fullyLabeledReplicas": len(pods),
            "readyReplicas": sum(1 for pod in pods if is_ready(pod)),
            "availableReplicas": sum(1 for wait in waits if wait == 0.0),
        }
        status = {
            "replicas": len(pods),
            **{name: count for name, count in counts.items() if count},
            "observedGeneration": int(found["metadata"].get("generation") or 1),
        }
        if status != {k: v for k, v in (found.get("status") or {}).items() if k != "terminatingReplicas"}:
            body = {**found, "status": status}
            await self.api.update(SETS, body, key[0], subresource="status", options=self.options)
        return min((wait for wait in waits if wait), default=None)


class DeploymentController(Controller):
    """This controller keeps a ReplicaSet for each template.

    It moves pods from the old set to the new one within maxSurge and maxUnavailable.
    """

    def __init__(self, api: Api, events: EventRecorder) -> None:
        super().__init__(api)
        self._events = events
        self._sets = Index(api, SETS, controller_uid)
        self.watch(DEPLOYMENTS)
        self.watch(SETS, _owners_of_kind("Deployment"))

    async def reconcile(self, key: Key) -> float | None:
        found = self.api.peek(DEPLOYMENTS, key[1], key[0])
        if found is None or found["metadata"].get("deletionTimestamp"):
            return None
        owned = self._sets.get(found["metadata"]["uid"])
        new = self._find_new(found, owned)
        if new is None:
            await self._create_set(found, owned)
            owned = self._sets.get(found["metadata"]["uid"])
            new = self._find_new(found, owned)
        if new is None:
            return None
        await self._record_revision(found, new, owned)
        old = [entry for entry in owned if entry["metadata"]["uid"] != new["metadata"]["uid"]]
        if not found["spec"].get("paused"):
            await self._roll(found, new, old)
            await self._clean(found, old)
        await self._write_status(key)
        return None

    @staticmethod
    def _digest(template: Object) -> str:
        return safe_hash(json.dumps(template, sort_keys=True, separators=(",", ":")).encode())

    def _find_new(self, found: Object, owned: list[Object]) -> Object | None:
        digest = self._digest(found["spec"]["template"])
        return next(
            (entry for entry in owned if (entry["metadata"].get("labels") or {}).get(HASH_LABEL) == digest), None
        )

    async def _create_set(self, found: Object, owned: list[Object]) -> None:
        digest = self._digest(found["spec"]["template"])
        template = copy.deepcopy(found["spec"]["template"])
        labels = {**((template.get("metadata") or {}).get("labels") or {}), HASH_LABEL: digest}
        template.setdefault("metadata", {})["labels"] = labels
        selector = copy.deepcopy(found["spec"]["selector"])
        selector.setdefault("matchLabels", {})[HASH_LABEL] = digest
        wanted = int(found["spec"].get("replicas", 1))
        surge, _ = _limits(found["spec"])
        current = sum(int(entry["spec"].get("replicas", 0)) for entry in owned)
        room = max(0, min(wanted, wanted + surge - current))
        made: dict[str, Any] = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": f"{found['metadata']['name']}-{digest}",
                "namespace": found["metadata"]["namespace"],
                "labels": labels,
                "annotations": {REVISION: str(_newest(owned) + 1)},
                "ownerReferences": [owner_reference(found, "apps/v1", "Deployment")],
            },
            "spec": {
                "replicas": room,
                "selector": selector,
                "template": template,
                "minReadySeconds": int(found["spec"].get("minReadySeconds") or 0),
            },
        }
        await self.api.create(SETS, made, found["metadata"]["namespace"], options=self.options)
        self._scaled(found, made["metadata"]["name"], 0, room)

    async def _record_revision(self, found: Object, new: Object, owned: list[Object]) -> None:
        """Makes an old set the newest revision after a rollback."""
        others = [entry for entry in owned if entry["metadata"]["uid"] != new["metadata"]["uid"]]
        number = _revision(new)
        if number <= _newest(others):
            number = _newest(others) + 1
            patch = {"metadata": {"annotations": {REVISION: str(number)}}}
            await self._patch(SETS, new, patch)
        if (found["metadata"].get("annotations") or {}).get(REVISION) != str(number):
            await self._patch(DEPLOYMENTS, found, {"metadata": {"annotations": {REVISION: str(number)}}})

    async def _patch(self, resource: str, obj: Object, patch: Mapping[str, Any]) -> None:
        metadata = obj["metadata"]
        await self.api.patch(resource, metadata["name"], patch, metadata["namespace"], options=self.options)

    async def _roll(self, found: Object, new: Object, old: list[Object]) -> None:
        wanted = int(found["spec"].get("replicas", 1))
        total = sum(int(entry["spec"].get("replicas", 0)) for entry in [new, *old])
        current = int(new["spec"].get("replicas", 0))
        surge, unavailable = _limits(found["spec"])
        if current > wanted:
            await self._scale(found, new, wanted)
        elif current < wanted:
            await self._scale(found, new, min(wanted, current + max(0, wanted + surge - total)))
        available = sum(int((entry.get("status") or {}).get("availableReplicas") or 0) for entry in [new, *old])
        spare = available - (wanted - unavailable)
        for entry in sorted(old, key=_revision):
            replicas = int(entry["spec"].get("replicas", 0))
            broken = max(0, replicas - int((entry.get("status") or {}).get("availableReplicas") or 0))
            down = min(replicas, broken + max(0, spare))
            if down:
                spare -= max(0, down - broken)
                await self._scale(found, entry, replicas - down)

    async def _scale(self, found: Object, entry: Object, replicas: int) -> None:
        before = int(entry["spec"].get("replicas", 0))
        if before != replicas:
            await self._patch(SETS, entry, {"spec": {"replicas": replicas}})
            self._scaled(found, entry["metadata"]["name"], before, replicas)

    def _scaled(self, found: Object, name: str, before: int, after: int) -> None:
        word = "up" if after > before else "down"
        message = f"Scaled {word} replica set {name} from {before} to {after}"
        self._events.record(found, "Normal", "ScalingReplicaSet", message)

    async def _clean(self, found: Object, old: list[Object]) -> None:
        limit = int(found["spec"].get("revisionHistoryLimit", 10))
        idle = [
            entry
            for entry in old
            if not int(entry["spec"].get("replicas", 0)) and not int((entry.get("status") or {}).get("replicas") or 0)
        ]
        for entry in sorted(idle, key=_revision)[: max(0, len(idle) - limit)]:
            await self.api.delete(SETS, entry["metadata"]["name"], entry["metadata"]["namespace"])

    async def _write_status(self, key: Key) -> None:
        found = self.api.peek(DEPLOYMENTS, key[1], key[0])
        if found is None:
            return
        owned = self._sets.get(found["metadata"]["uid"])
        new = self._find_new(found, owned)
        wanted = int(found["spec"].get("replicas", 1))

        def total(name: str, sets: Iterable[Object]) -> int:
            return sum(int((entry.get("status") or {}).get(name) or 0) for entry in sets)

        replicas, available = total("replicas", owned), total("availableReplicas", owned)
        updated = total("replicas", [new] if new else [])
        counts = {
            "replicas": replicas,
            "updatedReplicas": updated,
            "readyReplicas": total("readyReplicas", owned),
            "availableReplicas": available,
            "unavailableReplicas": max(0, max(replicas, wanted) - available),
        }
        _, unavailable = _limits(found["spec"])
        complete = updated == wanted == replicas == available
        old = found.get("status") or {}
        status: dict[str, Any] = {
            "observedGeneration": int(found["metadata"].get("generation") or 1),
            **{name: count for name, count in counts.items() if count},
            "conditions": self._conditions(old, new, available >= wanted - unavailable, complete),
        }
        if {k: v for k, v in status.items() if k != "conditions"} != {
            k: v for k, v in old.items() if k != "conditions"
        } or _meaning(status) != _meaning(old):
            body = {**found, "status": status}
            await self.api.update(DEPLOYMENTS, body, key[0], subresource="status", options=self.options)

    def _conditions(self, old: Object, new: Object | None, available: bool, complete: bool) -> list[dict[str, Any]]:
        name = new["metadata"]["name"] if new else ""
        made = [
            ("Available", True, "MinimumReplicasAvailable", "Deployment has minimum availability.")
            if available
            else ("Available", False, "MinimumReplicasUnavailable", "Deployment does not have minimum availability."),
            ("Progressing", True, "NewReplicaSetAvailable", f'ReplicaSet "{name}" has successfully progressed.')
            if complete
            else ("Progressing", True, "ReplicaSetUpdated", f'ReplicaSet "{name}" is progressing.'),
        ]
        now = timestamp(self.api.clock())
        before = {entry["type"]: entry for entry in old.get("conditions") or []}
        return [
            {
                "type": kind,
                "status": "True" if status else "False",
                "lastUpdateTime": now,
                "lastTransitionTime": before[kind]["lastTransitionTime"]
                if kind in before and before[kind]["status"] == ("True" if status else "False")
                else now,
                "reason": reason,
                "message": message,
            }
            for kind, status, reason, message in made
        ]


def _meaning(status: Object) -> list[tuple[str, str, str]]:
    return [(entry["type"], entry["status"], entry["reason"]) for entry in status.get("conditions") or []]


def _revision(entry: Object) -> int:
    return int((entry["metadata"].get("annotations") or {}).get(REVISION) or 0)


def _newest(owned: list[Object]) -> int:
    return max((_revision(entry) for entry in owned), default=0)


def _limits(spec: Object) -> tuple[int, int]:
    """Returns maxSurge (rounded up) and maxUnavailable (rounded down) as numbers; at least one of them is 1."""
    rolling = (spec.get("strategy") or {}).get("rollingUpdate") or {}
    wanted = int(spec.get("replicas", 1))

    def number(value: Any, up: bool) -> int:
        if isinstance(value, str) and value.endswith("%"):
            share = wanted * int(value[:-1])
            return -(-share // 100) if up else share // 100
        return int(value)

    surge = number(rolling.get("maxSurge", "25%"), True)
    unavailable = number(rolling.get("maxUnavailable", "25%"), False)
    return surge, unavailable if surge or unavailable else 1


def _owners_of_kind(kind: str) -> Any:
    def owners(obj: Object) -> Iterable[Key]:
        reference = controller_of(obj)
        if reference and reference["kind"] == kind:
            yield obj["metadata"]["namespace"], reference["name"]

    return owners

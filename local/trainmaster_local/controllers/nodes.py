"""Marks, taints and empties lost nodes, and deletes pods of deleted nodes.

`pkg/controller/nodelifecycle`, `tainteviction` and `podgc`. A node whose Lease isn't renewed becomes NotReady (Unknown)
and gets the `unreachable` taints; its pods aren't ready any more, and pods that don't tolerate the taint (any longer)
are deleted. Their kubelet can't confirm the deletion, so they stay Terminating until it returns, they are deleted by
force, or the node is deleted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from trainmaster_local.ages import seconds_since_epoch
from trainmaster_local.apiserver.api import Api, DeleteOptions
from trainmaster_local.config import NodeTimings
from trainmaster_local.controllers.loop import Controller, Index, Key
from trainmaster_local.controllers.pods import condition, is_finished, is_terminating
from trainmaster_local.events import EventRecorder
from trainmaster_local.kubelet.status import timestamp
from trainmaster_local.scheduling.scheduler import tolerates

Object = Mapping[str, Any]

UNREACHABLE = "node.kubernetes.io/unreachable"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
LEASES = "leases.coordination.k8s.io"


class NodeController(Controller):
    """The keys are nodes' names; each is checked every `monitor_seconds`."""

    def __init__(self, api: Api, events: EventRecorder, timings: NodeTimings) -> None:
        super().__init__(api)
        self._events = events
        self._timings = timings
        self._pods = Index(api, "pods", lambda pod: (pod["spec"].get("nodeName") or "",))
        self._seen: dict[str, tuple[str, float]] = {}
        self._looked: dict[str, float] = {}
        self._gone: dict[str, float] = {}
        self.watch("nodes")
        self.watch("pods", lambda pod: (("", pod["spec"]["nodeName"]),) if pod["spec"].get("nodeName") else ())

    async def reconcile(self, key: Key) -> float | None:
        name = key[1]
        node = self.api.peek("nodes", name)
        now = time.monotonic()
        if node is None:
            self._seen.pop(name, None)
            self._looked.pop(name, None)
            return await self._collect_orphans(name, now)
        self._gone.pop(name, None)
        lost = self._is_lost(name, now)
        reachable = not _has_taint(node, UNREACHABLE)
        if lost and reachable:
            await self._mark_lost(node)
        elif not lost and not reachable:
            await self._mark_back(node)
        node = self.api.peek("nodes", name) or node
        soon = await self._evict(node)
        return min(self._timings.monitor_seconds, soon) if soon is not None else self._timings.monitor_seconds

    def _is_lost(self, name: str, now: float) -> bool:
        """Returns whether the Lease hasn't changed for the grace period by this clock, not the node's.

        A late check means that this process was delayed (a loaded machine, a debugger), and the kubelets in it too:
        that time doesn't count against the node.
        """
        late = now - self._looked.get(name, now) - self._timings.monitor_seconds
        self._looked[name] = now
        lease = self.api.peek(LEASES, name, "kube-node-lease")
        renewed = str(((lease or {}).get("spec") or {}).get("renewTime") or "")
        seen = self._seen.get(name)
        if seen is None or seen[0] != renewed:
            self._seen[name] = (renewed, now)
            return False
        if late > self._timings.monitor_seconds:
            seen = self._seen[name] = (renewed, seen[1] + late)
        return now - seen[1] > self._timings.monitor_grace_seconds

    async def _mark_lost(self, node: Object) -> None:
        name = node["metadata"]["name"]
        stamp = timestamp(self.api.clock())

        def unknown(obj: dict[str, Any]) -> None:
            for entry in obj.get("status", {}).get("conditions") or []:
                entry |= {
                    "status": "Unknown",
                    "reason": "NodeStatusUnknown",
                    "message": "Kubelet stopped posting node status.",
                    "lastTransitionTime": stamp,
                }

        def taint(obj: dict[str, Any]) -> None:
            taints = [t for t in obj["spec"].get("taints") or [] if t["key"] != UNREACHABLE]
            taints += [
                {"key": UNREACHABLE, "effect": effect, "timeAdded": stamp} for effect in ("NoSchedule", "NoExecute")
            ]
            obj["spec"]["taints"] = taints

        await self.api.modify("nodes", name, "", unknown, subresource="status", options=self.options)
        await self.api.modify("nodes", name, "", taint, options=self.options)
        self._events.record(node, "Normal", "NodeNotReady", f"Node {name} status is now: NodeNotReady")
        for pod in self._pods.get(name):
            ready = condition(pod, "Ready")
            if ready and ready.get("status") == "True":
                await self._mark_not_ready(pod, stamp)

    async def _mark_not_ready(self, pod: Object, stamp: str) -> None:
        def change(obj: dict[str, Any]) -> None:
            for entry in obj["status"].get("conditions") or []:
                if entry["type"] == "Ready":
                    entry |= {"status": "False", "lastTransitionTime": stamp}

        metadata = pod["metadata"]
        await self.api.modify(
            "pods", metadata["name"], metadata["namespace"], change, subresource="status", options=self.options
        )
        self._events.record(pod, "Warning", "NodeNotReady", "Node is not ready")

    async def _mark_back(self, node: Object) -> None:
        def clear(obj: dict[str, Any]) -> None:
            obj["spec"]["taints"] = [t for t in obj["spec"].get("taints") or [] if t["key"] != UNREACHABLE]
            if not obj["spec"]["taints"]:
                del obj["spec"]["taints"]

        await self.api.modify("nodes", node["metadata"]["name"], "", clear, options=self.options)

    async def _evict(self, node: Object) -> float | None:
        """Deletes the pods that don't tolerate the node's NoExecute taints (any longer).

        Returns the seconds until the next deletion is due.
        """
        taints = [taint for taint in (node["spec"].get("taints") or []) if taint.get("effect") == "NoExecute"]
        if not taints:
            return None
        force = any(taint["key"] == OUT_OF_SERVICE for taint in taints)
        due: list[float] = []
        for pod in self._pods.get(node["metadata"]["name"]):
            if force and is_terminating(pod) and not _tolerates_all(pod, taints):
                await self._force(pod, "DeletionByPodGC", "PodGC: node out of service")
                continue
            if is_terminating(pod) or is_finished(pod):
                continue
            left = self._tolerated_for(pod, taints)
            if left is None:
                continue
            if left > 0:
                due.append(left)
                continue
            await self._disrupt(pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
            metadata = pod["metadata"]
            message = f"Marking for deletion Pod {metadata['namespace']}/{metadata['name']}"
            self._events.record(pod, "Normal", "TaintManagerEviction", message)
            options = DeleteOptions(uid=metadata["uid"])
            await self.api.delete("pods", metadata["name"], metadata["namespace"], options=options)
        return min(due) if due else None

    def _tolerated_for(self, pod: Object, taints: list[Object]) -> float | None:
        """Returns the seconds that a pod may stay; None without limit (`tainteviction.getMinTolerationTime`)."""
        limits: list[float] = []
        tolerations = pod["spec"].get("tolerations") or []
        for taint in taints:
            matching = [toleration for toleration in tolerations if tolerates([toleration], taint)]
            if not matching:
                return 0.0
            seconds = [float(t["tolerationSeconds"]) for t in matching if t.get("tolerationSeconds") is not None]
            if seconds:
                added = seconds_since_epoch(taint["timeAdded"]) if taint.get("timeAdded") else self.api.clock()
                limits.append(added + min(seconds) - self.api.clock())
        return max(0.0, min(limits)) if limits else None

    async def _disrupt(self, pod: Object, reason: str, message: str) -> None:
        """Sets the condition that names the cause of the pod's end (KEP-3329)."""
        made = {
            "type": "DisruptionTarget",
            "observedGeneration": int(pod["metadata"].get("generation") or 1),
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": timestamp(self.api.clock()),
            "reason": reason,
            "message": message,
        }

        def change(obj: dict[str, Any]) -> None:
            status = obj.setdefault("status", {})
            others = [entry for entry in status.get("conditions") or [] if entry["type"] != "DisruptionTarget"]
            status["conditions"] = [*others, made]

        metadata = pod["metadata"]
        await self.api.modify(
            "pods", metadata["name"], metadata["namespace"], change, subresource="status", options=self.options
        )

    async def _force(self, pod: Object, reason: str, message: str) -> None:
        await self._disrupt(pod, reason, message)
        metadata = pod["metadata"]
        options = DeleteOptions(grace_period=0, uid=metadata["uid"])
        await self.api.delete("pods", metadata["name"], metadata["namespace"], options=options)

    async def _collect_orphans(self, name: str, now: float) -> float | None:
        """Deletes the pods of a deleted node, after a quarantine (`podgc`)."""
        pods = self._pods.get(name)
        if not pods:
            self._gone.pop(name, None)
            return None
        since = self._gone.setdefault(name, now)
        left = since + self._timings.orphan_seconds - now
        if left > 0:
            return left
        for pod in pods:
            await self._force(pod, "DeletionByPodGC", "PodGC: node no longer exists")
        return None


def _has_taint(node: Object, key: str) -> bool:
    return any(taint["key"] == key for taint in (node.get("spec") or {}).get("taints") or [])


def _tolerates_all(pod: Object, taints: list[Object]) -> bool:
    return all(tolerates(pod["spec"].get("tolerations") or [], taint) for taint in taints)

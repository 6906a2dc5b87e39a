"""Binds pods to nodes by `scheduler`'s decisions, highest priority first, oldest first."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from trainmaster_local.apiserver.api import Api, ApiError, DeleteOptions
from trainmaster_local.apiserver.storage.store import Change
from trainmaster_local.apiserver.writing.writer import Options
from trainmaster_local.controllers.loop import Key, key_of
from trainmaster_local.controllers.pods import is_finished
from trainmaster_local.events import EventRecorder
from trainmaster_local.kubelet.status import timestamp
from trainmaster_local.scheduling.scheduler import Decision, NodeState, priority, schedule

logger = logging.getLogger(__name__)

Object = Mapping[str, Any]

NAME = "default-scheduler"


class SchedulerController:
    """This controller updates the nodes' state with every change, and retries waiting pods when a change may help."""

    name = "kube-scheduler"

    def __init__(self, api: Api, events: EventRecorder) -> None:
        self._api = api
        self._events = events
        self._nodes: dict[str, NodeState] = {}
        self._waiting: dict[Key, None] = {}
        self._wake = asyncio.Event()
        self._options = Options(manager=self.name)
        self._ends = [
            api.storage.subscribe("nodes", self._node_changed),
            api.storage.subscribe("pods", self._pod_changed),
            api.storage.subscribe("persistentvolumeclaims", lambda change: self._wake.set()),
        ]
        for node in api.peek_all("nodes"):
            self._put_node(node)
        for pod in api.peek_all("pods"):
            self._put_pod(pod)

    def _node_changed(self, change: Change) -> None:
        if change.new is None:
            self._nodes.pop(change.last.object["metadata"]["name"], None)
        else:
            self._put_node(change.new.object)
        self._wake.set()

    def _put_node(self, node: Object) -> None:
        name = node["metadata"]["name"]
        state = self._nodes.get(name)
        if state is None:
            state = self._nodes[name] = NodeState(node)
            for pod in self._api.peek_all("pods"):
                if pod["spec"].get("nodeName") == name and not is_finished(pod):
                    state.add(pod)
        else:
            state.node = node

    def _pod_changed(self, change: Change) -> None:
        pod = change.last.object
        if change.new is None:
            self._waiting.pop(key_of(pod), None)
            self._drop(pod)
        else:
            self._put_pod(pod)

    def _drop(self, pod: Object) -> None:
        state = self._nodes.get(pod["spec"].get("nodeName") or "")
        if state is not None and pod["metadata"]["uid"] in state.pods:
            state.remove(pod["metadata"]["uid"])
            self._wake.set()

    def _put_pod(self, pod: Object) -> None:
        node = pod["spec"].get("nodeName")
        if is_finished(pod):
            self._waiting.pop(key_of(pod), None)
            self._drop(pod)
        elif node:
            self._waiting.pop(key_of(pod), None)
            if node in self._nodes:
                self._nodes[node].add(pod)
        elif self._ours(pod):
            if key_of(pod) not in self._waiting:
                self._waiting[key_of(pod)] = None
                self._wake.set()
        else:
            self._waiting.pop(key_of(pod), None)

    @staticmethod
    def _ours(pod: Object) -> bool:
        spec = pod["spec"]
        if pod["metadata"].get("deletionTimestamp") or spec.get("schedulingGates"):
            return False
        return bool(spec.get("schedulerName", NAME) == NAME)

    async def run(self) -> None:
        """Schedules until it is cancelled."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                waiting = [
                    pod for key in list(self._waiting) if (pod := self._api.peek("pods", key[1], key[0])) is not None
                ]
                waiting.sort(key=lambda pod: (-priority(pod), pod["metadata"].get("creationTimestamp", "")))
                for index, pod in enumerate(waiting):
                    try:
                        await self._schedule(pod)
                    except ApiError as error:
                        logger.info("scheduling %s: %s", pod["metadata"]["name"], error)
                    if index % 50 == 49:
                        await asyncio.sleep(0)
        finally:
            for end in self._ends:
                end()

    async def _schedule(self, pod: Object) -> None:
        namespace, name = key_of(pod)
        if (namespace, name) not in self._waiting:
            return
        decision = schedule(pod, list(self._nodes.values()), self._claims_problem(pod))
        if not decision.node:
            await self._refuse(pod, decision)
            return
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": pod["metadata"]["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": decision.node},
        }
        await self._api.create("pods", binding, namespace, name=name, subresource="binding", options=self._options)
        message = f"Successfully assigned {namespace}/{name} to {decision.node}"
        self._events.record(pod, "Normal", "Scheduled", message)

    def _claims_problem(self, pod: Object) -> str:
        """Returns why no node fits because of a pod's claims (`volumebinding`)."""
        for volume in pod["spec"].get("volumes") or []:
            claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            if not claim:
                continue
            found = self._api.peek("persistentvolumeclaims", claim, pod["metadata"]["namespace"])
            if found is None:
                return f'persistentvolumeclaim "{claim}" not found'
            storage = self._api.peek("storageclasses.storage.k8s.io", found["spec"].get("storageClassName") or "")
            late = (storage or {}).get("volumeBindingMode") == "WaitForFirstConsumer"
            if not late and (found.get("status") or {}).get("phase") != "Bound":
                return "pod has unbound immediate PersistentVolumeClaims"
        return ""

    async def _refuse(self, pod: Object, decision: Decision) -> None:
        """Writes the reason for waiting into the pod, and evicts the decision's victims to make room."""
        conditions = (pod.get("status") or {}).get("conditions") or []
        old = next((entry for entry in conditions if entry["type"] == "PodScheduled"), None)
        nominated = (pod.get("status") or {}).get("nominatedNodeName") or ""
        for victim in decision.victims:
            await self._evict(victim, pod)
        if old and old.get("message") == decision.message and nominated == decision.nominated:
            return
        now = timestamp(self._api.clock())
        condition = {
            "type": "PodScheduled",
            "observedGeneration": int(pod["metadata"].get("generation") or 1),
            "status": "False",
            "lastProbeTime": None,
            "lastTransitionTime": old["lastTransitionTime"] if old and old["status"] == "False" else now,
            "reason": "Unschedulable",
            "message": decision.message,
        }
        status = {**(pod.get("status") or {})}
        status["conditions"] = [entry for entry in conditions if entry["type"] != "PodScheduled"] + [condition]
        if decision.nominated:
            status["nominatedNodeName"] = decision.nominated
        body = {**pod, "status": status}
        namespace, name = key_of(pod)
        await self._api.update("pods", body, namespace, name=name, subresource="status", options=self._options)
        self._events.record(pod, "Warning", "FailedScheduling", decision.message)

    async def _evict(self, victim: Object, pod: Object) -> None:
        if victim["metadata"].get("deletionTimestamp"):
            return
        namespace, name = key_of(victim)
        now = timestamp(self._api.clock())
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": now,
            "reason": "PreemptionByScheduler",
            "message": f"{NAME}: preempting to accommodate a higher priority pod",
        }

        def mark(obj: dict[str, Any]) -> None:
            status = obj.setdefault("status", {})
            status["conditions"] = [
                *(entry for entry in status.get("conditions") or [] if entry["type"] != "DisruptionTarget"),
                condition,
            ]

        await self._api.modify("pods", name, namespace, mark, subresource="status", options=self._options)
        uid = victim["metadata"]["uid"]
        await self._api.delete("pods", name, namespace, options=DeleteOptions(uid=uid))
        message = f"Preempted by pod {pod['metadata']['uid']} on node {victim['spec']['nodeName']}"
        self._events.record(victim, "Normal", "Preempted", message)

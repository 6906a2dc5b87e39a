"""A node's agent registers the node, renews its lease, and runs a worker for each of its pods.

One `Kubelet` per node, all in one process and on one event loop, sharing one runtime. `lose` makes it behave as an
unreachable node: it stops reporting, and its processes continue or end as requested.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from trainmaster_local.apiserver.api import Api, ApiError, DeleteOptions
from trainmaster_local.apiserver.storage.store import Change
from trainmaster_local.apiserver.writing.writer import Options
from trainmaster_local.config import NodeConfig, NodeTimings
from trainmaster_local.events import EventRecorder
from trainmaster_local.images import ImageTable
from trainmaster_local.kubelet.containers.environment import PodFacts
from trainmaster_local.kubelet.containers.fake import ANNOTATION, FakeRuntime
from trainmaster_local.kubelet.containers.runtime import Runtime
from trainmaster_local.kubelet.devices import DeviceManager
from trainmaster_local.kubelet.host import KubeletTimings
from trainmaster_local.kubelet.pod import PodWorker
from trainmaster_local.kubelet.status import timestamp
from trainmaster_local.network import AddressPool, HostsFiles

logger = logging.getLogger(__name__)

Object = Mapping[str, Any]

LEASES = "leases.coordination.k8s.io"
LEASE_NAMESPACE = "kube-node-lease"

# A container gets these variables from the machine, and all others from the image and the manifest. The numbers of
# CUDA's
# devices depend on CUDA_DEVICE_ORDER.
_PASSED = ("LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "TZ", "SSL_CERT_FILE", "CUDA_DEVICE_ORDER")


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Kubelet:
    """The agent of one node implements `PodHost` for its workers."""

    def __init__(
        self,
        api: Api,
        config: NodeConfig,
        *,
        folder: Path,
        address: str,
        server: str,
        authority: str,
        runtime: Runtime,
        images: ImageTable,
        hosts_variable: str,
        pool: AddressPool,
        hosts: HostsFiles,
        events: EventRecorder,
        timings: KubeletTimings,
        node_timings: NodeTimings,
        memory_folder: Path,
    ) -> None:
        self.node_name = config.name
        self.host_ip = address
        self.images = images
        self.timings = timings
        self.memory_folder = memory_folder
        self.workers: dict[str, PodWorker] = {}
        self._api = api
        self._config = config
        self._devices = DeviceManager(config.devices)
        self._folder = folder
        self._server = server
        self._authority = authority
        self._runtime = runtime
        self.fakes = FakeRuntime()
        self._pool = pool
        self._hosts = hosts
        self._hosts_variable = hosts_variable
        self._events = events
        self._node_timings = node_timings
        self._options = Options(manager="kubelet")
        self._lost = False
        self._ends: list[Any] = []

    async def start(self) -> None:
        """Registers the node and starts workers for its pods."""
        await self._register()
        self._ends = [
            self._api.storage.subscribe("pods", self._pod_changed),
            self._api.storage.subscribe("configmaps", self._data_changed),
            self._api.storage.subscribe("secrets", self._data_changed),
        ]
        for pod in self._api.peek_all("pods"):
            self._upsert_worker(pod)

    async def run(self) -> None:
        """Renews the lease until it is cancelled."""
        while True:
            await asyncio.sleep(self._node_timings.lease_seconds)
            if not self._lost:
                await self._renew()
                for worker in list(self.workers.values()):
                    await worker.renew_tokens()

    async def stop(self) -> None:
        """Abandons all workers; the runtime ends the processes."""
        for end in self._ends:
            end()
        self._ends = []
        await asyncio.gather(*(worker.abandon() for worker in self.workers.values()))
        self.workers.clear()
        await self.fakes.close()

    async def lose(self, *, kill: bool) -> None:
        """Makes the node unreachable: it reports nothing and receives nothing. With `kill` its processes end too."""
        self._lost = True
        for end in self._ends:
            end()
        self._ends = []
        workers = list(self.workers.values())
        await asyncio.gather(*(worker.abandon() for worker in workers))
        if kill:
            await self._kill_all()

    async def recover(self) -> None:
        """Makes the node reachable again.

        It ends the processes that its pods left running and starts workers for its pods, as after a reboot.
        """
        await self._kill_all()
        self.workers.clear()
        self._devices = DeviceManager(self._config.devices)
        self._lost = False
        await self.start()

    async def _kill_all(self) -> None:
        await asyncio.gather(*(worker.kill_all() for worker in self.workers.values()))

    async def _register(self) -> None:
        node = self._node()
        if self._api.peek("nodes", self.node_name) is None:
            await self._api.create("nodes", node, options=self._options)
        now = timestamp(self._api.clock())
        ready = [
            ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        ]

        def report(obj: dict[str, Any]) -> None:
            obj["status"] = {
                **node["status"],
                "conditions": [
                    {"type": type_, "status": status, "reason": reason, "message": message,
                     "lastHeartbeatTime": now, "lastTransitionTime": now}
                    for type_, status, reason, message in ready
                ],
            }  # fmt: skip

        await self._api.modify("nodes", self.node_name, "", report, subresource="status", options=self._options)
        await self._renew()

    def _node(self) -> dict[str, Any]:
        config = self._config
        resources = {"cpu": config.cpu, "memory": config.memory, "pods": str(config.pods), "ephemeral-storage": "100Gi"}
        resources |= {name: str(len(devices)) for name, devices in config.devices.items()}
        machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        labels = {
            "kubernetes.io/hostname": config.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": machine,
            **config.labels,
        }
        spec: dict[str, Any] = {}
        if config.taints:
            spec["taints"] = [
                {"key": taint.key, "effect": taint.effect, **({"value": taint.value} if taint.value else {})}
                for taint in config.taints
            ]
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": config.name, "labels": labels},
            "spec": spec,
            "status": {
                "capacity": resources,
                "allocatable": resources,
                "addresses": [
                    {"type": "InternalIP", "address": self.host_ip},
                    {"type": "Hostname", "address": config.name},
                ],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
                "nodeInfo": {
                    "architecture": machine,
                    "operatingSystem": "linux",
                    "kernelVersion": platform.release(),
                    "osImage": "processes of this machine",
                    "containerRuntimeVersion": "trainmaster-local://0.1.0",
                    "kubeletVersion": "v1.36.0",
                    "kubeProxyVersion": "",
                    "machineID": "",
                    "systemUUID": "",
                    "bootID": "",
                },
            },
        }

    async def _renew(self) -> None:
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.node_name, "namespace": LEASE_NAMESPACE},
            "spec": {"holderIdentity": self.node_name, "leaseDurationSeconds": 40, "renewTime": _now()},
        }
        try:
            if self._api.peek(LEASES, self.node_name, LEASE_NAMESPACE) is None:
                await self._api.create(LEASES, lease, LEASE_NAMESPACE, options=self._options)
            else:
                patch = {"spec": {"renewTime": _now()}}
                await self._api.patch(LEASES, self.node_name, patch, LEASE_NAMESPACE, options=self._options)
        except ApiError as error:
            logger.warning("node %s: lease: %s", self.node_name, error)

    def _pod_changed(self, change: Change) -> None:
        pod = change.last.object
        uid = pod["metadata"]["uid"]
        if change.new is None:
            self._devices.leave(uid)
            worker = self.workers.get(uid)
            if worker:
                worker.pod = pod
                worker.forget()
            return
        self._upsert_worker(pod)

    def _upsert_worker(self, pod: Object) -> None:
        if pod["spec"].get("nodeName") != self.node_name:
            return
        uid = pod["metadata"]["uid"]
        annotation = (pod["metadata"].get("annotations") or {}).get(ANNOTATION)
        faked = self._config.fake or annotation is not None
        if faked:
            problem = self.fakes.script(uid, annotation)
            if problem:
                self.event(pod, "Warning", "InvalidFakeScript", problem)
        worker = self.workers.get(uid)
        if worker is None:
            runtime: Runtime = self.fakes if faked else self._runtime
            worker = self.workers[uid] = PodWorker(self, pod, runtime, faked)
            worker.task.add_done_callback(lambda _: self._forget(uid))
        elif worker.pod is not pod:
            # Files that follow the pod are written outside of the write that changed it.
            asyncio.get_running_loop().call_soon(worker.update)

    def _forget(self, uid: str) -> None:
        if not self._lost:
            self.workers.pop(uid, None)
        self.fakes.forget(uid)

    def _data_changed(self, change: Change) -> None:
        for worker in self.workers.values():
            if worker.pod["metadata"]["namespace"] == change.namespace:
                asyncio.get_running_loop().call_soon(worker.refresh_volumes)

    def facts(self, pod: Object, pod_ip: str) -> PodFacts:
        namespace = pod["metadata"]["namespace"]
        node = self._api.peek("nodes", self.node_name) or {}
        return PodFacts(
            pod_ip=pod_ip,
            host_ip=self.host_ip,
            node_name=self.node_name,
            allocatable=(node.get("status") or {}).get("allocatable") or {},
            config_map=lambda name: self._api.peek("configmaps", name, namespace),
            secret=lambda name: self._api.peek("secrets", name, namespace),
        )

    def pod_folder(self, pod: Object) -> Path:
        return self._folder / "pods" / str(pod["metadata"]["uid"])

    def log_path(self, pod: Object, container: str, run: int) -> Path:
        metadata = pod["metadata"]
        folder = f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"
        return self._folder / "logs" / folder / container / f"{run}.log"

    def claim_folder(self, namespace: str, claim: str) -> Path | None:
        found = self._api.peek("persistentvolumeclaims", claim, namespace)
        name = ((found or {}).get("spec") or {}).get("volumeName")
        volume = self._api.peek("persistentvolumes", name) if name else None
        source = ((volume or {}).get("spec") or {}).get("hostPath") or ((volume or {}).get("spec") or {}).get("local")
        return Path(source["path"]) if source else None

    def base_environment(self) -> dict[str, str]:
        programs = str(Path(sys.executable).parent)
        inherited = os.environ.get("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
        return {"LANG": "C.UTF-8", **passed, "PATH": f"{programs}:{inherited}"}

    def cluster_environment(self, pod: Object) -> dict[str, str]:
        host, _, port = self._server.rpartition("/")[2].partition(":")
        namespace = pod["metadata"]["namespace"]
        return {
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
            "KUBERNETES_SERVICE_PORT_HTTPS": port,
            self._hosts_variable: str(self._hosts.path(namespace)),
        }

    def kubeconfig(self, pod: Object, token_file: Path) -> str:
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {
                        "name": "local",
                        "cluster": {"server": self._server, "certificate-authority-data": self._authority},
                    }
                ],
                "users": [{"name": "pod", "user": {"tokenFile": str(token_file)}}],
                "contexts": [
                    {
                        "name": "local",
                        "context": {"cluster": "local", "user": "pod", "namespace": pod["metadata"]["namespace"]},
                    }
                ],
                "current-context": "local",
            }
        )

    async def token(self, pod: Object, audience: str, seconds: int) -> str:
        spec: dict[str, Any] = {"expirationSeconds": seconds, "audiences": [audience] if audience else []}
        metadata = pod["metadata"]
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        account = pod["spec"].get("serviceAccountName") or "default"
        answer = await self._api.create(
            "serviceaccounts", request, metadata["namespace"], name=account, subresource="token", options=self._options
        )
        return str(answer["status"]["token"])

    def admit(self, pod: Object) -> bool:
        return self._devices.admit(pod)

    def devices(self, pod: Object, container: str) -> Mapping[str, Sequence[str]]:
        return self._devices.of(pod, container)

    def release_devices(self, pod: Object) -> None:
        if self._devices.release(pod["metadata"]["uid"]):
            for worker in self.workers.values():
                # The pod may be waiting for devices.
                worker.wake()

    def allocate_address(self) -> str:
        return self._pool.allocate()

    def release_address(self, address: str) -> None:
        self._pool.release(address)

    def event(self, pod: Object, kind: str, reason: str, message: str, container: str = "", init: bool = False) -> None:
        if self._lost:
            return
        field = f"spec.{'initContainers' if init else 'containers'}{{{container}}}" if container else ""
        self._events.record(pod, kind, reason, message, field)

    def newest(self, pod: Object) -> Object | None:
        found = self._api.peek("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])
        return found if found and found["metadata"]["uid"] == pod["metadata"]["uid"] else None

    async def write_status(self, pod: Object, status: Mapping[str, Any]) -> Object | None:
        metadata = pod["metadata"]
        body = {**pod, "status": dict(status)}
        wait = 0.05
        while self.newest(pod) is not None:
            try:
                return await self._api.update(
                    "pods", body, metadata["namespace"], name=metadata["name"], subresource="status",
                    options=self._options,
                )  # fmt: skip
            except ApiError as error:
                if error.code == 404:
                    break
                if error.reason == "Conflict":
                    body = {**(self.newest(pod) or body), "status": dict(status)}
                else:
                    logger.warning("status of pod %s: %s", metadata["name"], error)
                await asyncio.sleep(wait)
                wait = min(wait * 2, 2.0)
        return None

    async def delete(self, pod: Object) -> None:
        metadata = pod["metadata"]
        options = DeleteOptions(grace_period=0, uid=metadata["uid"])
        with contextlib.suppress(ApiError):
            # If the pod is gone or another pod has its name, there is nothing to delete.
            await self._api.delete("pods", metadata["name"], metadata["namespace"], options=options)

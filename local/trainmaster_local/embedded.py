"""Runs a whole cluster in one event loop: API server, controllers, scheduler, kubelets.

    async with LocalCluster(ClusterConfig(state_dir=folder)) as cluster:
        ...  # cluster.server, cluster.kubeconfig, cluster.api, cluster.faults

`ThreadedCluster` runs a cluster beside synchronous code, on its own thread and loop.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import secrets
import shutil
import ssl
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import trustme
import yaml

from trainmaster_local.access import ClusterAuthenticator
from trainmaster_local.apiserver.api import Api
from trainmaster_local.apiserver.crd import definitions
from trainmaster_local.apiserver.http.faults import Faults
from trainmaster_local.apiserver.http.server import ApiServer
from trainmaster_local.apiserver.resources import Registry
from trainmaster_local.auth import Tokens
from trainmaster_local.config import ClusterConfig, NodeConfig
from trainmaster_local.controllers.claims import ClaimController
from trainmaster_local.controllers.garbage import GarbageCollector
from trainmaster_local.controllers.loop import Controller
from trainmaster_local.controllers.namespaces import NamespaceController
from trainmaster_local.controllers.nodes import NodeController
from trainmaster_local.controllers.retention import EventRetention
from trainmaster_local.controllers.statefulset_controller import StatefulSetController
from trainmaster_local.controllers.workloads import DeploymentController, ReplicaSetController
from trainmaster_local.events import EventRecorder
from trainmaster_local.images import BUILTIN_IMAGES, ImageTable
from trainmaster_local.kinds import BUILTIN_TYPES
from trainmaster_local.kinds.bootstrap import bootstrap
from trainmaster_local.kinds.rbac.reviews import serve_tokens
from trainmaster_local.kubelet.containers.runtime import ProcessRuntime
from trainmaster_local.kubelet.node import Kubelet
from trainmaster_local.kubelet.server import NodeServer
from trainmaster_local.network import AddressPool, HostsFiles
from trainmaster_local.private import private_folder
from trainmaster_local.scheduling.controller import SchedulerController

logger = logging.getLogger(__name__)

T = TypeVar("T")

CONTAINERS_LOCK = "containers.lock"
MEMORY_ROOT = Path("/dev/shm")
_MEMORY_PREFIX = "trainmaster-local-"


class LocalCluster:
    """`start` (or `async with`) starts the cluster, and `stop` leaves nothing behind."""

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self.token = secrets.token_urlsafe(32)
        self.server = ""
        self.kubeconfig = config.state_dir / "kubeconfig"
        self.faults = Faults()
        self.kubelets: dict[str, Kubelet] = {}
        registry = Registry()
        for type_ in BUILTIN_TYPES:
            registry.add(type_)
        self.api = Api(registry)
        self._tokens = Tokens()
        serve_tokens(registry, self._tokens)
        self._nodes = NodeServer(self.kubelets)
        self._nodes.attach(registry)
        self._http = ApiServer(
            self.api,
            authenticator=ClusterAuthenticator(self.api, self._tokens, self.token),
            authorizer=config.authorizer(self.api),
            faults=self.faults,
        )
        self._certificates = trustme.CA()
        self._runtime = ProcessRuntime()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._recorders: dict[tuple[str, str], EventRecorder] = {}
        self._definitions: definitions.Definitions | None = None
        self._pool: AddressPool | None = None
        self._hosts: HostsFiles | None = None
        self._node_numbers = 0
        self._memory = config.state_dir / "memory"

    @property
    def authority(self) -> str:
        """Returns the certificate that signed the server's: PEM in base64, as in a kubeconfig."""
        return base64.b64encode(self._certificates.cert_pem.bytes()).decode()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Starts everything; when it returns, the nodes are ready. Raises OSError if the port is in use."""
        folder = self.config.state_dir
        await asyncio.to_thread(self._clean, folder)
        self._pool = AddressPool()
        self._definitions = definitions.install(self.api)
        try:
            await self._start_controllers()
            self.server = await self._http.start("127.0.0.1", self.config.port, self._tls())
            self._hosts = HostsFiles(self.api, folder / "hosts")
            self._spawn("hosts", self._hosts.run())
            self._write_kubeconfig()
            for node in self.config.nodes:
                await self.add_node(node)
        except BaseException:
            await self.stop()
            raise

    def _tls(self) -> ssl.SSLContext:
        """Returns the context of a server certificate with its own CA.

        client-go sends bearer tokens over TLS only.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        names = ("127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        self._certificates.issue_cert(*names).configure_cert(context)
        return context

    async def _start_controllers(self) -> None:
        api = self.api
        namespaces = NamespaceController(api, self._certificates.cert_pem.bytes().decode())
        claims = ClaimController(api, self._recorder("persistentvolume-controller"), self.config.state_dir / "volumes")
        controllers: list[Controller] = [
            namespaces,
            claims,
            GarbageCollector(api),
            StatefulSetController(api, self._recorder("statefulset-controller")),
            ReplicaSetController(api, self._recorder("replicaset-controller")),
            DeploymentController(api, self._recorder("deployment-controller")),
            NodeController(api, self._recorder("node-controller"), self.config.node_timings),
        ]
        await bootstrap(api)
        await namespaces.create_system_namespaces()
        await claims.create_class()
        for controller in controllers:
            self._spawn(type(controller).__name__, controller.run())
        scheduler = SchedulerController(api, self._recorder("default-scheduler", series=True))
        self._spawn("scheduler", scheduler.run())
        self._spawn("events", EventRetention(api).run())

    def _recorder(self, component: str, host: str = "", series: bool = False) -> EventRecorder:
        key = (component, host)
        if key not in self._recorders:
            self._recorders[key] = EventRecorder(self.api, component, host, series)
            self._spawn(f"events of {component} {host}", self._recorders[key].run())
        return self._recorders[key]

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and task.exception() is not None:
                logger.error("%s ended", name, exc_info=task.exception())

        task = asyncio.create_task(work, name=name)
        task.add_done_callback(ended)
        self._tasks[name] = task

    async def add_node(self, config: NodeConfig) -> Kubelet:
        """Adds a node."""
        if self._pool is None or self._hosts is None:
            raise RuntimeError("the cluster isn't started")
        address = self._pool.node(self._node_numbers)
        self._node_numbers += 1
        images = ImageTable((*self.config.images, *BUILTIN_IMAGES))
        kubelet = Kubelet(
            self.api,
            config,
            folder=self.config.state_dir,
            address=address,
            server=self.server,
            authority=self.authority,
            runtime=self._runtime,
            images=images,
            hosts_variable=self.config.hosts_variable,
            pool=self._pool,
            hosts=self._hosts,
            events=self._recorder("kubelet", config.name),
            timings=self.config.kubelet,
            node_timings=self.config.node_timings,
            memory_folder=self._memory,
        )
        await kubelet.start()
        self.kubelets[config.name] = kubelet
        self._spawn(f"node {config.name}", kubelet.run())
        return kubelet

    async def remove_node(self, name: str) -> None:
        """Removes a node's machine with its processes, and its Node object."""
        kubelet = self.kubelets.pop(name)
        self._tasks.pop(f"node {name}").cancel()
        await kubelet.lose(kill=True)
        await self.api.delete("nodes", name)

    async def lose_node(self, name: str, *, kill: bool = True) -> None:
        """Makes a node unreachable; with `kill` its processes end, else they continue unobserved."""
        await self.kubelets[name].lose(kill=kill)

    async def recover_node(self, name: str) -> None:
        """Makes a lost node reachable again."""
        await self.kubelets[name].recover()

    def drop_watches(self) -> None:
        """Ends every client's open watch; clients may open them again at once."""
        self._http.drop_watches()

    async def stop(self) -> None:
        """Ends every process and task."""
        await self._http.stop()
        for kubelet in self.kubelets.values():
            await kubelet.stop()
        await self._runtime.close()
        await self._nodes.close()
        if self._definitions is not None:
            await self._definitions.stop()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        if self._pool is not None:
            self._pool.close()
        await asyncio.to_thread(shutil.rmtree, self._memory, ignore_errors=True)
        self.kubeconfig.unlink(missing_ok=True)

    def _clean(self, folder: Path) -> None:
        """Removes an earlier cluster's remains from the folder (except volumes) and from the machine's memory."""
        private_folder(folder)
        self._runtime.hold(folder / CONTAINERS_LOCK)
        for name in ("pods", "logs", "hosts", "memory"):
            shutil.rmtree(folder / name, ignore_errors=True)
        if MEMORY_ROOT.is_dir() and os.access(MEMORY_ROOT, os.W_OK):
            for left in MEMORY_ROOT.glob(f"{_MEMORY_PREFIX}*"):
                if not Path("/proc", left.name.removeprefix(_MEMORY_PREFIX).partition("-")[0]).exists():
                    shutil.rmtree(left, ignore_errors=True)
            self._memory = MEMORY_ROOT / f"{_MEMORY_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        self._memory.mkdir(mode=0o700)

    def _write_kubeconfig(self) -> None:
        text = yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {
                        "name": "trainmaster-local",
                        "cluster": {"server": self.server, "certificate-authority-data": self.authority},
                    }
                ],
                "users": [{"name": "admin", "user": {"token": self.token}}],
                "contexts": [
                    {
                        "name": "trainmaster-local",
                        "context": {"cluster": "trainmaster-local", "user": "admin", "namespace": "default"},
                    }
                ],
                "current-context": "trainmaster-local",
            },
            sort_keys=False,
        )
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(text)


class ThreadedCluster:
    """This class runs a `LocalCluster` on its own thread, for tests and scripts.

    `call` runs one of the cluster's coroutines and waits for its result.

    with ThreadedCluster(config) as threaded:
        threaded.call(threaded.cluster.lose_node("local-1"))
    """

    def __init__(self, config: ClusterConfig) -> None:
        self.cluster = LocalCluster(config)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="local-cluster", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.call(self.cluster.start(), timeout=60)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._thread.join, 10)
            stack.callback(self._loop.call_soon_threadsafe, self._loop.stop)
            self.call(self.cluster.stop(), timeout=30)

    def call(self, work: Coroutine[Any, Any, T], timeout: float = 30.0) -> T:
        """Runs a coroutine in the cluster's loop. Raises TimeoutError after `timeout` seconds."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

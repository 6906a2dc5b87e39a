"""Provides addresses and names without a network.

Every pod has its own address in 127.0.0.0/8, and a hosts file maps names to these addresses.

A cluster owns one /16 of the loopback network, by a name that only one process can hold. So two clusters on one machine
never share addresses, and a killed cluster's addresses are free again. There is no DNS, so `HostsFiles` keeps a file in
the format of /etc/hosts for each namespace, with the names that DNS would answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainmaster_local.apiserver.api import Api
from trainmaster_local.apiserver.storage.store import Change
from trainmaster_local.controllers.pods import is_finished, is_ready

Object = Mapping[str, Any]


class AddressPool:
    """The pool contains the addresses 127.<block>.1.0 to 127.<block>.255.254; nodes have 127.<block>.0.<n>.

    A released address is allocated again as late as possible, so that a pod's successor gets another address. Raises
    OSError if all blocks are in use.
    """

    def __init__(self, first: int | None = None) -> None:
        blocks = list(range(1, 255))
        random.shuffle(blocks)
        if first is not None:
            blocks.insert(0, first)
        for block in blocks:
            # An abstract name of unix(7) belongs to a network namespace, like the loopback. A port wouldn't work: a
            # real node's kubelet, say, listens on it at every address.
            claim = socket.socket(socket.AF_UNIX)
            try:
                claim.bind(f"\0trainmaster-local/127.{block}")
            except OSError:
                claim.close()
                continue
            self.block, self._claim = block, claim
            break
        else:
            raise OSError(errno.EADDRINUSE, "every block of 127.0.0.0/8 is held by another local cluster")
        self._next = 0
        self._free: deque[str] = deque()

    def node(self, number: int) -> str:
        """Returns the address of the node with this number, from 0."""
        return f"127.{self.block}.0.{number + 1}"

    def allocate(self) -> str:
        if self._next < 255 * 254:
            third, fourth = divmod(self._next, 254)
            self._next += 1
            return f"127.{self.block}.{third + 1}.{fourth + 1}"
        if not self._free:
            raise OSError(errno.EADDRNOTAVAIL, "more than 64,770 pods run at once")
        return self._free.popleft()

    def release(self, address: str) -> None:
        self._free.append(address)

    def close(self) -> None:
        self._claim.close()


class HostsFiles:
    """Each namespace has a hosts file, which is rewritten soon after any relevant change.

    A pod is listed as in DNS, by `<hostname>.<service>`, if a headless Service selects it and is named as its
    subdomain. It is listed once it is ready, or at once if the Service publishes addresses that aren't ready
    (`pkg/controller/endpoint`, docs: "DNS for Services and Pods"). Finished pods aren't listed.
    """

    def __init__(self, api: Api, folder: Path) -> None:
        self._api = api
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._dirty: set[str] = set()
        self._wake = asyncio.Event()
        self._written: dict[str, str] = {}
        self._ends = [api.storage.subscribe(resource, self._changed) for resource in ("pods", "services")]
        for resource in ("pods", "services"):
            for obj in api.peek_all(resource):
                self._dirty.add(obj["metadata"]["namespace"])
        self._wake.set()

    def path(self, namespace: str) -> Path:
        """Returns the path of a namespace's file, which exists from then on."""
        path = self._folder / namespace
        if not path.exists():
            self._write(namespace)
        return path

    def _changed(self, change: Change) -> None:
        old, new = change.old, change.new
        if old is not None and new is not None and _facts(old.object) == _facts(new.object):
            return
        self._dirty.add(change.namespace)
        self._wake.set()

    async def run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                dirty, self._dirty = self._dirty, set()
                began = time.monotonic()
                for namespace in dirty:
                    self._write(namespace)
                # Many pods change at once, so their names are written together. Thousands of them take tens of
                # milliseconds to write, which must not become most of the cluster's work.
                await asyncio.sleep(max(0.02, 9 * (time.monotonic() - began)))
        finally:
            for end in self._ends:
                end()

    def _write(self, namespace: str) -> None:
        text = hosts_text(self._api.peek_all("services", namespace), self._api.peek_all("pods", namespace), namespace)
        if self._written.get(namespace) == text:
            return
        path = self._folder / namespace
        temporary = self._folder / f".{namespace}.tmp"
        with contextlib.suppress(FileNotFoundError):
            # The folder is deleted with the cluster, but a late change may still arrive.
            temporary.write_text(text)
            temporary.replace(path)
            self._written[namespace] = text


def _facts(obj: Object) -> tuple[Any, ...]:
    """Returns the facts of an object that the hosts file depends on."""
    if obj["kind"] == "Service":
        return (obj["spec"],)
    status, spec = obj.get("status") or {}, obj["spec"]
    labels = obj["metadata"].get("labels")
    return (status.get("podIP"), is_finished(obj), is_ready(obj), spec.get("hostname"), spec.get("subdomain"), labels)


def hosts_text(services: Sequence[Object], pods: Sequence[Object], namespace: str) -> str:
    """Returns the file's text: one line for each name's address, in `/etc/hosts` format."""
    lines = ["127.0.0.1 localhost"]
    # Indexed by label: with a thousand services of four pods each, comparing every service with every pod would take
    # seconds.
    labelled: dict[tuple[str, str], list[Object]] = {}
    for pod in pods:
        if (pod.get("status") or {}).get("podIP") and not is_finished(pod):
            for label in (pod["metadata"].get("labels") or {}).items():
                labelled.setdefault(label, []).append(pod)
    for service in services:
        spec, name = service["spec"], service["metadata"]["name"]
        selector = spec.get("selector") or {}
        if not selector:
            continue
        for pod in min((labelled.get(label, []) for label in selector.items()), key=len):
            address, labels = pod["status"]["podIP"], pod["metadata"]["labels"]
            if any(labels.get(k) != v for k, v in selector.items()):
                continue
            if not spec.get("publishNotReadyAddresses") and not is_ready(pod):
                continue
            names = []
            if pod["spec"].get("subdomain") == name and pod["spec"].get("hostname"):
                names += _names(f"{pod['spec']['hostname']}.{name}", namespace)
            if spec.get("clusterIP") == "None":
                names += _names(name, namespace)
            if names:
                lines.append(f"{address} {' '.join(names)}")
    return "\n".join(lines) + "\n"


def _names(name: str, namespace: str) -> list[str]:
    return [f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local", f"{name}.{namespace}", name]

"""Fills new namespaces and empties deleted ones.

Every namespace has the ServiceAccount `default` and the ConfigMap `kube-root-ca.crt`. A deleted namespace is emptied
first: all of its objects are deleted. Then the finalizer `kubernetes` is removed, which deletes the namespace
(`pkg/controller/namespace/deletion/namespaced_resources_deleter.go`).
"""

from __future__ import annotations

from trainmaster_local.apiserver.api import Api
from trainmaster_local.controllers.loop import Controller, Key, Object
from trainmaster_local.controllers.pods import is_terminating

SYSTEM_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_RETRY_SECONDS = 0.2


class NamespaceController(Controller):
    """This controller is `pkg/controller/namespace`, `serviceaccount` and `certificates/rootcacertpublisher`."""

    def __init__(self, api: Api, root_certificate: str = "") -> None:
        super().__init__(api)
        self._root_certificate = root_certificate
        self.watch("namespaces", lambda obj: (("", obj["metadata"]["name"]),))
        for resource in ("serviceaccounts", "configmaps"):
            self.watch(resource, self._namespace_of_own)

    @staticmethod
    def _namespace_of_own(obj: Object) -> tuple[Key, ...]:
        own = obj["metadata"]["name"] in ("default", "kube-root-ca.crt")
        return (("", obj["metadata"]["namespace"]),) if own else ()

    async def create_system_namespaces(self) -> None:
        """Creates the namespaces that every cluster has, with their content."""
        for name in SYSTEM_NAMESPACES:
            if self.api.peek("namespaces", name) is None:
                namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
                await self.api.create("namespaces", namespace, options=self.options)
                await self.reconcile(("", name))

    async def reconcile(self, key: Key) -> float | None:
        namespace = self.api.peek("namespaces", key[1])
        if namespace is None:
            return None
        if is_terminating(namespace):
            return await self._empty(key[1])
        if self.api.peek("serviceaccounts", "default", key[1]) is None:
            account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
            await self.api.create("serviceaccounts", account, key[1], options=self.options)
        if self.api.peek("configmaps", "kube-root-ca.crt", key[1]) is None:
            config_map = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": "kube-root-ca.crt",
                    "annotations": {"kubernetes.io/description": "The local cluster is served without TLS."},
                },
                "data": {"ca.crt": self._root_certificate},
            }
            await self.api.create("configmaps", config_map, key[1], options=self.options)
        return None

    async def _empty(self, name: str) -> float | None:
        left = False
        for type_ in {t.qualified: t for t in self.api.registry if t.namespaced and "delete" in t.verbs}.values():
            objects = self.api.peek_all(type_.qualified, name)
            if any(not is_terminating(obj) for obj in objects):
                await self.api.delete_collection(type_.qualified, name)
            left = left or bool(self.api.peek_all(type_.qualified, name))
        if left:
            return _RETRY_SECONDS
        namespace = self.api.peek("namespaces", name)
        if namespace is not None:
            body = {**namespace, "spec": {"finalizers": []}}
            await self.api.update("namespaces", body, name=name, subresource="finalize", options=self.options)
        return None

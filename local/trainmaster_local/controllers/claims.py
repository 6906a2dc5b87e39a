"""Provides folders for PersistentVolumeClaims, like the provisioner rancher.io/local-path.

A claim is bound to its own volume without waiting for a pod. The volume is a folder below the cluster's state folder,
named after the claim. The folder outlives pods, nodes and the cluster itself: a claim of the same name finds its files
again after a restart of the cluster. The folder is removed when the claim is deleted while the cluster runs (reclaim
policy Delete).
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainmaster_local.apiserver.api import Api
from trainmaster_local.controllers.loop import Controller, Key
from trainmaster_local.controllers.pods import is_terminating
from trainmaster_local.events import EventRecorder

Object = Mapping[str, Any]

CLASS = "local-path"
PROVISIONER = "trainmaster-local/path"
CLAIMS, VOLUMES, CLASSES = "persistentvolumeclaims", "persistentvolumes", "storageclasses.storage.k8s.io"


class ClaimController(Controller):
    """This controller is `pkg/controller/volume/persistentvolume` with its one provisioner."""

    def __init__(self, api: Api, events: EventRecorder, folder: Path) -> None:
        super().__init__(api)
        self._events = events
        self._folder = folder
        self.watch(CLAIMS)
        # A deleted claim queues the volume that it was bound to.
        self.watch(
            CLAIMS, lambda claim: (("", claim["spec"]["volumeName"]),) if claim["spec"].get("volumeName") else ()
        )
        self.watch(VOLUMES, lambda volume: (("", volume["metadata"]["name"]),))

    async def create_class(self) -> None:
        """Creates the default StorageClass."""
        if self.api.peek(CLASSES, CLASS) is None:
            await self.api.create(
                CLASSES,
                {
                    "apiVersion": "storage.k8s.io/v1",
                    "kind": "StorageClass",
                    "metadata": {
                        "name": CLASS,
                        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
                    },
                    "provisioner": PROVISIONER,
                    "reclaimPolicy": "Delete",
                    "volumeBindingMode": "WaitForFirstConsumer",
                },
                options=self.options,
            )

    async def reconcile(self, key: Key) -> float | None:
        namespace, name = key
        if not namespace:
            await self._reclaim(name)
            return None
        claim = self.api.peek(CLAIMS, name, namespace)
        if claim is None or is_terminating(claim) or (claim.get("status") or {}).get("phase") == "Bound":
            return None
        volume = self._static_volume(claim)
        if volume is None:
            if claim["spec"].get("storageClassName") not in (CLASS, "standard", None):
                return None
            volume = await self._provision(claim)
        await self._bind(claim, volume)
        return None

    def _static_volume(self, claim: Object) -> Object | None:
        """Returns a user's volume that this claim names, or that names the claim."""
        wanted = claim["spec"].get("volumeName")
        for volume in self.api.peek_all(VOLUMES):
            reference = volume["spec"].get("claimRef") or {}
            ours = (reference.get("namespace"), reference.get("name")) == (
                claim["metadata"]["namespace"],
                claim["metadata"]["name"],
            )
            if volume["metadata"]["name"] == wanted or ours:
                return volume
        return None

    async def _provision(self, claim: Object) -> Object:
        metadata = claim["metadata"]
        path = self._folder / f"{metadata['namespace']}_{metadata['name']}"
        await asyncio.to_thread(path.mkdir, parents=True, exist_ok=True)
        name = f"pvc-{metadata['uid']}"
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER}},
            "spec": {
                "capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]},
                "accessModes": claim["spec"]["accessModes"],
                "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": claim["spec"].get("storageClassName") or CLASS,
                "volumeMode": "Filesystem",
                "hostPath": {"path": str(path), "type": "DirectoryOrCreate"},
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": metadata["namespace"],
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                },
            },
        }
        made = await self.api.create(VOLUMES, volume, options=self.options)
        message = f"Successfully provisioned volume {name}"
        self._events.record(claim, "Normal", "ProvisioningSucceeded", message)
        return made

    async def _bind(self, claim: Object, volume: Object) -> None:
        metadata, name = claim["metadata"], volume["metadata"]["name"]
        patch = {"spec": {"volumeName": name}}
        await self.api.patch(CLAIMS, metadata["name"], patch, metadata["namespace"], options=self.options)
        bound = {
            "status": {
                "phase": "Bound",
                "accessModes": volume["spec"]["accessModes"],
                "capacity": volume["spec"]["capacity"],
            }
        }
        await self.api.patch(
            CLAIMS, metadata["name"], bound, metadata["namespace"], subresource="status", options=self.options
        )
        await self.api.patch(VOLUMES, name, {"status": {"phase": "Bound"}}, subresource="status", options=self.options)

    async def _reclaim(self, name: str) -> None:
        """Removes a provisioned volume and its folder once the claim is gone."""
        volume = self.api.peek(VOLUMES, name)
        reference = (volume or {}).get("spec", {}).get("claimRef") or {}
        if volume is None or not reference:
            return
        claim = self.api.peek(CLAIMS, reference["name"], reference["namespace"])
        if claim is not None and claim["metadata"]["uid"] == reference.get("uid", claim["metadata"]["uid"]):
            return
        provisioned = (volume["metadata"].get("annotations") or {}).get(
            "pv.kubernetes.io/provisioned-by"
        ) == PROVISIONER
        if provisioned and volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete":
            path = Path(volume["spec"]["hostPath"]["path"])
            # Users can change a volume's path, so only folders provisioned here are removed.
            if claim is None and path.parent == self._folder:
                await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
            await self.api.delete(VOLUMES, name)
        elif (volume.get("status") or {}).get("phase") != "Released":
            await self.api.patch(
                VOLUMES, name, {"status": {"phase": "Released"}}, subresource="status", options=self.options
            )

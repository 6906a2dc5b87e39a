"""Provides a pod's volumes as folders.

emptyDir, configMap, secret, downwardAPI, projected, hostPath and persistentVolumeClaim are supported; any other kind
fails the mount with a message. Volumes with the content of API objects are written atomically (`atomic`), and rewritten
whenever `refresh` finds a change. Without a mount namespace a process can't use a mount path, so `paths` replaces it by
the folder's path.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainmaster_local.kubelet.atomic import Content, write_atomically
from trainmaster_local.kubelet.containers.environment import (
    ConfigError,
    PodFacts,
    decode,
    expand,
    field_value,
    resource_value,
)
from trainmaster_local.private import make_private

Object = Mapping[str, Any]

_SHOWN = ("configMap", "secret", "downwardAPI", "projected")


class MountError(Exception):
    """A volume can't be set up yet; the text is that of the FailedMount event."""


class ClaimNotBoundError(MountError):
    """The volume's claim will be bound in a moment; a real cluster would only then place the pod on a node."""


@dataclass(frozen=True)
class Sources:
    """Volumes have these sources.

    `token` issues a token of the pod's account for `(audience, seconds)`. `claim` returns a claim's folder, or None
    while the claim isn't bound. `memory` is the place of memory-backed folders. `rewrite` is applied to ConfigMaps'
    text, because a process here can't use container paths.
    """

    facts: PodFacts
    token: Callable[[str, int], Awaitable[str]]
    claim: Callable[[str], Path | None]
    memory: Path
    rewrite: Callable[[str], str] = lambda text: text


class PodVolumes:
    """This class manages the volumes of one pod below `folder`."""

    def __init__(self, pod: Object, folder: Path, sources: Sources) -> None:
        self._folder = folder
        self._sources = sources
        self._specs: dict[str, Object] = {volume["name"]: volume for volume in pod["spec"].get("volumes") or []}
        self._hosts: dict[str, Path] = {}
        self._tokens: dict[tuple[str, int], str] = {}
        self._tokens_due = float("inf")
        self._memory = sources.memory / str(pod["metadata"]["uid"])

    def use(self, rewrite: Callable[[str], str]) -> None:
        """Sets how container paths in ConfigMaps are rewritten, which is known once the folders are chosen."""
        self._sources = replace(self._sources, rewrite=rewrite)

    def place(self) -> None:
        """Chooses each volume's folder. Raises MountError for an unsupported kind."""
        for name, volume in self._specs.items():
            kind = next((key for key in volume if key != "name"), "emptyDir")
            if kind == "emptyDir":
                memory = (volume["emptyDir"] or {}).get("medium") == "Memory" if "emptyDir" in volume else False
                self._hosts[name] = self._memory / name if memory else self._folder / name
            elif kind == "hostPath":
                self._hosts[name] = Path(volume["hostPath"]["path"])
            elif kind == "persistentVolumeClaim":
                claim = volume[kind]["claimName"]
                found = self._sources.claim(claim)
                if found is None:
                    raise ClaimNotBoundError(f'persistentvolumeclaim "{claim}" isn\'t bound yet')
                self._hosts[name] = found
            elif kind in _SHOWN:
                self._hosts[name] = self._folder / name
            else:
                raise MountError(
                    f'MountVolume.SetUp failed for volume "{name}" : {kind} isn\'t part of a local cluster'
                )

    async def mount(self, pod: Object) -> None:
        """Creates all volumes. Raises MountError in the words of the FailedMount event."""
        for name, volume in self._specs.items():
            if not any(key in volume for key in _SHOWN):
                path = self._hosts[name]
                if "hostPath" in volume:
                    self._check_host_path(name, volume["hostPath"])
                    continue
                path.mkdir(parents=True, exist_ok=True)
                # The folder is world-writable as in a pod; the folders above it are private and restrict access.
                path.chmod(0o777)
        await self._fetch_tokens()
        self.refresh(pod)

    def refresh(self, pod: Object) -> None:
        """Writes the volumes whose API objects changed. Raises MountError."""
        for name, volume in self._specs.items():
            kind = next((key for key in _SHOWN if key in volume), None)
            if kind is None:
                continue
            try:
                files = self._files(pod, kind, volume[kind])
                write_atomically(self._hosts[name], files)
            except (ConfigError, ValueError) as error:
                raise MountError(f'MountVolume.SetUp failed for volume "{name}" : {error}') from error

    def host_path(self, mount: Object, variables: Mapping[str, str]) -> Path:
        """Returns the folder or file of a container's mount."""
        path = self._hosts[mount["name"]]
        sub = mount.get("subPath") or expand(mount.get("subPathExpr") or "", variables)
        if sub:
            path = path / sub
            if not path.exists():
                path.mkdir(parents=True)
        return path

    def mounted_at(self, pod: Object, container: Object, variables: Mapping[str, str]) -> dict[str, Path]:
        """Returns one container's host paths by mount path. Raises ConfigError for a missing volume."""
        found: dict[str, Path] = {}
        for mount in container.get("volumeMounts") or []:
            if mount["name"] not in self._hosts:
                raise ConfigError(f'cannot find volume "{mount["name"]}" to mount into container "{container["name"]}"')
            found[mount["mountPath"]] = self.host_path(mount, variables)
        return found

    def token_file(self, container: Object) -> Path | None:
        """Returns the service account token that a container has at the usual path."""
        for mount in container.get("volumeMounts") or []:
            volume = self._specs.get(mount["name"]) or {}
            for source in (volume.get("projected") or {}).get("sources") or []:
                if "serviceAccountToken" in source:
                    return self._hosts[mount["name"]] / str(source["serviceAccountToken"]["path"])
        return None

    def remove(self) -> None:
        """Removes the created folders; claims and host paths stay."""
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.rmtree(self._memory, ignore_errors=True)

    @staticmethod
    def _check_host_path(name: str, source: Object) -> None:
        path, kind = Path(source["path"]), source.get("type") or ""
        if kind == "DirectoryOrCreate":
            make_private(path)
        elif kind == "FileOrCreate":
            path.touch(mode=0o600)
        wrong = {"Directory": not path.is_dir(), "File": not path.is_file(), "Socket": not path.is_socket()}
        if wrong.get(kind):
            problem = f"hostPath type check failed: {path} is not {'an' if kind[0] in 'AEIOU' else 'a'} {kind.lower()}"
            raise MountError(f'MountVolume.SetUp failed for volume "{name}" : {problem}')

    async def renew_tokens(self, pod: Object, now: float) -> None:
        """Replaces service account tokens after four fifths of their lifetime (`pkg/kubelet/token`)."""
        if self._tokens and now > self._tokens_due:
            await self._fetch_tokens()
            self.refresh(pod)

    async def _fetch_tokens(self) -> None:
        self._tokens_due = float("inf")
        for volume in self._specs.values():
            for source in (volume.get("projected") or {}).get("sources") or []:
                wanted = source.get("serviceAccountToken")
                if wanted:
                    audience, seconds = wanted.get("audience") or "", int(wanted.get("expirationSeconds") or 3600)
                    self._tokens[audience, seconds] = await self._sources.token(audience, seconds)
                    self._tokens_due = min(self._tokens_due, time.monotonic() + 0.8 * seconds)

    def _files(self, pod: Object, kind: str, source: Object) -> dict[str, Content]:
        mode = int(source.get("defaultMode", 0o644))
        if kind == "projected":
            files: dict[str, Content] = {}
            for part in source.get("sources") or []:
                files.update(self._projected(pod, part, mode))
            return files
        return self._single(pod, kind, source, mode)

    def _projected(self, pod: Object, part: Object, mode: int) -> dict[str, Content]:
        token = part.get("serviceAccountToken")
        if token:
            key = (token.get("audience") or "", int(token.get("expirationSeconds") or 3600))
            return {str(token["path"]): Content(self._tokens.get(key, "").encode(), 0o600)}
        for kind in ("configMap", "secret", "downwardAPI"):
            if kind in part:
                source = part[kind]
                if kind == "secret":
                    source = {**source, "secretName": source.get("name")}
                return self._single(pod, kind, source, mode)
        return {}

    def _single(self, pod: Object, kind: str, source: Object, mode: int) -> dict[str, Content]:
        if kind == "downwardAPI":
            return {str(item["path"]): self._downward(pod, item, mode) for item in source.get("items") or []}
        facts = self._sources.facts
        if kind == "configMap":
            name, title, found = source["name"], "configmap", facts.config_map(source["name"])
        else:
            name, title, found = source["secretName"], "secret", facts.secret(source["secretName"])
        if found is None:
            # Another distribution's counterpart of kube-root-ca.crt is optional in projected token volumes.
            if source.get("optional") or name == "openshift-service-ca.crt":
                return {}
            raise ConfigError(f'{title} "{name}" not found')
        data = self._data(found)
        items = source.get("items")
        if not items:
            return {key: Content(value, mode) for key, value in data.items()}
        files: dict[str, Content] = {}
        for item in items:
            if item["key"] in data:
                files[str(item["path"])] = Content(data[item["key"]], int(item.get("mode", mode)))
            elif not source.get("optional"):
                raise ConfigError(
                    f"references non-existent {'config' if title == 'configmap' else title} key: {item['key']}"
                )
        return files

    def _data(self, obj: Object) -> dict[str, bytes]:
        if obj.get("kind") == "Secret":
            return {key: decode(value) for key, value in (obj.get("data") or {}).items()}
        text = {key: self._sources.rewrite(str(value)).encode() for key, value in (obj.get("data") or {}).items()}
        binary = {key: decode(value) for key, value in (obj.get("binaryData") or {}).items()}
        return {**text, **binary}

    def _downward(self, pod: Object, item: Object, mode: int) -> Content:
        facts = self._sources.facts
        if "fieldRef" in item:
            value = field_value(pod, item["fieldRef"]["fieldPath"], facts)
        else:
            reference = item["resourceFieldRef"]
            value = resource_value(pod, reference, reference.get("containerName", ""), facts.allocatable)
        return Content(value.encode(), int(item.get("mode", mode)))

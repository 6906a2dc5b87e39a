"""Turns a container's manifest into a program to run: paths, environment, command."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainmaster_local.devices import visibility
from trainmaster_local.images import Image
from trainmaster_local.kubelet.containers.environment import environment, expand
from trainmaster_local.kubelet.containers.paths import PathMap
from trainmaster_local.kubelet.containers.runtime import ContainerConfig
from trainmaster_local.kubelet.host import PodHost
from trainmaster_local.kubelet.volumes import PodVolumes
from trainmaster_local.quantities import parse_quantity

Object = Mapping[str, Any]


@dataclass(frozen=True)
class Launch:
    """A launch is a container ready to run. Its folder `root` is its home and working directory."""

    config: ContainerConfig
    paths: PathMap
    termination_log: Path
    root: Path


def prepare(
    host: PodHost, pod: Object, container: Object, image: Image, volumes: PodVolumes, pod_ip: str, run: int
) -> Launch:
    """Returns the launch of a container. Raises ConfigError in the words of CreateContainerConfigError."""
    name = container["name"]
    folder = host.pod_folder(pod)
    root = folder / "containers" / name
    (root / "tmp").mkdir(parents=True, exist_ok=True)
    termination_log = root / f"termination-log-{run}"
    termination_log.write_bytes(b"")

    cluster = host.cluster_environment(pod)
    asked = environment(pod, container, host.facts(pod, pod_ip), cluster)
    paths: dict[str, Path] = {path: root / target for path, target in image.paths.items()}
    paths |= volumes.mounted_at(pod, container, asked)
    paths[container.get("terminationMessagePath") or "/dev/termination-log"] = termination_log
    mapped = PathMap(paths)

    own = {
        "HOME": str(root),
        "TMPDIR": str(_short(root / "tmp", host.memory_folder)),
        "HOSTNAME": pod["spec"].get("hostname") or pod["metadata"]["name"],
    }
    token_file = volumes.token_file(container)
    if token_file:
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(host.kubeconfig(pod, token_file))
        own["KUBECONFIG"] = str(kubeconfig)
    env = {
        **host.base_environment(),
        **image.env,
        **own,
        # The cluster's own variables contain this machine's paths already; a mount at /tmp must not change them.
        **{key: value if cluster.get(key) == value else mapped.rewrite(value) for key, value in asked.items()},
        **visibility(host.devices(pod, name), asked),
    }

    command = container.get("command") or list(image.command)
    argv = [mapped.rewrite(expand(str(word), asked)) for word in [*command, *(container.get("args") or [])]]
    cwd = mapped.rewrite(container["workingDir"]) if container.get("workingDir") else str(root)
    if not Path(cwd).is_dir():
        # containerd creates a working directory that the image lacks.
        fallback = root / cwd.lstrip("/")
        fallback.mkdir(parents=True, exist_ok=True)
        cwd = str(fallback)
    limit = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    log = host.log_path(pod, name, run)
    log.parent.mkdir(parents=True, exist_ok=True)
    config = ContainerConfig(
        argv=argv,
        env=env,
        cwd=cwd,
        log=str(log),
        memory=int(parse_quantity(limit)) if limit else 0,
        pod_uid=pod["metadata"]["uid"],
        name=name,
    )
    return Launch(config, mapped, termination_log, root)


def _short(folder: Path, links: Path) -> Path:
    """Returns a short name for a container's temporary folder.

    It is /tmp itself inside a container, and a long path on this machine. Programs bind sockets there, and a socket's
    name has at most 107 characters (unix(7)): Python's multiprocessing, and so torch's data loaders, add 32 to TMPDIR.
    """
    link = links / f"tmp-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"
    if len(str(link)) >= len(str(folder)):
        return folder
    links.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(folder)
    return link


def rewriter_of(pod: Object, volumes: PodVolumes) -> PathMap:
    """Returns the mounts of all of a pod's containers, which rewrite the text of ConfigMaps."""
    paths: dict[str, Path] = {}
    for container in [*(pod["spec"].get("initContainers") or []), *(pod["spec"].get("containers") or [])]:
        for mount in container.get("volumeMounts") or []:
            if not mount.get("subPath") and not mount.get("subPathExpr"):
                paths.setdefault(mount["mountPath"], volumes.host_path(mount, {}))
    return PathMap(paths)

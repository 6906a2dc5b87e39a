"""Discovery publishes the served groups, versions and resources, in the old form and the aggregated one."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from typing import Any

from trainmaster_local.apiserver.resources import Registry, ResourceType

_CUSTOM_ORDER = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
_STATUS_VERBS = ["get", "patch", "update"]

VERSION = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.2+trainmaster-local",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}
"""The answer at /version: the Kubernetes release that this server imitates, and that it is only an imitation."""


def groups_of(registry: Registry) -> dict[str, dict[str, list[ResourceType]]]:
    """Returns all types by group and version, with the groups in the order of their names."""
    found: dict[str, dict[str, list[ResourceType]]] = {}
    for type_ in sorted(registry, key=lambda t: (t.group, _version_rank(t.version), t.plural)):
        found.setdefault(type_.group, {}).setdefault(type_.version, []).append(type_)
    return found


def _version_rank(version: str) -> tuple[int, int, int, str]:
    """Returns a version's rank in Kubernetes' order: v2, v1, v1beta1, v1alpha1, then others by name."""
    digits = version[1:]
    for rank, marker in ((0, ""), (1, "beta"), (2, "alpha")):
        major, _, minor = digits.partition(marker) if marker else (digits, "", "0")
        if version.startswith("v") and major.isdecimal() and minor.isdecimal():
            return rank, -int(major), -int(minor), ""
    return 3, 0, 0, version


def api_versions(address: str) -> dict[str, Any]:
    """Returns the document of /api."""
    server = {"clientCIDR": "0.0.0.0/0", "serverAddress": address}
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [server]}


def api_group(group: str, versions: Iterable[str]) -> dict[str, Any]:
    """Returns the document of /apis/GROUP, without kind and apiVersion."""
    listed = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": listed, "preferredVersion": listed[0]}


def api_group_list(registry: Registry) -> dict[str, Any]:
    """Returns the document of /apis."""
    groups = [api_group(group, versions) for group, versions in groups_of(registry).items() if group]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def verbs_of(type_: ResourceType) -> list[str]:
    if type_.custom:
        return [verb for verb in _CUSTOM_ORDER if verb in type_.verbs]
    return sorted(type_.verbs)


def _storage_hash(type_: ResourceType) -> str:
    digest = hashlib.sha256(f"{type_.group}/{type_.version}/{type_.kind}".encode()).digest()
    return base64.b64encode(digest[:8]).decode()


def resource_list(group: str, version: str, types: list[ResourceType]) -> dict[str, Any]:
    """Returns the document of /apis/GROUP/VERSION or /api/v1."""
    resources = []
    for type_ in types:
        entry: dict[str, Any] = {
            "name": type_.plural,
            "singularName": type_.singular,
            "namespaced": type_.namespaced,
            "kind": type_.kind,
            "verbs": verbs_of(type_),
        }
        if type_.short_names:
            entry["shortNames"] = list(type_.short_names)
        if type_.categories:
            entry["categories"] = list(type_.categories)
        if type_.answer is None:
            entry["storageVersionHash"] = _storage_hash(type_)
        resources.append(entry)
        resources += _subresource_entries(type_)
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": resources,
    }


def _subresource_entries(type_: ResourceType) -> list[dict[str, Any]]:
    entries = []
    base = {"singularName": "", "namespaced": type_.namespaced}
    if type_.has_status:
        entries.append({"name": f"{type_.plural}/status", **base, "kind": type_.kind, "verbs": _STATUS_VERBS})
    if type_.scale is not None:
        scale = {"group": "autoscaling", "version": "v1", "kind": "Scale", "verbs": _STATUS_VERBS}
        entries.append({"name": f"{type_.plural}/scale", **base, **scale})
    for name, subresource in sorted(type_.subresources.items()):
        entry = {"name": f"{type_.plural}/{name}", **base}
        if subresource.version:
            entry |= {"group": subresource.group, "version": subresource.version}
        entries.append(entry | {"kind": subresource.kind, "verbs": sorted(subresource.verbs)})
    return entries


def aggregated(registry: Registry, *, legacy: bool) -> dict[str, Any]:
    """Returns the APIGroupDiscoveryList of /api (`legacy`) or /apis."""
    items = []
    for group, versions in groups_of(registry).items():
        if bool(group) == legacy:
            continue
        listed = [
            {
                "version": version,
                "resources": [_aggregated_resource(type_) for type_ in types],
                "freshness": "Current",
            }
            for version, types in versions.items()
        ]
        items.append({"metadata": {"name": group} if group else {}, "versions": listed})
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }


def _aggregated_resource(type_: ResourceType) -> dict[str, Any]:
    # kube-apiserver leaves group and version of its own types empty, because they equal those of the list.
    own = {"group": type_.group if type_.custom else "", "version": type_.version if type_.custom else ""}
    kind = {**own, "kind": type_.kind}
    entry: dict[str, Any] = {
        "resource": type_.plural,
        "responseKind": kind,
        "scope": "Namespaced" if type_.namespaced else "Cluster",
        "singularResource": type_.singular,
        "verbs": verbs_of(type_),
    }
    if type_.short_names:
        entry["shortNames"] = list(type_.short_names)
    if type_.categories:
        entry["categories"] = list(type_.categories)
    subresources: list[dict[str, Any]] = []
    scale = {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    if type_.has_status:
        subresources.append({"subresource": "status", "responseKind": kind, "verbs": _STATUS_VERBS})
    if type_.scale is not None:
        subresources.append({"subresource": "scale", "responseKind": scale, "verbs": _STATUS_VERBS})
    if not type_.custom:
        subresources.sort(key=lambda found: str(found["subresource"]))
    for name, subresource in sorted(type_.subresources.items()):
        answer = {"group": subresource.group, "version": subresource.version, "kind": subresource.kind}
        subresources.append({"subresource": name, "responseKind": answer, "verbs": sorted(subresource.verbs)})
    if subresources:
        entry["subresources"] = subresources
    return entry

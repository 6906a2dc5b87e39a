"""Sets the defaults of pods and pod templates (kubernetes `pkg/apis/core/v1/defaults.go`).

A pod gets a few more defaults than a template: requests from limits, `enableServiceLinks`. `admission` adds service
account, tolerations and priority.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import bad_request
from trainmaster_local.quantities import QuantityError, canonical

Json = dict[str, Any]

_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
# Fields of Go's structs with `omitempty` and no pointer: their zero value is never written.
_ZERO_POD_FIELDS: Json = {
    "hostNetwork": False,
    "hostPID": False,
    "hostIPC": False,
    "nodeName": "",
    "hostname": "",
    "subdomain": "",
    "priorityClassName": "",
    "serviceAccountName": "",
    "serviceAccount": "",
}
_ZERO_CONTAINER_FIELDS: Json = {"stdin": False, "stdinOnce": False, "tty": False, "workingDir": "", "image": ""}


def containers_of(spec: Json) -> Iterator[tuple[str, Json]]:
    """Yields each container with its field (`initContainers[0]`), init containers first."""
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or []):
            yield f"{field}[{index}]", container


def default_pod(pod: Json) -> None:
    """Sets the defaults of a whole Pod, in place. Raises ApiError 400 for an invalid quantity."""
    spec = pod.setdefault("spec", {})
    default_pod_spec(spec, kind="Pod", version="v1")
    spec.setdefault("enableServiceLinks", True)
    for _, container in containers_of(spec):
        resources = container["resources"]
        for name, limit in (resources.get("limits") or {}).items():
            resources.setdefault("requests", {}).setdefault(name, limit)
    status = pod.setdefault("status", {})
    status.setdefault("phase", "Pending")
    for condition in status.get("conditions") or []:
        # Go writes this time even if it is unset.
        condition.setdefault("lastProbeTime", None)


def default_pod_template(template: Json, *, kind: str, version: str) -> None:
    """Sets the defaults of a template in the kind's spec, in place."""
    _drop_zero(template.setdefault("metadata", {}), {"generation": 0})
    default_pod_spec(template.setdefault("spec", {}), kind=kind, version=version)


def default_pod_spec(spec: Json, *, kind: str, version: str) -> None:
    """Sets the defaults that a pod and a template share.

    `kind` and `version` are those of the decoded object; errors name them.
    """
    _drop_zero(spec, _ZERO_POD_FIELDS)
    for _, container in containers_of(spec):
        _default_container(container, bool(spec.get("hostNetwork")), kind, version)
    for volume in spec.get("volumes") or []:
        _default_volume(volume, kind, version)
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    if name := spec.get("serviceAccountName") or spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"] = name
    if "overhead" in spec:
        canonical_quantities(spec["overhead"], kind, version)


def _drop_zero(obj: Json, zeros: Json) -> None:
    for name, zero in zeros.items():
        if name in obj and obj[name] == zero:
            del obj[name]


def canonical_quantities(quantities: Json | None, kind: str, version: str) -> None:
    """Writes each quantity of a resource list in its canonical form. Raises ApiError 400 for an invalid one."""
    for name, value in (quantities or {}).items():
        try:
            quantities[name] = canonical(value)  # type: ignore[index]
        except (QuantityError, TypeError) as error:
            raise bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: {error}') from error


def canonical_resources(resources: Json, kind: str, version: str) -> None:
    canonical_quantities(resources.get("limits"), kind, version)
    canonical_quantities(resources.get("requests"), kind, version)


def _default_container(container: Json, host_network: bool, kind: str, version: str) -> None:
    _drop_zero(container, _ZERO_CONTAINER_FIELDS)
    canonical_resources(container.setdefault("resources", {}), kind, version)
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    if "imagePullPolicy" not in container:
        container["imagePullPolicy"] = _pull_policy(container.get("image", ""))
    for port in container.get("ports") or []:
        port.setdefault("protocol", "TCP")
        _drop_zero(port, {"name": "", "hostPort": 0})
        if host_network and "containerPort" in port:
            port.setdefault("hostPort", port["containerPort"])
    for variable in container.get("env") or []:
        _drop_zero(variable, {"value": ""})
        source = variable.get("valueFrom") or {}
        if "fieldRef" in source:
            source["fieldRef"].setdefault("apiVersion", "v1")
        if "resourceFieldRef" in source:
            _default_divisor(source["resourceFieldRef"], kind, version)
    for mount in container.get("volumeMounts") or []:
        _drop_zero(mount, {"readOnly": False, "subPath": "", "subPathExpr": ""})
    for name in _PROBES:
        if probe := container.get(name):
            _default_probe(probe)


def _default_divisor(selector: Json, kind: str, version: str) -> None:
    selector.setdefault("divisor", "0")
    canonical_quantities({"divisor": selector["divisor"]}, kind, version)
    selector["divisor"] = canonical(selector["divisor"])


def _pull_policy(image: str) -> str:
    if "@" in image:
        return "IfNotPresent"
    tag = image.rpartition("/")[2].partition(":")[2]
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def _default_probe(probe: Json) -> None:
    for name, value in (("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)):
        probe[name] = probe.get(name) or value
    _drop_zero(probe, {"initialDelaySeconds": 0})
    if (action := probe.get("httpGet")) is not None:
        action["path"] = action.get("path") or "/"
        action.setdefault("scheme", "HTTP")


def _default_volume(volume: Json, kind: str, version: str) -> None:
    if not volume.keys() - {"name"}:
        volume["emptyDir"] = {}
    if (empty := volume.get("emptyDir")) and "sizeLimit" in empty:
        canonical_quantities({"sizeLimit": empty["sizeLimit"]}, kind, version)
        empty["sizeLimit"] = canonical(empty["sizeLimit"])
    if (host := volume.get("hostPath")) is not None:
        host.setdefault("type", "")
    if (image := volume.get("image")) is not None:
        image.setdefault("pullPolicy", _pull_policy(image.get("reference", "")))
    for source in ("secret", "configMap", "downwardAPI", "projected"):
        if volume.get(source) is not None:
            volume[source].setdefault("defaultMode", 0o644)
    _default_downward_items(volume.get("downwardAPI"), kind, version)
    for source in (volume.get("projected") or {}).get("sources") or []:
        _default_downward_items(source.get("downwardAPI"), kind, version)
        if (token := source.get("serviceAccountToken")) is not None:
            token.setdefault("expirationSeconds", 3600)
    if template := (volume.get("ephemeral") or {}).get("volumeClaimTemplate"):
        template.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")


def _default_downward_items(source: Json | None, kind: str, version: str) -> None:
    for item in (source or {}).get("items") or []:
        if "fieldRef" in item:
            item["fieldRef"].setdefault("apiVersion", "v1")
        if "resourceFieldRef" in item:
            _default_divisor(item["resourceFieldRef"], kind, version)

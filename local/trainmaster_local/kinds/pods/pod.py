"""v1 Pod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import FieldError
from trainmaster_local.apiserver.apimachinery.names import dns_subdomain_problems
from trainmaster_local.apiserver.resources import ResourceType
from trainmaster_local.apiserver.schema.official import definition
from trainmaster_local.kinds.pods.admission import admit_pod
from trainmaster_local.kinds.pods.defaults import default_pod
from trainmaster_local.kinds.pods.printing import POD_COLUMNS, pod_row
from trainmaster_local.kinds.pods.qos import qos_class
from trainmaster_local.kinds.pods.subresources import POD_SUBRESOURCES
from trainmaster_local.kinds.pods.validation import pod_errors, pod_update_errors
from trainmaster_local.kinds.pods.warnings import pod_warnings

Json = dict[str, Any]


def _prepare_create(pod: Json) -> None:
    """Makes a new pod Pending, with only its class in its status."""
    pod["status"] = {"phase": "Pending", "qosClass": qos_class(pod["spec"])}
    if pod["spec"].get("schedulingGates"):
        gated = {
            "type": "PodScheduled",
            "status": "False",
            "lastProbeTime": None,
            "lastTransitionTime": None,
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }
        pod["status"]["conditions"] = [gated]


def _prepare_status(new: Json, old: Json) -> None:
    """Keeps the class, and the node's addresses if the new status lacks them."""
    status = new.setdefault("status", {})
    status.setdefault("phase", (old.get("status") or {}).get("phase", "Pending"))
    status["qosClass"] = (old.get("status") or {}).get("qosClass") or qos_class(new["spec"])


def _status_errors(new: Json, old: Json) -> list[FieldError]:
    phases = ("Pending", "Running", "Succeeded", "Failed", "Unknown")
    phase = new["status"].get("phase", "")
    return [] if phase in phases else [FieldError.not_supported("status.phase", phase, phases)]


def _grace_period(pod: Json, asked: int | None) -> int:
    """Returns the requested grace period, else the pod's own.

    The result is 0 for a pod without a node or with ended containers.
    """
    seconds = asked if asked is not None else pod["spec"].get("terminationGracePeriodSeconds", 30)
    if seconds < 0:
        seconds = 1
    ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return 0 if ended or not pod["spec"].get("nodeName") else int(seconds)


def _selectable(pod: Json) -> Mapping[str, str]:
    spec, status = pod["spec"], pod.get("status") or {}
    return {
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.restartPolicy": spec.get("restartPolicy", ""),
        "spec.schedulerName": spec.get("schedulerName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "spec.hostNetwork": "true" if spec.get("hostNetwork") else "false",
        "status.phase": status.get("phase", ""),
        "status.podIP": status.get("podIP", ""),
        "status.nominatedNodeName": status.get("nominatedNodeName", ""),
    }


POD = ResourceType(
    group="",
    version="v1",
    kind="Pod",
    plural="pods",
    singular="pod",
    namespaced=True,
    short_names=("po",),
    categories=("all",),
    schema=definition("io.k8s.api.core.v1.Pod"),
    zero={"metadata": {}, "spec": {"containers": None}, "status": {}},
    has_status=True,
    subresources=POD_SUBRESOURCES,
    default=default_pod,
    admit=admit_pod,
    prepare_create=_prepare_create,
    prepare_status=_prepare_status,
    validate_create=pod_errors,
    validate_update=pod_update_errors,
    validate_status=_status_errors,
    name_rule=dns_subdomain_problems,
    warnings=pod_warnings,
    columns=POD_COLUMNS,
    row=pod_row,
    selectable=(
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    selectable_values=_selectable,
    tracks_generation=True,
    answers_deleted_object=True,
    grace_period=_grace_period,
)

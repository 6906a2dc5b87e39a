"""Storage: v1 PersistentVolumeClaim and PersistentVolume, storage.k8s.io/v1 StorageClass."""

from __future__ import annotations

from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import FieldError
from trainmaster_local.apiserver.resources import Admission, Column, ResourceType
from trainmaster_local.apiserver.schema.official import definition, description
from trainmaster_local.kinds.columns import AGE, NAME, created
from trainmaster_local.kinds.meta_validation import IMMUTABLE
from trainmaster_local.kinds.pods.defaults import canonical_quantities, canonical_resources
from trainmaster_local.quantities import parse_quantity

Json = dict[str, Any]

DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_ACCESS_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
_SHORT_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}
_CLAIM_UPDATE = (
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
)


def _modes(spec: Json) -> str:
    return ",".join(short for mode, short in _SHORT_MODES.items() if mode in (spec.get("accessModes") or []))


def default_claim(claim: Json, *, kind: str = "PersistentVolumeClaim", version: str = "v1") -> None:
    """Sets the defaults of a claim, including a StatefulSet's template."""
    spec = claim.setdefault("spec", {})
    spec.setdefault("volumeMode", "Filesystem")
    canonical_resources(spec.setdefault("resources", {}), kind, version)
    status = claim.setdefault("status", {})
    status.setdefault("phase", "Pending")
    canonical_quantities(status.get("capacity"), kind, version)


def _default_claim(claim: Json) -> None:
    default_claim(claim)


def _admit_claim(claim: Json, old: Json | None, admission: Admission) -> None:
    """Sets the default class of a claim without one (`plugin/pkg/admission/storage/storageclass/setdefault`)."""
    if old is not None or "storageClassName" in claim["spec"]:
        return
    for candidate in admission.api.peek_all("storageclasses.storage.k8s.io"):
        if (candidate["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true":
            claim["spec"]["storageClassName"] = candidate["metadata"]["name"]
            return


def _prepare_claim(claim: Json) -> None:
    claim["status"] = {"phase": "Pending"}


def _claim_errors(claim: Json) -> list[FieldError]:
    spec = claim["spec"]
    errors: list[FieldError] = []
    modes = spec.get("accessModes") or []
    if not modes:
        errors.append(FieldError.required("spec.accessModes", "at least 1 access mode is required"))
    for mode in modes:
        if mode not in _ACCESS_MODES:
            errors.append(FieldError.not_supported("spec.accessModes", mode, _ACCESS_MODES))
    storage = (spec["resources"].get("requests") or {}).get("storage")
    if storage is None:
        errors.append(FieldError.required("spec.resources[storage]"))
    elif parse_quantity(storage) <= 0:
        errors.append(FieldError.invalid("spec.resources[storage]", storage, "must be greater than zero"))
    if spec["volumeMode"] not in ("Block", "Filesystem"):
        errors.append(FieldError.not_supported("spec.volumeMode", spec["volumeMode"], ("Block", "Filesystem")))
    return errors


def _claim_update_errors(new: Json, old: Json) -> list[FieldError]:
    errors = _claim_errors(new)
    free = ("resources", "volumeAttributesClassName", *(("volumeName",) if not old["spec"].get("volumeName") else ()))
    kept_new, kept_old = ({k: v for k, v in o["spec"].items() if k not in free} for o in (new, old))
    if kept_new != kept_old:
        errors.append(FieldError.forbidden("spec", _CLAIM_UPDATE))
    before, after = (parse_quantity((o["spec"]["resources"].get("requests") or {}).get("storage")) for o in (old, new))
    if after < before:
        detail = "field can not be less than status.capacity"
        errors.append(FieldError.forbidden("spec.resources.requests.storage", detail))
    return errors


def _claim_row(claim: Json, now: float) -> list[Any]:
    spec, status = claim["spec"], claim.get("status") or {}
    phase = "Terminating" if claim["metadata"].get("deletionTimestamp") else status.get("phase", "")
    bound = bool(spec.get("volumeName"))
    return [
        claim["metadata"]["name"],
        phase,
        spec.get("volumeName", ""),
        (status.get("capacity") or {}).get("storage", "0") if bound else "",
        _modes(status) if bound else "",
        spec.get("storageClassName", ""),
        spec.get("volumeAttributesClassName") or "<unset>",
        created(claim, now),
        spec.get("volumeMode", "<unset>"),
    ]


_CLAIM_SPEC = "io.k8s.api.core.v1.PersistentVolumeClaimSpec"
_CLAIM_STATUS = "io.k8s.api.core.v1.PersistentVolumeClaimStatus"

PERSISTENT_VOLUME_CLAIM = ResourceType(
    group="",
    version="v1",
    kind="PersistentVolumeClaim",
    plural="persistentvolumeclaims",
    singular="persistentvolumeclaim",
    namespaced=True,
    short_names=("pvc",),
    schema=definition("io.k8s.api.core.v1.PersistentVolumeClaim"),
    zero={"metadata": {}, "spec": {"resources": {}}, "status": {}},
    has_status=True,
    default=_default_claim,
    admit=_admit_claim,
    prepare_create=_prepare_claim,
    validate_create=_claim_errors,
    validate_update=_claim_update_errors,
    columns=(
        NAME,
        Column("Status", description=description(_CLAIM_STATUS, "phase")),
        Column("Volume", description=description(_CLAIM_SPEC, "volumeName")),
        Column("Capacity", description=description(_CLAIM_STATUS, "capacity")),
        Column("Access Modes", description=description(_CLAIM_STATUS, "accessModes")),
        Column("StorageClass", description=description(_CLAIM_SPEC, "storageClassName")),
        Column("VolumeAttributesClass", description=description(_CLAIM_SPEC, "volumeAttributesClassName")),
        AGE,
        Column("VolumeMode", description=description(_CLAIM_SPEC, "volumeMode"), priority=1),
    ),
    row=_claim_row,
    answers_deleted_object=True,
)


def _default_volume(volume: Json) -> None:
    spec = volume.setdefault("spec", {})
    spec.setdefault("volumeMode", "Filesystem")
    spec.setdefault("persistentVolumeReclaimPolicy", "Retain")
    canonical_quantities(spec.get("capacity"), "PersistentVolume", "v1")
    if host := spec.get("hostPath"):
        host.setdefault("type", "")
    volume.setdefault("status", {}).setdefault("phase", "Pending")


def _volume_errors(volume: Json) -> list[FieldError]:
    spec = volume["spec"]
    errors: list[FieldError] = []
    if not spec.get("accessModes"):
        errors.append(FieldError.required("spec.accessModes"))
    if not spec.get("capacity"):
        errors.append(FieldError.required("spec.capacity"))
    elif parse_quantity(spec["capacity"].get("storage")) <= 0:
        value = spec["capacity"].get("storage", "0")
        errors.append(FieldError.invalid("spec.capacity[storage]", value, "must be greater than zero"))
    if not any(source in spec for source in ("hostPath", "local", "nfs", "csi", "iscsi", "cephfs", "fc", "rbd")):
        errors.append(FieldError.required("spec", "must specify a volume type"))
    return errors


def _volume_update_errors(new: Json, old: Json) -> list[FieldError]:
    return _volume_errors(new)


PERSISTENT_VOLUME = ResourceType(
    group="",
    version="v1",
    kind="PersistentVolume",
    plural="persistentvolumes",
    singular="persistentvolume",
    namespaced=False,
    short_names=("pv",),
    schema=definition("io.k8s.api.core.v1.PersistentVolume"),
    zero={"metadata": {}, "spec": {}, "status": {}},
    has_status=True,
    default=_default_volume,
    validate_create=_volume_errors,
    validate_update=_volume_update_errors,
    answers_deleted_object=True,
)


def _default_class(obj: Json) -> None:
    obj.setdefault("reclaimPolicy", "Delete")
    obj.setdefault("volumeBindingMode", "Immediate")


def _class_errors(obj: Json) -> list[FieldError]:
    return [] if obj.get("provisioner") else [FieldError.required("provisioner")]


def _class_update_errors(new: Json, old: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    for name in ("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"):
        if new.get(name) != old.get(name):
            if name == "parameters":
                errors.append(FieldError.forbidden(name, "updates to parameters are forbidden."))
            elif name == "volumeBindingMode":
                errors.append(FieldError.invalid(name, new.get(name), IMMUTABLE))
            else:
                errors.append(FieldError.forbidden(name, f"updates to {name} are forbidden."))
    return errors


_CLASS = "io.k8s.api.storage.v1.StorageClass"

STORAGE_CLASS = ResourceType(
    group="storage.k8s.io",
    version="v1",
    kind="StorageClass",
    plural="storageclasses",
    singular="storageclass",
    namespaced=False,
    short_names=("sc",),
    schema=definition(_CLASS),
    zero={"metadata": {}, "provisioner": ""},
    default=_default_class,
    validate_create=_class_errors,
    validate_update=_class_update_errors,
)

STORAGE_TYPES = (PERSISTENT_VOLUME_CLAIM, PERSISTENT_VOLUME, STORAGE_CLASS)

"""Validates a pod's volumes as in kubernetes `pkg/apis/core/validation/validation.go`."""

from __future__ import annotations

from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import FieldError
from trainmaster_local.apiserver.apimachinery.names import dns_label_problems
from trainmaster_local.kinds.meta_validation import config_key_problems, invalid_all
from trainmaster_local.kinds.pods.container_validation import field_ref_errors, relative_path_errors
from trainmaster_local.quantities import parse_quantity

Json = dict[str, Any]

_VOLUME_FIELDS = (
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
)
_PROJECTED = ("secret", "downwardAPI", "configMap", "serviceAccountToken", "clusterTrustBundle", "podCertificate")
_HOST_PATH_TYPES = (
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
)
_MODE_RANGE = "must be a number between 0 and 0777 (octal), both inclusive"


def volume_errors(volumes: list[Json], field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    names: set[str] = set()
    for index, volume in enumerate(volumes):
        here = f"{field}[{index}]"
        errors += _source_errors(volume, here)
        name = volume.get("name", "")
        if not name:
            errors.append(FieldError.required(f"{here}.name"))
        elif problems := dns_label_problems(name):
            errors += invalid_all(f"{here}.name", name, problems)
        if name and name in names:
            errors.append(FieldError.duplicate(f"{here}.name", name))
        names.add(name)
    return errors


def _source_errors(volume: Json, field: str) -> list[FieldError]:
    given = [name for name in volume if name != "name"]
    if not given:
        return [FieldError.required(field, "must specify a volume type")]
    detail = "may not specify more than 1 volume type"
    errors = [FieldError.forbidden(f"{field}.{name}", detail) for name in given[1:]]
    source, here = volume[given[0]], f"{field}.{given[0]}"
    match given[0]:
        case "emptyDir":
            if "sizeLimit" in source and parse_quantity(source["sizeLimit"]) < 0:
                errors.append(
                    FieldError.forbidden(f"{here}.sizeLimit", "SizeLimit field must be a valid resource quantity")
                )
        case "hostPath":
            if not source.get("path"):
                errors.append(FieldError.required(f"{here}.path"))
            elif ".." in source["path"].split("/"):
                errors.append(FieldError.invalid(f"{here}.path", source["path"], "must not contain '..'"))
            if source.get("type", "") not in _HOST_PATH_TYPES:
                errors.append(FieldError.not_supported(f"{here}.type", source["type"], _HOST_PATH_TYPES))
        case "secret":
            if not source.get("secretName"):
                errors.append(FieldError.required(f"{here}.secretName"))
            errors += _mode_errors(source, "defaultMode", here) + _item_errors(source, here)
        case "configMap":
            if not source.get("name"):
                errors.append(FieldError.required(f"{here}.name"))
            errors += _mode_errors(source, "defaultMode", here) + _item_errors(source, here)
        case "downwardAPI":
            errors += _mode_errors(source, "defaultMode", here) + _downward_errors(source, here)
        case "persistentVolumeClaim":
            if not source.get("claimName"):
                errors.append(FieldError.required(f"{here}.claimName"))
        case "nfs":
            for name in ("server", "path"):
                if not source.get(name):
                    errors.append(FieldError.required(f"{here}.{name}"))
            if source.get("path") and not source["path"].startswith("/"):
                errors.append(FieldError.invalid(f"{here}.path", source["path"], "must be an absolute path"))
        case "projected":
            errors += _mode_errors(source, "defaultMode", here) + _projected_errors(source, here)
    return errors


def _mode_errors(source: Json, name: str, field: str) -> list[FieldError]:
    mode = source.get(name)
    if mode is not None and not 0 <= mode <= 0o777:
        return [FieldError.invalid(f"{field}.{name}", mode, _MODE_RANGE)]
    return []


def _item_errors(source: Json, field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, item in enumerate(source.get("items") or []):
        here = f"{field}.items[{index}]"
        if not item.get("key"):
            errors.append(FieldError.required(f"{here}.key"))
        else:
            errors += invalid_all(f"{here}.key", item["key"], config_key_problems(item["key"]))
        errors += _file_errors(item, here)
    return errors


def _file_errors(item: Json, field: str) -> list[FieldError]:
    path = item.get("path", "")
    if not path:
        return [FieldError.required(f"{field}.path")]
    errors = relative_path_errors(path, f"{field}.path")
    if not errors and path.startswith(".."):
        errors.append(FieldError.invalid(f"{field}.path", path, "must not start with '..'"))
    return errors + _mode_errors(item, "mode", field)


def _downward_errors(source: Json, field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, item in enumerate(source.get("items") or []):
        here = f"{field}.items[{index}]"
        errors += _file_errors(item, here)
        if "fieldRef" in item:
            errors += field_ref_errors(item["fieldRef"], f"{here}.fieldRef", _VOLUME_FIELDS, ("annotations", "labels"))
            if "resourceFieldRef" in item:
                detail = "fieldRef and resourceFieldRef can not be specified simultaneously"
                errors.append(FieldError.invalid(here, "resource", detail))
        elif "resourceFieldRef" in item:
            if not item["resourceFieldRef"].get("containerName"):
                errors.append(FieldError.required(f"{here}.resourceFieldRef.containerName"))
        else:
            errors.append(FieldError.required(here, "one of fieldRef and resourceFieldRef is required"))
    return errors


def _projected_errors(source: Json, field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    paths: set[str] = set()
    for index, part in enumerate(source.get("sources") or []):
        here = f"{field}.sources[{index}]"
        given = [name for name in _PROJECTED if name in part]
        if not given:
            errors.append(FieldError.required(here, f"must specify one of {', '.join(_PROJECTED)}"))
        for name in given[1:]:
            errors.append(FieldError.forbidden(f"{here}.{name}", "may not specify more than 1 volume type per source"))
        for name in given[:1]:
            projection = part[name]
            inside = f"{here}.{name}"
            if name in ("secret", "configMap"):
                if not projection.get("name"):
                    errors.append(FieldError.required(f"{inside}.name"))
                errors += _item_errors(projection, inside)
            elif name == "downwardAPI":
                errors += _downward_errors(projection, inside)
            elif name == "serviceAccountToken":
                errors += _token_errors(projection, inside)
            items = projection.get("items") or ([projection] if projection.get("path") else [])
            for item in items:
                path = item.get("path", "")
                if path and path in paths:
                    detail = "conflicting duplicate paths"
                    errors.append(FieldError.invalid(f"{field}.sources", path, detail))
                paths.add(path)
    return errors


def _token_errors(projection: Json, field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    seconds = projection.get("expirationSeconds", 3600)
    if seconds < 600:
        detail = "may not specify a duration less than 10 minutes"
        errors.append(FieldError.invalid(f"{field}.expirationSeconds", seconds, detail))
    if seconds > 1 << 32:
        detail = "may not specify a duration larger than 2^32 seconds"
        errors.append(FieldError.invalid(f"{field}.expirationSeconds", seconds, detail))
    if not projection.get("path"):
        errors.append(FieldError.required(f"{field}.path"))
    return errors

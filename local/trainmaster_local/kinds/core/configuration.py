"""v1 ConfigMap, Secret and ServiceAccount."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import FieldError, bad_request
from trainmaster_local.apiserver.resources import Column, ResourceType
from trainmaster_local.apiserver.schema.official import definition, description
from trainmaster_local.kinds.columns import AGE, NAME, created
from trainmaster_local.kinds.meta_validation import IMMUTABLE, config_key_problems, invalid_all

Json = dict[str, Any]

_SIZE_LIMIT = 1024 * 1024
_FROZEN = "field is immutable when `immutable` is set"
_REQUIRED_KEYS = {
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}


def _config_map_errors(obj: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    data, binary = obj.get("data") or {}, obj.get("binaryData") or {}
    for key in sorted(data):
        errors += invalid_all(f"data[{key}]", key, config_key_problems(key))
        if key in binary:
            errors.append(FieldError.invalid(f"data[{key}]", key, "duplicate of key present in binaryData"))
    for key in sorted(binary):
        errors += invalid_all(f"binaryData[{key}]", key, config_key_problems(key))
    size = sum(len(value.encode()) for value in data.values())
    size += sum(_decoded_size(value) for value in binary.values())
    if size > _SIZE_LIMIT:
        errors.append(FieldError.too_long("[]", _SIZE_LIMIT))
    return errors


def _decoded_size(text: str) -> int:
    return len(text.rstrip("=")) * 3 // 4


def _default_config_map(obj: Json) -> None:
    for key, value in (obj.get("binaryData") or {}).items():
        _check_base64(value, "ConfigMap", key)


def _check_base64(value: str, kind: str, key: str) -> None:
    try:
        base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        offset = next((i for i, c in enumerate(value) if not (c.isalnum() or c in "+/=")), len(value) // 4 * 4)
        message = f'{kind} in version "v1" cannot be handled as a {kind}: illegal base64 data at input byte {offset}'
        raise bad_request(message) from error


def _frozen_errors(new: Json, old: Json, fields: tuple[str, ...]) -> list[FieldError]:
    if not old.get("immutable"):
        return []
    errors: list[FieldError] = []
    if not new.get("immutable"):
        errors.append(FieldError.forbidden("immutable", _FROZEN))
    for name in fields:
        if (new.get(name) or {}) != (old.get(name) or {}):
            errors.append(FieldError.forbidden(name, _FROZEN))
    return errors


_CONFIG_MAP = "io.k8s.api.core.v1.ConfigMap"

CONFIG_MAP = ResourceType(
    group="",
    version="v1",
    kind="ConfigMap",
    plural="configmaps",
    singular="configmap",
    namespaced=True,
    short_names=("cm",),
    schema=definition(_CONFIG_MAP),
    zero={"metadata": {}},
    default=_default_config_map,
    validate_create=_config_map_errors,
    validate_update=lambda new, old: _frozen_errors(new, old, ("data", "binaryData")) + _config_map_errors(new),
    columns=(NAME, Column("Data", description=description(_CONFIG_MAP, "data")), AGE),
    row=lambda obj, now: [
        obj["metadata"]["name"],
        len(obj.get("data") or {}) + len(obj.get("binaryData") or {}),
        created(obj, now),
    ],
)


def _default_secret(obj: Json) -> None:
    """Merges `stringData`, which is never stored, into `data`."""
    for key, value in (obj.get("data") or {}).items():
        _check_base64(value, "Secret", key)
    plain = obj.pop("stringData", None) or {}
    for key, value in plain.items():
        obj.setdefault("data", {})[key] = base64.b64encode(value.encode()).decode()
    obj["type"] = obj.get("type") or "Opaque"


def _secret_errors(obj: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    data = obj.get("data") or {}
    for key in sorted(data):
        errors += invalid_all(f"data[{key}]", key, config_key_problems(key))
    if sum(_decoded_size(value) for value in data.values()) > _SIZE_LIMIT:
        errors.append(FieldError.too_long("data", _SIZE_LIMIT))
    if obj["type"] == "kubernetes.io/service-account-token":
        annotation = "kubernetes.io/service-account.name"
        if not (obj["metadata"].get("annotations") or {}).get(annotation):
            errors.append(FieldError.required(f"metadata.annotations[{annotation}]"))
    for key in _REQUIRED_KEYS.get(obj["type"], ()):
        if key not in data:
            errors.append(FieldError.required(f"data[{key}]"))
    if obj["type"] == "kubernetes.io/basic-auth" and not data.keys() & {"username", "password"}:
        errors.append(FieldError.required("data[username]"))
        errors.append(FieldError.required("data[password]"))
    return errors


def _secret_update_errors(new: Json, old: Json) -> list[FieldError]:
    errors = []
    if new["type"] != old["type"]:
        errors.append(FieldError.invalid("type", new["type"], IMMUTABLE))
    return errors + _frozen_errors(new, old, ("data",)) + _secret_errors(new)


_SECRET = "io.k8s.api.core.v1.Secret"

SECRET = ResourceType(
    group="",
    version="v1",
    kind="Secret",
    plural="secrets",
    singular="secret",
    namespaced=True,
    schema=definition(_SECRET),
    zero={"metadata": {}},
    default=_default_secret,
    validate_create=_secret_errors,
    validate_update=_secret_update_errors,
    columns=(
        NAME,
        Column("Type", description=description(_SECRET, "type")),
        Column("Data", description=description(_SECRET, "data")),
        AGE,
    ),
    row=lambda obj, now: [obj["metadata"]["name"], obj["type"], len(obj.get("data") or {}), created(obj, now)],
    selectable=("type",),
)


def _account_row(obj: Json, now: float) -> list[Any]:
    return [obj["metadata"]["name"], len(obj.get("secrets") or []), created(obj, now)]


SERVICE_ACCOUNT = ResourceType(
    group="",
    version="v1",
    kind="ServiceAccount",
    plural="serviceaccounts",
    singular="serviceaccount",
    namespaced=True,
    short_names=("sa",),
    schema=definition("io.k8s.api.core.v1.ServiceAccount"),
    zero={"metadata": {}},
    columns=(
        NAME,
        Column("Secrets", description=description("io.k8s.api.core.v1.ServiceAccount", "secrets")),
        AGE,
    ),
    row=_account_row,
    answers_deleted_object=True,
)

CONFIGURATION_TYPES = (CONFIG_MAP, SECRET, SERVICE_ACCOUNT)

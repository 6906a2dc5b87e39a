"""Validates security contexts of pods and containers as in kubernetes `pkg/apis/core/validation/validation.go`."""

from __future__ import annotations

import re
from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import FieldError

Json = dict[str, Any]

_SECCOMP = ("Localhost", "RuntimeDefault", "Unconfined")
_PROC_MOUNTS = ("Default", "Unmasked")
_SYSCTL = r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?"


def pod_security_errors(context: Json, field: str) -> list[FieldError]:
    errors = _user_errors(context, field, ("runAsUser", "runAsGroup", "fsGroup"))
    for index, sysctl in enumerate(context.get("sysctls") or []):
        here, name = f"{field}.sysctls[{index}].name", sysctl.get("name", "")
        if not name:
            errors.append(FieldError.required(here))
        elif len(name) > 253 or not re.fullmatch(_SYSCTL, name):
            detail = f"must have at most 253 characters and match regex ^{_SYSCTL}$"
            errors.append(FieldError.invalid(here, name, detail))
    return errors + _seccomp_errors(context, field)


def container_security_errors(context: Json, field: str) -> list[FieldError]:
    errors = _user_errors(context, field, ("runAsUser", "runAsGroup"))
    mount = context.get("procMount", "Default")
    if mount not in _PROC_MOUNTS:
        errors.append(FieldError.not_supported(f"{field}.procMount", mount, _PROC_MOUNTS))
    errors += _seccomp_errors(context, field)
    if context.get("allowPrivilegeEscalation") is False:
        if context.get("privileged"):
            detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
            errors.append(FieldError.invalid(field, context, detail))
        if "CAP_SYS_ADMIN" in ((context.get("capabilities") or {}).get("add") or []):
            detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"
            errors.append(FieldError.invalid(field, context, detail))
    return errors


def _user_errors(context: Json, field: str, names: tuple[str, ...]) -> list[FieldError]:
    errors = []
    for name in names:
        value = context.get(name)
        if value is not None and not 0 <= value <= 2147483647:
            errors.append(FieldError.invalid(f"{field}.{name}", value, "must be between 0 and 2147483647, inclusive"))
    return errors


def _seccomp_errors(context: Json, field: str) -> list[FieldError]:
    profile = context.get("seccompProfile")
    if profile is None:
        return []
    here, kind = f"{field}.seccompProfile", profile.get("type", "")
    if not kind:
        return [FieldError.required(f"{here}.type", "type is required when seccompProfile is set")]
    if kind not in _SECCOMP:
        return [FieldError.not_supported(f"{here}.type", kind, _SECCOMP)]
    if kind == "Localhost" and not profile.get("localhostProfile"):
        detail = "must be set when seccomp type is Localhost"
        return [FieldError.required(f"{here}.localhostProfile", detail)]
    return []

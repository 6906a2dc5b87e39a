"""Warns about fields of pods and pod templates that are probably mistakes (kubernetes `pkg/api/pod/warnings.go`)."""

from __future__ import annotations

from typing import Any

from trainmaster_local.kinds.pods.defaults import containers_of
from trainmaster_local.quantities import parse

Json = dict[str, Any]


def pod_warnings(pod: Json) -> list[str]:
    return _spec_warnings(pod["spec"], "spec")


def template_warnings(obj: Json) -> list[str]:
    return _spec_warnings(obj["spec"]["template"]["spec"], "spec.template.spec")


def _spec_warnings(spec: Json, field: str) -> list[str]:
    warnings = []
    for index, constraint in enumerate(spec.get("topologySpreadConstraints") or []):
        if "labelSelector" not in constraint:
            here = f"{field}.topologySpreadConstraints[{index}].labelSelector"
            warnings.append(f"{here}: a null labelSelector results in matching no pod")
    secrets: set[str] = set()
    for index, secret in enumerate(spec.get("imagePullSecrets") or []):
        name = secret.get("name", "")
        here = f"{field}.imagePullSecrets[{index}].name"
        if name in secrets:
            warnings.append(f'{here}: duplicate name "{name}"')
        if not name:
            warnings.append(f'{here}: invalid empty name ""')
        secrets.add(name)
    ports: dict[tuple[Any, ...], str] = {}
    for place, container in containers_of(spec):
        warnings += _fractions(container.get("resources") or {}, f"{field}.{place}.resources")
        warnings += _hidden(container.get("env") or [], f"{field}.{place}.env")
        for index, port in enumerate(container.get("ports") or []):
            key = tuple(port.get(name) for name in ("containerPort", "protocol", "hostIP", "hostPort"))
            here = f"{field}.{place}.ports[{index}]"
            if key in ports:
                warnings.append(f"{here}: duplicate port definition with {ports[key]}")
            ports.setdefault(key, here)
    return warnings


def _fractions(resources: Json, field: str) -> list[str]:
    warnings = []
    for name in ("memory", "ephemeral-storage"):
        for kind in ("limits", "requests"):
            amount = (resources.get(kind) or {}).get(name)
            if amount is not None and not parse(amount).is_integer:
                problem = f'fractional byte value "{amount}" is invalid, must be an integer'
                warnings.append(f"{field}.{kind}[{name}]: {problem}")
    return warnings


def _hidden(env: list[Json], field: str) -> list[str]:
    warnings = []
    seen: set[str] = set()
    for index, variable in enumerate(env):
        name, value = variable.get("name", ""), variable.get("value", "")
        reference = f"$({name})"
        if name in seen and ("valueFrom" in variable or value == reference or reference not in value):
            problem = f'hides previous definition of "{name}", which may be dropped when using apply'
            warnings.append(f"{field}[{index}]: {problem}")
        seen.add(name)
    return warnings

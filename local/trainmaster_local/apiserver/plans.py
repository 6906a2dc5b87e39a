"""A plan contains what the API derives once from each type: its full schema, any defaults, its CEL rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainmaster_local.apiserver.cel.rules import Rules
from trainmaster_local.apiserver.resources import Object, Registry, ResourceType
from trainmaster_local.apiserver.schema.defaulting import has_defaults
from trainmaster_local.apiserver.schema.pruning import Decoder
from trainmaster_local.apiserver.schema.structure import Schema, with_object_meta


@dataclass(frozen=True)
class Plan:
    """A plan is a type, ready for requests. `reset` are the fields that the main endpoint doesn't write."""

    type: ResourceType
    schema: Schema
    decoder: Decoder | None
    defaults: bool
    rules: Rules | None
    reset: tuple[tuple[str, ...], ...]

    @property
    def resource(self) -> str:
        return self.type.qualified

    def selectable(self, field: str) -> bool:
        if field == "metadata.name" or (field == "metadata.namespace" and self.type.namespaced):
            return True
        return field in self.type.selectable

    def field_value(self, obj: Object, field: str) -> str:
        """Returns the value that a field selector compares; the empty string for an absent field."""
        if field.startswith("metadata."):
            found: str = obj["metadata"].get(field[len("metadata.") :], "")
            return found
        if self.type.selectable_values is not None:
            return self.type.selectable_values(obj).get(field, "")
        return _scalar(_at(obj, field))


def _at(obj: Mapping[str, Any], path: str) -> Any:
    value: Any = obj
    for name in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def _scalar(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


class Plans:
    """The plans of all served types are made on first use and dropped when the registry changes."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._plans: dict[int, tuple[ResourceType, Plan]] = {}
        registry.on_change(self._forget)

    def _forget(self) -> None:
        served = {id(type_) for type_ in self._registry}
        self._plans = {key: entry for key, entry in self._plans.items() if key in served}

    def of(self, type_: ResourceType) -> Plan:
        entry = self._plans.get(id(type_))
        if entry is not None:
            return entry[1]
        schema = with_object_meta(type_.schema)
        rules = Rules.compile(type_.schema) if type_.custom else None
        reset = (("f:status",),) if type_.has_status else ()
        decoder = Decoder(schema, typed=not type_.custom, root=True) if schema else None
        plan = Plan(type_, schema, decoder, has_defaults(type_.schema), rules, reset)
        # The type is kept with its plan, so that no other type gets the same id.
        self._plans[id(type_)] = (type_, plan)
        return plan

"""Every component's settings are frozen, typed, and strict about names.

A component declares its settings beside its code as a `Settings` subclass; `trainloop.config` puts them together into
one document. `mistakes` has a sentence for each mistake.
"""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator


class Settings(BaseModel):
    """The base of every settings model is immutable and has no unknown names, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses switches for numbers: YAML 1.1, kubectl's too, reads a bare `off` as false, pydantic reads `true` as
        1.
        """
        annotation = cls.model_fields[str(info.field_name)].annotation
        kinds = (annotation, *get_args(annotation))
        if value is False and "off" in kinds:
            return "off"
        if isinstance(value, bool) and (int in kinds or float in kinds):
            raise ValueError(f"{value} is a switch: it must be a number")
        return value


def section(kind: type[BaseModel]) -> Any:
    """Returns a field whose default is `kind` with its own defaults."""
    return Field(default_factory=lambda: kind.model_validate({}))

"""The base models of spec and status: how their fields are named on the wire, and what becomes of unknown ones.

A spec's unknown field is refused by name (`api.field_messages` has the message); a status' is ignored, because an older
operator must be able to read the status that a newer one wrote.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel


class SpecModel(BaseModel):
    """A part of the spec: frozen, camelCase on the wire, unknown fields refused."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        """A field that is null is one that isn't given: so the API server reads it too (KEP-1523, defaulting)."""
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


class StatusModel(BaseModel):
    """A part of the status: frozen, camelCase on the wire, unknown fields ignored."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)

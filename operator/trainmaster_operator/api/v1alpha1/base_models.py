"""The base models of spec and status define the fields' names in JSON and the treatment of unknown fields.

An unknown field in a spec is refused with a message from `api.field_messages`. In a status it is ignored, because an
older operator must be able to read a newer operator's status.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel


class SpecModel(BaseModel):
    """SpecModel is frozen, camelCase on the wire, and refuses unknown fields."""

    # A model is built when it is first used. Commands that only read a status never need the spec's models.
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, defer_build=True
    )

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        """Removes known fields that are null, as the API server does when it sets defaults (KEP-1523)."""
        if not isinstance(given, dict):
            return given
        known = {info.alias for info in cls.model_fields.values()}
        return {name: value for name, value in given.items() if value is not None or name not in known}


class StatusModel(BaseModel):
    """StatusModel is frozen, camelCase on the wire, and ignores unknown fields."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True, defer_build=True
    )

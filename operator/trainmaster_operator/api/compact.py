"""Fields of a spec that only rendering reads are kept as the text that they are.

As Python's objects, 1.3 MB of `training` take 23 MB for as long as the job exists; as compressed JSON it is at most as
large as it was written. Text of random characters shrinks by a fifth, nothing else that is allowed (`limits`) by less.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any, cast

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from trainmaster_operator.api.limits import compact

# Bytes from which compressing is worth its 20 microseconds.
_WORTH_IT = 512


class CompactMapping:
    """CompactMapping is an immutable mapping of JSON; `value` makes it anew each time. A field gets a mapping."""

    __slots__ = ("_compressed", "_text")

    def __init__(self, value: Mapping[str, Any]) -> None:
        """Raises TypeError or ValueError for what JSON can't hold."""
        text = compact(dict(value))
        self._compressed = len(text) >= _WORTH_IT
        self._text = zlib.compress(text, 1) if self._compressed else text

    def value(self) -> dict[str, Any]:
        """Returns the mapping, which is the caller's own."""
        text = zlib.decompress(self._text) if self._compressed else self._text
        return cast(dict[str, Any], json.loads(text.decode("utf-8", "surrogatepass")))

    def __len__(self) -> int:
        """Returns how many bytes are kept."""
        return len(self._text)

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CompactMapping) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return f"<a mapping in {len(self)} bytes>"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            cls._checked,
            handler.generate_schema(dict[str, Any]),
            serialization=core_schema.plain_serializer_function_ser_schema(cls.value),
        )

    @classmethod
    def _checked(cls, value: dict[str, Any]) -> CompactMapping:
        try:
            return cls(value)
        except (TypeError, ValueError) as error:
            raise PydanticCustomError(
                "json", "can't be written as JSON ({why}); use text, numbers, lists and mappings", {"why": str(error)}
            ) from error

"""Frozen values with typed fields, for the many small types of events and actions.

`NamedTuple` would do as well, but it compiles a constructor for each class: 0.1 ms of every start of an agent, and
dataclasses cost more. Type checkers see a frozen dataclass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, ClassVar, NoReturn

if TYPE_CHECKING:
    from typing import dataclass_transform  # novm
else:

    def dataclass_transform(**_options: object) -> Callable[[type], type]:
        """Say nothing to Python, which needs to know nothing of it."""
        return lambda decorated: decorated


@dataclass_transform(frozen_default=True)
class Value:
    """The fields are those that the class annotates, in their order; what isn't given is the class's default."""

    _fields: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls) -> None:
        cls._fields = tuple(getattr(cls, "__annotations__", ()))

    def __init__(self, *values: Any, **named: Any) -> None:
        self.__dict__.update(zip(self._fields, values), **named)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__}.{name} is frozen")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *map(str, self.__dict__.items())))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({fields})"

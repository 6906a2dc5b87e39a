"""The values that events and actions are."""

from __future__ import annotations

import pytest

from trainmaster_operator.agent.value import Value


class Point(Value):
    x: int
    y: int = 0


class Other(Value):
    x: int
    y: int = 0


class Nothing(Value):
    pass


def test_fields_are_given_by_place_by_name_or_by_the_class() -> None:
    point = Point(1, y=2)
    assert (point.x, point.y, Point(1).y) == (1, 2, 0)


def test_values_of_one_type_with_equal_fields_are_equal() -> None:
    assert Point(1, 2) == Point(x=1, y=2)
    assert Point(1, 2) != Point(1, 3)
    assert Point(1, 2) != Other(1, 2)
    assert Nothing() == Nothing()
    assert len({Point(1), Point(1), Other(1), Nothing()}) == 3


def test_they_are_frozen() -> None:
    with pytest.raises(AttributeError, match=r"Point\.x is frozen"):
        Point(1).x = 2  # type: ignore[misc]


def test_they_show_their_fields() -> None:
    assert repr(Point(1, y=2)) == "Point(x=1, y=2)"

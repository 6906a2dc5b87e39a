"""A new connection always gets in, and it replaces a connection that nobody needs."""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster_operator.serving.connection import Places


@dataclass(eq=False)
class Held:
    """Stands for a connection."""

    address: str
    waiting: bool = True
    answered: bool = False

    def is_waiting(self) -> bool:
        return self.waiting

    def has_answer(self) -> bool:
        return self.answered

    def leave(self) -> None:
        raise AssertionError("Places only names the one that has to leave")


def places(held: list[Held], *, most: int = 6, most_waiting: int = 4) -> Places:
    found = Places(most, most_waiting)
    for place in held:
        found.add(place)
    return found


def test_nobody_leaves_while_there_is_room() -> None:
    assert places([]).first_to_leave() is None
    assert places([Held("a"), Held("a"), Held("a")]).in_the_way("a") is None


def test_the_oldest_waiting_connection_of_the_busiest_address_gives_way() -> None:
    kubelet, *flood = Held("kubelet"), *(Held("evil") for _ in range(5))
    assert places([kubelet, *flood], most_waiting=9).in_the_way("operator") is flood[0]


def test_an_address_may_hold_few_requests_that_are_not_there() -> None:
    flood = [Held("evil") for _ in range(4)]
    held = places(flood)
    assert held.in_the_way("evil") is flood[0]
    assert held.in_the_way("kubelet") is None


def test_one_that_had_its_answer_gives_way_before_one_that_still_waits_for_it() -> None:
    """Requests with half a body are answered at once but keep their places, and they once displaced a slow probe."""
    probe, *flood = Held("a"), *(Held("a", answered=True) for _ in range(5))
    assert places([probe, *flood]).in_the_way("a") is flood[0], "all places are taken"
    assert places([probe, *flood[:3]]).in_the_way("a") is flood[0], "those of an address are"


def test_behind_a_proxy_all_may_be_answered_at_once() -> None:
    answered = [Held("proxy", waiting=False) for _ in range(5)]
    assert places(answered).in_the_way("proxy") is None


def test_an_answer_is_broken_off_only_when_no_connection_waits() -> None:
    stream, *answered = (Held("proxy", waiting=False) for _ in range(5))
    idle = Held("viewer")
    assert places([stream, *answered, idle]).in_the_way("kubelet") is idle
    idle.waiting = False
    assert places([stream, *answered, idle]).in_the_way("kubelet") is stream


def test_a_connection_that_has_left_makes_room() -> None:
    held = [Held("a") for _ in range(6)]
    found = places(held, most_waiting=9)
    found.discard(held[0])
    found.discard(held[0])
    assert found.in_the_way("b") is None and len(found.held) == 5

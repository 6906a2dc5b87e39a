"""The rules by which ranks form groups hold whatever is lost, late or repeated, and whichever rank dies or is cut off.

The ranks' part is the real one (`membership`). Around it is a model of the operator, of the agents, and of groups. A
collective succeeds for a member only if all members have entered it, and may fail for some of them even then. If
several ranks hold a state together, the step's last collective is their unit's own (`forming`, commit). It fails only
if one of them is lost, or hasn't reached the collective and never will.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from trainloop.continuing.membership import NO_STATE, Membership, exchange
from trainloop.continuing.orders import Order, parse

THOROUGH = os.environ.get("TRAINMASTER_SLOW") == "1"
#: A step makes two collectives; a fault may come between them.
COLLECTIVES = 2
ANY = st.integers(0, 1000)
#: The number of ranks, and how many of them hold a state together.
LAYOUTS = [*((size, 1) for size in range(2, 7)), (4, 2), (6, 2), (6, 2), (6, 3)]


@dataclass(eq=False)
class Process:
    """Models a rank's process. Its state is `history`: for each of its steps, the attempt in which it was made."""

    membership: Membership
    history: list[int] | None
    orders: list[Order] = field(default_factory=list)
    alive: bool = True
    #: The step's collective that the process has entered, or None.
    entered: int | None = None
    #: The newest attempt that members knew of in the step that was made last.
    agreed: int = 0
    meets: Order | None = None
    #: The state with which it continues once its group is formed; None: not all members have met.
    given: list[int] | None = None
    met: list[int] = field(default_factory=list)
    #: The attempts whose groups it belonged to.
    formed: set[int] = field(default_factory=lambda: {1})
    #: The newest order that arrived while it made a step with its unit.
    put_off: Order | None = None

    @property
    def rank(self) -> int:
        return self.membership.rank

    @property
    def step(self) -> int:
        return NO_STATE if self.history is None else len(self.history)

    @property
    def trains(self) -> bool:
        """Returns whether the process continues to the next collective."""
        group = self.membership.group
        if not self.alive or self.meets or group is None or self.membership.broken:
            return False
        return self.agreed <= group.attempt


class Ranks(RuleBasedStateMachine):
    """Hypothesis chooses what happens next."""

    @initialize(layout=st.sampled_from(LAYOUTS))
    def begin(self, layout: tuple[int, int]) -> None:
        size, self.unit = layout
        self.newest = Order(1, size, unit=self.unit)
        #: Whether the operator once continued without any unit that trained; and whether nobody could continue then.
        self.reckless = self.over = False
        self.all = [Process(Membership(rank, self.newest), []) for rank in range(size)]
        #: For each rank, the process whose agent gets the assignments.
        self.current = dict(enumerate(self.all))
        self.knew = dict[tuple[int, int], int]()
        self.formed_after = dict[int, int]()
        self.last_made = dict[int, int]()

    # The operator and the agents

    def assign(self, absent: frozenset[int]) -> None:
        self.newest = Order(self.newest.attempt + 1, self.newest.size, absent, unit=self.unit)
        for process in self.current.values():
            process.orders.append(self.newest)

    @rule(picks=st.sets(st.integers(0, 5), min_size=1), reckless=st.booleans())
    def some_are_taken_for_lost(self, picks: set[int], reckless: bool = False) -> None:
        """The operator continues without some ranks, whether or not they are dead, if a rank with the state is left. It
        knows nothing of units, so it may continue with complete units that haven't trained for long.
        """
        absent = self.newest.absent | (picks & set(range(self.newest.size)))
        if self._leaves_a_state(absent):
            self.assign(absent)
        elif reckless and self.unit > 1 and Order(1, self.newest.size, absent, unit=self.unit).present:
            self.reckless = True
            self.assign(absent)

    def _leaves_a_state(self, absent: frozenset[int], without: Process | None = None) -> bool:
        """Returns whether a rank with the state lives or, with units, whether a unit trains or has just trained."""
        stay = Order(1, self.newest.size, absent, unit=self.unit).present
        if self.unit == 1:
            return any(self._has_state(self.current[rank], without) for rank in stay)
        newest = max(each.membership.group.attempt if each.membership.group else 0 for each in self.all)
        good = {
            rank
            for rank in stay
            if self._has_state(self.current[rank], without) and self._group_of(self.current[rank]) == newest
        }
        return any({*range(rank, rank + self.unit)} <= good for rank in range(0, self.newest.size, self.unit))

    def _has_state(self, process: Process, without: Process | None) -> bool:
        return process.alive and process.history is not None and process is not without

    def _group_of(self, process: Process) -> int:
        return 0 if process.membership.group is None else process.membership.group.attempt

    @rule(picks=st.sets(st.integers(0, 5)), cut_off=st.booleans())
    def absent_ranks_are_replaced(self, picks: set[int], cut_off: bool) -> None:
        """Another process replaces an absent rank, in the same pod or elsewhere. Elsewhere, nobody ends the old one or
        assigns it anything.
        """
        for rank in picks & self.newest.absent:
            if not cut_off:
                self.current[rank].alive = False
            fresh = Process(Membership(rank), None, [self.newest], formed=set())
            self.current[rank] = fresh
            self.all.append(fresh)

    @rule(picks=st.sets(st.integers(0, 5), min_size=1))
    def those_who_are_ready_join(self, picks: set[int]) -> None:
        ready = {rank for rank in picks & self.newest.absent if self._is_ready(self.current[rank])}
        if ready:
            self.assign(self.newest.absent - ready)

    def _is_ready(self, process: Process) -> bool:
        return process.alive and process.history is None and process.meets is None

    @rule(pick=ANY, which=ANY)
    def an_order_arrives(self, pick: int, which: int) -> None:
        """Any order ever assigned to this process may arrive: late, twice, or instead of a newer one."""
        process = self.all[pick % len(self.all)]
        if process.alive and process.orders:
            self._receive(process, process.orders[which % len(process.orders)])

    @rule(pick=ANY)
    def the_newest_order_arrives(self, pick: int) -> None:
        process = self.all[pick % len(self.all)]
        if process.alive and process.orders:
            self._receive(process, process.orders[-1])

    def _receive(self, process: Process, order: Order) -> None:
        if self._commits(process) and process.rank in order.present:
            if process.put_off is None or order.attempt > process.put_off.attempt:
                process.put_off = order
            return
        process.membership = process.membership.received(order)
        if process.membership.broken:
            process.entered = None

    def _commits(self, process: Process) -> bool:
        return self.unit > 1 and process.entered == COLLECTIVES

    def _committed(self, process: Process) -> None:
        """Returns whether the process has made the step, or never will."""
        order, process.put_off = process.put_off, None
        if order is not None:
            self._receive(process, order)

    def _mates(self, process: Process) -> list[Process]:
        """Returns the processes that share a process's state and are, or were, in its group."""
        group, unit = process.membership.group, process.rank // self.unit
        return [each for each in self._ever_in(group) if each.rank // self.unit == unit and each is not process]

    def _ever_in(self, group: Order | None) -> list[Process]:
        return [each for each in self.all if group is not None and group.attempt in each.formed]

    # Faults

    @rule(pick=ANY)
    def a_process_dies(self, pick: int) -> None:
        process = self.all[pick % len(self.all)]
        if self.reckless or self._leaves_a_state(self.newest.absent, process):
            process.alive = False

    @rule(pick=ANY)
    def a_collective_fails(self, pick: int) -> None:
        process = self.all[pick % len(self.all)]
        if process.alive and process.meets is None and self._may_fail(process):
            self._fail(process)

    def _may_fail(self, process: Process) -> bool:
        """Returns whether a process's current collective may fail."""
        group, here = process.membership.group, (process.step, COLLECTIVES)
        return not self._commits(process) or any(
            not each.alive or (_reached(each) < here and (each.membership.broken or each.membership.group != group))
            for each in self._mates(process)
        )

    def _fail(self, process: Process) -> None:
        process.membership, process.entered = process.membership.failed(), None
        self._committed(process)

    @rule(pick=ANY)
    def forming_fails(self, pick: int) -> None:
        meeting = [each for each in self.all if each.alive and each.meets is not None]
        if meeting:
            process = meeting[pick % len(meeting)]
            process.meets = process.given = None

    # What ranks do

    @rule(still=st.sets(st.integers(0, 9), max_size=3), times=st.integers(1, 12), orders=st.booleans())
    def all_but_some_go_on(self, still: set[int], times: int, orders: bool) -> None:
        """Histories get far by this rule; the other rules put rare events in between."""
        for _ in range(times):
            for number, process in enumerate(self.all):
                if number not in still and process.alive:
                    if orders and process.orders:
                        self._receive(process, process.orders[-1])
                    self.enters_a_collective(number)
                    self.a_collective_succeeds(number)
                    self._meet(process)
                    self.all_have_met(number)
                    self._form(process)

    def _members(self, order: Order) -> list[Process]:
        """Returns all processes that take part in an attempt's group, one per rank, if all of them are there."""
        return [each for each in self.all if each.membership.group == order and each.alive]

    @rule(pick=ANY)
    def enters_a_collective(self, pick: int) -> None:
        process = self.all[pick % len(self.all)]
        group = process.membership.group
        if process.trains and process.entered is None and group is not None:
            process.entered = 0
            self._know(process, group)

    def _know(self, process: Process, group: Order) -> None:
        key = (group.attempt, process.step)
        self.knew[key] = max(self.knew.get(key, 0), process.membership.known)

    @rule(pick=ANY)
    def a_collective_succeeds(self, pick: int) -> None:
        process = self.all[pick % len(self.all)]
        group, entered = process.membership.group, process.entered
        if not process.trains or entered is None or group is None or process.history is None:
            return
        # A process that has reached the next collective or step had entered this one; one that died since counts too.
        here, others = (process.step, entered), self._ever_in(group)
        if self._commits(process):
            others = self._mates(process)
        wanted = {each.rank for each in others} if self._commits(process) else set(group.present)
        reached = {each.rank for each in others if _reached(each) >= here and each.membership.group == group}
        if not wanted <= reached | {process.rank}:
            return
        process.entered = entered + 1 if entered + 1 < COLLECTIVES + (self.unit > 1) else None
        if process.entered is None:
            process.agreed = self.knew[group.attempt, process.step]
            process.history = [*process.history, group.attempt]
            self.last_made[group.attempt] = max(self.last_made.get(group.attempt, 0), process.step)
            self._committed(process)

    @rule(pick=ANY)
    def meets(self, pick: int) -> None:
        self._meet(self.all[pick % len(self.all)])

    def _meet(self, process: Process) -> None:
        if not process.alive or process.meets or process.trains:
            return
        if process.membership.is_over():
            process.alive = False
            return
        order = process.membership.forms()
        if order is not None:
            assert process.rank in order.present
            process.membership, process.entered = process.membership.meets(order), None
            process.meets = order
            process.met.append(order.attempt)

    @rule(pick=ANY)
    def all_have_met(self, pick: int) -> None:
        order = self.all[pick % len(self.all)].meets
        if order is None:
            return
        there = {each.rank: each for each in self.all if each.alive and each.meets == order}
        if set(there) != set(order.present) or any(each.given is not None for each in there.values()):
            return
        try:
            newest, sources = exchange({rank: each.step for rank, each in there.items()}, self.unit)
        except ValueError:
            assert self.reckless, "nobody can go on"
            self.over = True
            return
        self.formed_after[order.attempt] = newest
        for rank, each in there.items():
            each.given = there[sources.get(rank, rank)].history
            assert sources.get(rank, rank) % self.unit == rank % self.unit
        assert all(each.given == there[order.present[0]].given for each in there.values()), "states are different"

    @rule(pick=ANY)
    def a_group_stands_for(self, pick: int) -> None:
        self._form(self.all[pick % len(self.all)])

    def _form(self, process: Process) -> None:
        if process.alive and process.meets is not None and process.given is not None:
            process.membership, process.history = process.membership.formed(process.meets), process.given
            process.formed.add(process.meets.attempt)
            process.meets = process.given = None

    # What always holds

    @invariant()
    def no_two_groups_train(self) -> None:
        """Once a group has formed, no older group gets further than one step beyond, which only lost ranks had made."""
        for attempt, step in getattr(self, "formed_after", {}).items():
            assert all(last <= step + 1 for older, last in self.last_made.items() if older < attempt)

    @invariant()
    def a_group_has_one_history(self) -> None:
        by_attempt = dict[int, list[list[int]]]()
        for each in getattr(self, "all", []):
            if each.membership.group is not None and each.history is not None and not each.membership.broken:
                by_attempt.setdefault(each.membership.group.attempt, []).append(each.history)
        for histories in by_attempt.values():
            longest = max(histories, key=len)
            assert all(history == longest[: len(history)] and len(longest) - len(history) <= 1 for history in histories)

    @invariant()
    def nobody_meets_twice_or_for_an_older_attempt(self) -> None:
        assert all(each.met == sorted(set(each.met)) for each in getattr(self, "all", []))

    def teardown(self) -> None:
        """Once faults stop, every process that is assigned and connected, and whose unit is, ends in the newest group
        and trains.
        """
        if not hasattr(self, "all") or self.over:
            return
        for _ in range(COLLECTIVES + 1):
            for number, process in enumerate(self.all):
                if any(map(self._commits, [process, *self._mates(process)])):
                    self.a_collective_succeeds(number)
        for process in self.all:
            if self._commits(process):
                assert not process.alive or self._may_fail(process), "it waits for a rank of its unit for ever"
                self._fail(process)
        lives = set(range(self.newest.size)) - self.newest.absent
        dead = {rank for rank in lives if not self.current[rank].alive or self._has_left(rank)}
        if not self._leaves_a_state(self.newest.absent | dead):
            return
        if dead or any(self._is_stuck(self.current[rank].membership) for rank in self.newest.present):
            self.assign(self.newest.absent | dead)
        for rank in self.newest.absent:
            absent = self.current[rank]
            self._receive(absent, self.newest)
            assert absent.membership.is_over() == (absent.membership.group is not None)
        there = [self.current[rank] for rank in self.newest.present]
        for process in there:
            for order in (self.newest, *process.orders):
                self._receive(process, order)
            if process.meets is not None:
                process.meets = process.given = None
        trained = [each for each in there if each.trains]
        for process in trained:
            group = process.membership.group
            members = [each for each in self.all if each.membership.group == group]
            if all(each in there and each.trains for each in members) and len(members) == len(
                group.present if group else ()
            ):
                process.agreed = self.newest.attempt  # all reach the end of the step, where they agree on the attempt
            else:
                gone = [each for each in members if not each.alive or each.meets or not each.trains]
                assert gone or len(members) < len(group.present if group else ()), "it waits for a rank that is cut off"
                process.membership = process.membership.failed()
        for process in there:
            self._meet(process)
        self.all_have_met(self.all.index(there[0]))
        for process in there:
            self._form(process)
            assert process.membership.group == self.newest, f"rank {process.rank} isn't in the newest group"
        for _ in range(5 * COLLECTIVES):
            for process in there:
                self.enters_a_collective(self.all.index(process))
            for process in there:
                self.a_collective_succeeds(self.all.index(process))
        assert all(process.history and process.history[-1] == self.newest.attempt for process in there)
        self.a_group_has_one_history()
        self.no_two_groups_train()

    def _is_stuck(self, membership: Membership) -> bool:
        """Returns whether the newest attempt's group has failed, so that the operator has to assign another attempt."""
        if membership.group == self.newest:
            return membership.broken
        return membership.tried == self.newest.attempt

    def _has_left(self, rank: int) -> bool:
        return self.current[rank].membership.is_over()


def _reached(process: Process) -> tuple[int, int]:
    """Returns a process's step, and its collective in the step."""
    return process.step, -1 if process.entered is None else process.entered


@pytest.mark.timeout(3600 if THOROUGH else 180)
class TestRanks(Ranks.TestCase):  # type: ignore[misc,valid-type]
    """Runs derandomized, so that each run of the tests is the same; TRAINMASTER_SLOW=1 looks for new histories."""

    settings = settings(
        max_examples=20_000 if THOROUGH else 150,
        stateful_step_count=120 if THOROUGH else 50,
        derandomize=not THOROUGH,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def test_random_histories_keep_the_rules() -> None:
    """Hypothesis chooses evenly, and so seldom gets far. Here ranks usually continue, and faults come in between."""
    for seed in range(20_000 if THOROUGH else 400):
        chance = random.Random(seed)
        ranks = Ranks()
        ranks.begin(chance.choice(LAYOUTS))
        for _ in range(60):
            _next(ranks, chance)
            ranks.no_two_groups_train()
            ranks.a_group_has_one_history()
            ranks.nobody_meets_twice_or_for_an_older_attempt()
        ranks.teardown()


def _next(ranks: Ranks, chance: random.Random) -> None:
    some = set(chance.sample(range(6), chance.randint(1, 2)))
    pick = chance.randrange(1000)
    kind = chance.randrange(20)
    if kind < 9:
        still = {chance.randrange(len(ranks.all)) for _ in range(chance.randint(0, 2))}
        ranks.all_but_some_go_on(still, chance.randint(1, 5), chance.random() < 0.5)
    elif kind < 11:
        ranks.some_are_taken_for_lost(some, chance.random() < 0.2)
    elif kind < 13:
        ranks.absent_ranks_are_replaced(set(range(6)), chance.random() < 0.3)
    elif kind < 15:
        ranks.those_who_are_ready_join(set(range(6)))
    elif kind < 17:
        ranks.a_collective_fails(pick)
    elif kind == 17:
        ranks.forming_fails(pick)
    elif kind == 18:
        ranks.an_order_arrives(pick, chance.randrange(1000))
    else:
        ranks.a_process_dies(pick)


def test_states_that_have_grown_old_in_incomplete_units_are_none_together() -> None:
    """Each unit has lost a different rank, so the ranks that are left hold a whole state between them."""
    ranks = Ranks()
    ranks.begin((6, 2))
    ranks.all_but_some_go_on(set(), 9, False)
    ranks.some_are_taken_for_lost({1, 2})
    steps = [ranks.current[rank].step for rank in (0, 3)]
    ranks.all_but_some_go_on(set(), 9, True)
    assert ranks.current[4].step == ranks.current[5].step > steps[0] == steps[1] > 0
    ranks.absent_ranks_are_replaced({1, 2}, False)
    ranks.reckless = True
    ranks.assign(frozenset({4}))
    ranks.all_but_some_go_on(set(), 9, True)
    assert ranks.over and 3 not in ranks.formed_after


def test_nobody_has_a_state() -> None:
    with pytest.raises(ValueError, match="a step is half made on all ranks that are left"):
        exchange({1: NO_STATE, 3: NO_STATE})
    with pytest.raises(ValueError, match="a step is half made on all replicas that are left"):
        exchange({0: NO_STATE, 1: 7, 4: 8, 5: NO_STATE}, 2)


def test_the_lowest_of_the_newest_gives_the_state() -> None:
    assert exchange({0: NO_STATE, 1: 7, 2: 8, 5: 8}) == (8, {0: 2, 1: 2})


def test_a_rank_is_given_the_state_by_one_at_its_place_of_a_unit_that_has_all_of_it() -> None:
    assert exchange({0: NO_STATE, 1: 9, 2: 8, 3: 7, 4: 7, 5: 8}, 2) == (8, {0: 2, 1: 5, 3: 5, 4: 2})
    with pytest.raises(ValueError, match="step 8 is made by some ranks of a replica, and not by all"):
        exchange({2: 8, 3: 7, 4: 7, 5: 7}, 2)


def test_ranks_of_an_incomplete_unit_wait() -> None:
    order = Order(3, 8, frozenset({0, 6}), unit=2)
    assert (order.present, order.idle, order.server) == ((2, 3, 4, 5), {1, 7}, 1)
    assert [Membership(rank, Order(2, 8)).received(order).broken for rank in (1, 2)] == [True, True]
    assert [Membership(rank, Order(2, 8)).received(order).forms() for rank in (1, 7, 2)] == [None, None, order]
    assert not any(Membership(rank, Order(2, 8)).received(order).is_over() for rank in (1, 7, 2))
    # An incomplete unit's lost rank is no loss to those that train.
    formed = Membership(2).received(order).meets(order).formed(order)
    assert not formed.received(Order(4, 8, frozenset({0, 1, 6}), unit=2)).broken
    assert formed.received(Order(4, 8, frozenset({0, 4, 6}), unit=2)).broken


_ORDER = {"attempt": 4, "absent": [2], "worldSize": 4, "master": "10.0.0.7", "port": 28533}
_VALUES = st.sampled_from(
    [-1, 0, 1, 5, 70_000, 10**30, 1.5, 1e400, True, None, "", "4", [], [0], [-1], [9], ["0"], [0, 1, 2, 3], {}]
)


@settings(max_examples=200, derandomize=not THOROUGH, deadline=None)
@given(st.one_of(st.text(), st.binary(), st.dictionaries(st.sampled_from(sorted(_ORDER)), _VALUES, max_size=2)))
def test_whatever_the_file_has_gives_an_order_or_none(content: str | bytes | dict[str, Any]) -> None:
    text = json.dumps(_ORDER | content) if isinstance(content, dict) else content
    order = parse(text if isinstance(text, str) else text.decode(errors="replace"))
    if order is not None:
        assert order.present
        assert order.absent <= set(range(order.size))
        assert order.attempt > 0
        assert 0 < order.port < 65536


def test_an_order_is_read() -> None:
    assert parse(json.dumps(_ORDER | {"more": 1})) == Order(4, 4, frozenset({2}), "10.0.0.7", 28533)


def test_a_group_that_comes_about_after_a_member_is_lost_is_broken() -> None:
    membership = Membership(0, Order(1, 3)).meets(order := Order(2, 3))
    assert not membership.formed(order).broken
    assert membership.received(Order(3, 3, frozenset({2}))).formed(order).broken

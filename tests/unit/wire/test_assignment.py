"""Assignments are parsed strictly, and of two assignments the right one wins."""

from __future__ import annotations

import json
import math
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.signer import GOOD
from tests.unit.hostile_json import PLAIN
from trainmaster_operator.wire.assignment import (
    DEFAULT_MASTER_PORT,
    PORTS,
    Assignment,
    is_master_port,
    master_port,
    newer,
    parse_text,
    port_at,
)
from trainmaster_operator.wire.names import AGENT_PORT
from trainmaster_operator.wire.values import ProtocolError


def test_an_assignment_survives_the_wire() -> None:
    assert Assignment.parse(parse_text(json.dumps(GOOD))).to_wire() == {
        name: value for name, value in GOOD.items() if name != "signatures"
    }
    assert Assignment.parse(GOOD).node_rank(1, "b") == 1
    assert Assignment.parse(GOOD).node_rank(1, "other") is None
    assert Assignment.parse(GOOD).node_rank(2, "b") is None
    assert Assignment.parse({**GOOD, "uids": None}).node_rank(1, "other") == 1


def test_a_worker_whose_pod_is_not_known_is_left_out_and_the_others_train() -> None:
    """Agents used to refuse such an assignment as a whole."""
    assignment = Assignment.parse({**GOOD, "uids": ["a", ""]})
    assert assignment.node_rank(0, "a") == 0
    assert assignment.node_rank(1, "b") is None
    assert assignment.node_rank(1, "") is None


def test_ranks_follow_from_the_workers_counts_where_they_differ() -> None:
    equal, uneven = Assignment.parse(GOOD), Assignment.parse({**GOOD, "processes": [8, 4]})
    assert (equal.first_rank(1, 4), equal.world_size(4)) == (4, 8)
    assert (uneven.first_rank(0, 8), uneven.first_rank(1, 4)) == (0, 8)
    assert uneven.world_size(4) == uneven.world_size(8) == 12


CONTINUED = {**GOOD, "uids": ["a", ""], "processes": [2, 1], "continues": 1, "absent": [0, 2]}


def test_a_continued_assignment_survives_the_wire_and_names_who_is_present() -> None:
    assignment = Assignment.parse(CONTINUED)
    assert Assignment.parse(json.loads(json.dumps(assignment.to_wire()))) == assignment
    assert (assignment.continues, assignment.absent, assignment.master) == (1, (0, 2), GOOD["hosts"][0])
    assert (assignment.present(0, 2), assignment.present(1, 2)) == ((1,), ())
    assert Assignment.parse({**CONTINUED, "absent": []}).absent == ()


def test_any_pod_may_prepare_ranks_that_are_absent_where_none_is_named() -> None:
    assignment = Assignment.parse(CONTINUED)
    assert (assignment.node_rank(1, "anybody"), assignment.node_rank(0, "anybody")) == (1, None)


def test_the_master_of_a_continued_attempt_may_be_any_worker() -> None:
    """The master is the worker of the lowest present rank, because rank 0 may be lost."""
    assignment = Assignment.parse({**CONTINUED, "uids": None, "absent": [0, 1], "master": GOOD["hosts"][1]})
    assert (assignment.master, assignment.to_wire()["master"]) == (GOOD["hosts"][1],) * 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"continues": 0}, "assignment.continues: 0 is not a whole number from 1 to 2"),
        ({"continues": 3}, "assignment.continues: 3 is not a whole number from 1 to 2"),
        ({"absent": [2, 0]}, "assignment.absent: the ranks are not in ascending order"),
        ({"absent": [1, 1]}, "assignment.absent: the ranks are not in ascending order"),
        ({"absent": [0, 1, 2]}, "assignment.absent: a list of 3 items is not a list of less than 3 ranks"),
        ({"absent": [3]}, "assignment.absent: 3 is not a whole number from 0 to 2"),
        ({"absent": [0], "continues": None}, "assignment.absent: a list of 1 items is not allowed without continues"),
        ({"master": "10.0.0.7"}, "assignment.master: '10.0.0.7' is not one of the hosts"),
    ],
)
def test_a_bad_continued_assignment_is_refused_by_field(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        Assignment.parse({**CONTINUED, **change})
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"attempt": -1}, "assignment.attempt: -1 is not a whole number from 0 to 1000000"),
        ({"attempt": True}, "assignment.attempt: True is not a whole number from 0 to 1000000"),
        ({"workers": []}, "assignment.workers: a list of 0 items is not a list of 1 to 1024 items"),
        ({"workers": [1, 1]}, "assignment.workers: an index stands there twice"),
        ({"hosts": ["x"]}, "assignment.hosts: 1 items for 2 workers"),
        ({"uids": ["x"]}, "assignment.uids: 1 items for 2 workers"),
        ({"processes": [8]}, "assignment.processes: 1 items for 2 workers"),
        ({"processes": [8, 0]}, "assignment.processes: 0 is not a whole number from 1 to 1024"),
        ({"port": 70000}, "assignment.port: 70000 is not a whole number from 20000 to 28979"),
        ({"port": 29500}, "assignment.port: 29500 is not a whole number from 20000 to 28979"),
        ({"attempt": 2**53}, "assignment.attempt: 9007199254740992 is not a whole number from 0 to 1000000"),
        ({"job": ""}, "assignment.job: '' is not a text of 1 to 64 characters"),
        ({"master": "10.0.0.7"}, "assignment.master: '10.0.0.7' is not the first of the hosts"),
        ({"master": "a\r\nb"}, "assignment.master: 'a\\r\\nb' is not a text of 1 to 253 characters"),
        ({"state": "Go"}, "assignment.state: 'Go' is neither Run nor Hold"),
        ({"graceSeconds": math.nan}, "assignment.graceSeconds: nan is not a number of seconds of at least 0"),
    ],
)
def test_a_bad_assignment_is_refused_by_field(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        Assignment.parse({**GOOD, **change})
    assert str(refused.value) == sentence


def test_the_higher_attempt_wins_and_at_the_same_one_hold() -> None:
    def of(attempt: int, state: str) -> Assignment:
        return Assignment.parse({**GOOD, "attempt": attempt, "state": state})

    assert newer(None, of(1, "Run"))
    assert newer(of(1, "Hold"), of(2, "Run"))
    assert newer(of(2, "Run"), of(2, "Hold"))
    assert not newer(of(2, "Hold"), of(2, "Run"))
    assert not newer(of(2, "Run"), of(2, "Run"))
    assert not newer(of(2, "Run"), of(1, "Hold"))


@given(st.binary(max_size=200) | PLAIN.map(lambda value: json.dumps(value).encode()))
def test_any_text_is_an_assignment_or_refused(text: bytes) -> None:
    try:
        Assignment.parse(parse_text(text))
    except ProtocolError as refused:
        assert len(str(refused)) < 400


@given(st.sampled_from([GOOD, CONTINUED]), st.sampled_from(sorted(CONTINUED)), PLAIN)
def test_any_value_in_any_field_is_accepted_or_refused(base: dict[str, Any], field: str, value: Any) -> None:
    try:
        taken = Assignment.parse({**base, field: value})
    except ProtocolError as refused:
        others = ("workers", "master", "continues", "absent")
        assert field in str(refused) or any(other in str(refused) for other in others)
    else:
        assert Assignment.parse(json.loads(json.dumps(taken.to_wire()))) == taken


uids = st.uuids().map(str)
attempts = st.integers(1, 1_000_000)


@given(uids, attempts)
def test_a_port_is_nobody_elses(uid: str, attempt: int) -> None:
    port = master_port(uid, attempt)
    assert 1_024 < port < 30_000, "NodePorts begin at 30000, ephemeral ports at 32768"
    assert port not in (AGENT_PORT, DEFAULT_MASTER_PORT, 29_400)


@settings(max_examples=5)
@given(uids, attempts)
def test_no_port_comes_again_before_all_others_were_used(uid: str, attempt: int) -> None:
    ports = {master_port(uid, attempt + later) for later in range(PORTS)}
    assert ports == {port_at(place) for place in range(PORTS)}
    assert len(ports) == PORTS
    assert ports == {port for port in range(65_536) if is_master_port(port)}


def test_jobs_hardly_meet() -> None:
    """A thousand jobs on one network share first ports only by chance: about fifty pairs."""
    jobs = [str(UUID(int=number)) for number in range(1_000)]
    assert len({master_port(uid, 1) for uid in jobs}) > 900


@given(uids, uids, attempts)
def test_two_jobs_that_met_part_again(one: str, other: str, attempt: int) -> None:
    """This holds even if both jobs make attempts at the same pace, unless their uids agree far more than by chance."""
    if one != other:
        shared = sum(master_port(one, attempt + later) == master_port(other, attempt + later) for later in range(50))
        assert shared <= 1

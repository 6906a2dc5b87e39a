"""The port of each attempt's rendezvous."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster_operator.wire.names import AGENT_PORT
from trainmaster_operator.wire.ports import DEFAULT_MASTER_PORT, PORTS, is_master_port, master_port, port_at

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
    """Of a thousand jobs on one network, no more share a first port than chance has it: about fifty pairs."""
    jobs = [str(UUID(int=number)) for number in range(1_000)]
    assert len({master_port(uid, 1) for uid in jobs}) > 900


@given(uids, uids, attempts)
def test_two_jobs_that_met_part_again(one: str, other: str, attempt: int) -> None:
    """Also where both go on at the same pace: unless their uids agree in far more than chance has it."""
    if one != other:
        shared = sum(master_port(one, attempt + later) == master_port(other, attempt + later) for later in range(50))
        assert shared <= 1

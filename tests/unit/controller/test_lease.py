"""`lease` allows one leader at a time, by client-go's rules (tools/leaderelection/leaderelection.go)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.unit.controller.fake_cluster import FakeCluster
from tests.unit.controller.virtual_time import in_virtual_time
from trainmaster_operator.controller.apiserver.cluster import LEASES
from trainmaster_operator.controller.apiserver.errors import Conflict, NotFound, Unavailable, Unreachable
from trainmaster_operator.controller.lease import LeaderLease
from trainmaster_operator.controller.settings import OperatorSettings

QUICK = OperatorSettings(
    lease_namespace="sys", lease_name="op", lease_seconds=0.8, renew_seconds=0.6, retry_seconds=0.03
)


def candidate(cluster: FakeCluster, name: str) -> LeaderLease:
    return LeaderLease(cluster, QUICK, name)


async def a_leader() -> tuple[FakeCluster, LeaderLease]:
    cluster = FakeCluster()
    first = candidate(cluster, "first")
    await first.acquire()
    return cluster, first


def holder(cluster: FakeCluster) -> str:
    return str(cluster.objects["leases", "sys", "op"]["spec"]["holderIdentity"])


@in_virtual_time
async def test_a_lease_that_was_not_renewed_in_time_is_not_held_before_anybody_knows() -> None:
    """The process or its loop was stopped, so its first write may come before it checks the lease again."""
    cluster = FakeCluster()
    first = candidate(cluster, "first")
    assert not first.is_held()
    await first.acquire()
    assert first.is_held()
    await asyncio.sleep(QUICK.renew_seconds - 0.01)
    assert first.is_held()
    await asyncio.sleep(0.02)
    assert first.leading
    assert not first.is_held()


@in_virtual_time
async def test_a_second_candidate_waits_as_long_as_the_leader_renews() -> None:
    cluster = FakeCluster()
    first, second = candidate(cluster, "first"), candidate(cluster, "second")
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(second.acquire(), 1.0)
    assert holder(cluster) == "first"
    assert not holding.done()
    holding.cancel()


async def test_what_keeps_a_candidate_from_the_lease_is_logged_once_with_a_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = FakeCluster()
    cluster.fail("create", "leases", NotFound("post", 'namespaces "sys" not found'), times=3)
    await asyncio.wait_for(candidate(cluster, "first").acquire(), 8)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == 1
    assert "kubectl create namespace sys" in warned[0]


@in_virtual_time
async def test_a_leader_that_is_gone_is_replaced_when_its_lease_has_not_changed_for_its_time() -> None:
    cluster = FakeCluster()
    await candidate(cluster, "first").acquire()
    second = candidate(cluster, "second")
    started = asyncio.get_running_loop().time()
    await asyncio.wait_for(second.acquire(), 3)
    assert asyncio.get_running_loop().time() - started >= QUICK.lease_seconds
    assert holder(cluster) == "second"
    assert cluster.objects["leases", "sys", "op"]["spec"]["leaseTransitions"] == 1


@in_virtual_time
async def test_a_released_lease_is_acquired_at_once() -> None:
    cluster, first = await a_leader()
    await first.release()
    second = candidate(cluster, "second")
    started = asyncio.get_running_loop().time()
    await asyncio.wait_for(second.acquire(), 3)
    assert asyncio.get_running_loop().time() - started < QUICK.lease_seconds


@pytest.mark.parametrize("landed", ["before", "meanwhile"])
async def test_a_lease_is_given_back_after_a_renewal_whose_answer_nobody_awaited(landed: str) -> None:
    """The operator's end cancels it at any moment: without that the next one waits for the lease's end."""
    cluster, first = await a_leader()
    if landed == "before":
        cluster.put(LEASES, cluster.objects["leases", "sys", "op"])
    else:
        cluster.fail("replace", "leases", Conflict("leases/op", "the object has been modified", status=409))
    await first.release()
    assert holder(cluster) == ""


async def test_a_lease_that_somebody_else_has_acquired_is_not_released() -> None:
    cluster, first = await a_leader()
    lease = cluster.objects["leases", "sys", "op"]
    cluster.put(LEASES, {**lease, "spec": {**lease["spec"], "holderIdentity": "second"}})
    await first.release()
    assert holder(cluster) == "second"


@in_virtual_time
async def test_a_leader_that_cannot_renew_gives_up_before_its_lease_ends() -> None:
    cluster, first = await a_leader()
    cluster.fail("get", "leases", Unreachable("get", "no route"), times=1_000)
    started = asyncio.get_running_loop().time()
    await asyncio.wait_for(first.hold(), 2)
    assert asyncio.get_running_loop().time() - started < QUICK.lease_seconds
    assert not first.leading


@in_virtual_time
async def test_a_request_that_hangs_does_not_keep_a_leader_beyond_its_time() -> None:
    _, first = await a_leader()
    never = asyncio.Event()

    class Hanging(FakeCluster):
        async def get(self, *_: object) -> dict[str, object]:
            await never.wait()
            return {}

    first._cluster = Hanging()
    started = asyncio.get_running_loop().time()
    await asyncio.wait_for(first.hold(), 2)
    assert asyncio.get_running_loop().time() - started < QUICK.lease_seconds


@in_virtual_time
async def test_a_leader_counts_from_when_it_asked_and_not_from_a_late_answer() -> None:
    """Others count from the write: a leader that counted from the answer would lead on beside the next one."""
    cluster, first = await a_leader()
    written = []

    class Slow(FakeCluster):
        async def replace(self, *given: Any) -> dict[str, Any]:
            answer = await cluster.replace(*given)
            written.append(asyncio.get_running_loop().time())
            cluster.fail("get", "leases", Unreachable("get", "no route"), times=1_000)
            await asyncio.sleep(0.45)
            return answer

    slow = Slow()
    slow.get = cluster.get  # type: ignore[method-assign]
    first._cluster = slow
    await asyncio.wait_for(first.hold(), 3)
    assert len(written) == 1
    assert asyncio.get_running_loop().time() - written[0] < QUICK.lease_seconds


@in_virtual_time
async def test_a_conflict_renews_nothing() -> None:
    cluster, first = await a_leader()
    cluster.fail("replace", "leases", Conflict("put", "changed"), times=1_000)
    await asyncio.wait_for(first.hold(), 3)
    assert not first.leading


@in_virtual_time
async def test_a_short_outage_does_not_cost_the_lease() -> None:
    cluster, first = await a_leader()
    cluster.fail("replace", "leases", Unavailable("put", "etcd"), times=2)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(first.hold(), 0.6)
    assert first.leading


@in_virtual_time
async def test_a_leader_whose_lease_was_lost_gives_up() -> None:
    cluster, first = await a_leader()
    taken = dict(cluster.objects["leases", "sys", "op"])
    taken["spec"] = {**taken["spec"], "holderIdentity": "other"}
    cluster.put(LEASES, taken)
    await asyncio.wait_for(first.hold(), 2)
    assert not first.leading


@in_virtual_time
async def test_of_two_that_create_the_lease_together_one_leads() -> None:
    cluster = FakeCluster()
    both = [candidate(cluster, name) for name in ("first", "second")]
    done, waiting = await asyncio.wait(
        [asyncio.create_task(one.acquire()) for one in both], timeout=0.2, return_when=asyncio.ALL_COMPLETED
    )
    assert (len(done), len(waiting)) == (1, 1)
    for task in waiting:
        task.cancel()


@in_virtual_time
async def test_an_operator_that_runs_alone_publishes_a_lease_that_keeps_nobody_from_leading() -> None:
    cluster = FakeCluster()
    publishing = asyncio.create_task(candidate(cluster, "").publish())
    await asyncio.sleep(0.01)
    first = cluster.objects["leases", "sys", "op"]["spec"]["renewTime"]
    await asyncio.sleep(0.1)
    assert cluster.objects["leases", "sys", "op"]["spec"]["renewTime"] >= first and holder(cluster) == ""
    leader = candidate(cluster, "first")
    await asyncio.wait_for(leader.acquire(), 1.0)
    holding = asyncio.create_task(leader.hold())
    await asyncio.sleep(0.1)
    assert holder(cluster) == "first" and leader.is_held()
    for task in (publishing, holding):
        task.cancel()


async def test_a_lease_that_cant_be_published_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cluster = FakeCluster()
    cluster.fail("create", "leases", NotFound("post", 'namespaces "sys" not found'), times=3)
    publishing = asyncio.create_task(candidate(cluster, "").publish())
    await asyncio.sleep(0.2)
    publishing.cancel()
    assert caplog.text.count("views can't show when this operator ends") == 1
    assert ("leases", "sys", "op") in cluster.objects

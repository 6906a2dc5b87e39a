"""`keeping.last_output` reads the output of ending pods to its last line, and delays nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.controller import builders as b
from tests.unit.controller.virtual_time import in_virtual_time
from tests.unit.controller.world import KEY, BaseWorld
from trainmaster_operator.api.kept_logs import KeptLog, stamped_line
from trainmaster_operator.api.times import to_seconds
from trainmaster_operator.controller.apiserver.cluster import JOBS, PODS, STATEFUL_SETS
from trainmaster_operator.controller.apiserver.errors import Unavailable
from trainmaster_operator.controller.keeping.config_maps import JobConfigMaps
from trainmaster_operator.controller.keeping.ending_pods import PLACES, LastOutput, LogPlaces
from trainmaster_operator.controller.keeping.evidence import EvidenceKeeper
from trainmaster_operator.controller.keeping.logs import STAMPED, TRIMMED, KeptLogs, LogEnd, PodLogs
from trainmaster_operator.wire.stream import OutputLine

DEADLINE = "2026-11-21T04:00:30Z"
DELETED = "PodDeleted"


@dataclass
class World(BaseWorld):
    """A job whose pod bert-1 is deleted at second 0 of the clock, with a grace period of 30 s."""

    spec: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()
        failure = {"attempt": 1, "reason": DELETED, "worker": 1, "pod": "bert-1", "failedAt": "2026-11-21T04:00:00Z"}
        status = {"phase": "Restarting", "attempt": 1, "failures": [failure]}
        self.put(JOBS, b.job(status=status, **self.spec))
        self.put(STATEFUL_SETS, b.child("StatefulSet"))
        for index in range(2):
            self.put(PODS, b.pod(index))
        ending = b.pod(1)
        ending["metadata"]["deletionTimestamp"] = DEADLINE
        self.put(PODS, ending)
        self.recorded: list[dict[int, KeptLog]] = []
        self.last_output = self.operator()

    def operator(self) -> LastOutput:
        """Returns another operator, which remembers nothing."""
        self.config_maps = JobConfigMaps(self.cluster)
        pods = PodLogs(self.cluster)
        logs = KeptLogs(
            self.config_maps, pods, limit=100_000, on_kept=lambda _job, kept: self.recorded.append(dict(kept))
        )
        start, clock = to_seconds("2026-11-21T04:00:00Z") or 0.0, asyncio.get_running_loop().time
        evidence = EvidenceKeeper(self.config_maps, self.store, pods)
        return LastOutput(self.store, pods, logs, evidence, now=lambda: start + clock())

    def prints(self, *chunks: str | float, ends: bool = True) -> None:
        """Sets bert-1's remaining output: texts, and the seconds between them."""

        async def follow() -> AsyncIterator[bytes]:
            for chunk in chunks:
                if isinstance(chunk, str):
                    yield chunk.encode()
                else:
                    await asyncio.sleep(chunk)
            if not ends:
                await asyncio.Event().wait()

        self.cluster.follows["bert-1"] = follow()

    def kept(self) -> str:
        found = self.cluster.objects.get(("configmaps", b.NAMESPACE, "bert-logs"))
        return str(found["data"].get("worker-1.log")) if found else ""


@in_virtual_time
async def test_a_pod_that_ends_is_read_to_its_last_line() -> None:
    world = World()
    world.cluster.logs["bert-1"] = "2026-11-21T03:59:00Z step 7\n"
    world.prints(10.0, "2026-11-21T04:00:10Z saved at st", "ep 7\n")
    for _ in range(3):
        # Each pass asks for all ending pods.
        world.last_output.follow(KEY, world.snapshot())
        await asyncio.sleep(5.0)
    assert world.kept() == "step 7\nsaved at step 7\n" == "".join(f"{line}\n" for line in world.recorded[-1][1].lines)
    assert world.cluster.calls["follow", "Pod"] == 1
    evidence = world.cluster.objects["configmaps", b.NAMESPACE, "bert-evidence"]["data"]["attempt-1.json"]
    assert "saved at step 7" in evidence and DELETED in evidence


@in_virtual_time
async def test_a_log_that_cannot_be_read_is_asked_for_again_until_the_pod_is_gone() -> None:
    world = World()
    world.cluster.fail("follow", "pods", Unavailable("log", "the kubelet is busy"), times=3)
    world.cluster.logs["bert-1"] = "2026-11-21T03:59:00Z step 7\n"
    world.last_output.follow(KEY, world.snapshot())
    await asyncio.sleep(5.0)
    assert world.kept() == "step 7\n"
    world = World()
    world.cluster.fail("follow", "pods", Unavailable("log", "the node is gone"), times=1_000)
    world.last_output.follow(KEY, world.snapshot())
    await asyncio.sleep(3.0)
    world.store.remove(PODS, KEY, "bert-1", "pod-bert-1")
    await asyncio.sleep(100.0)
    assert world.cluster.calls["follow", "Pod"] < 6


@in_virtual_time
async def test_a_deletion_waits_a_second_for_a_log_that_doesnt_come() -> None:
    world = World()
    clock = asyncio.get_running_loop().time
    pods = world.snapshot().observed.pods
    world.cluster.logs["bert-0"] = "2026-11-21T03:59:00Z step 7\n"
    await world.last_output.before_deletion(KEY, world.snapshot(), pods[:1])
    assert clock() == 0.0
    world.cluster.fail("follow", "pods", Unavailable("log", "the kubelet is busy"), times=1_000)
    await world.last_output.before_deletion(KEY, world.snapshot(), pods)
    assert clock() == 0.0
    silent = World()
    silent.cluster.opens = False
    await silent.last_output.before_deletion(KEY, silent.snapshot(), pods)
    assert clock() == 1.0


@in_virtual_time
async def test_a_pod_that_its_kubelet_has_given_up_is_read_though_nobody_deleted_it() -> None:
    """This happens when a node shuts down, or runs out of memory or disk."""
    world = World()
    world.cluster.logs["bert-0"] = "2026-11-21T03:59:00Z saved at step 7\n"
    evicted = b.pod(0, phase="Failed", reason="Evicted", containerStatuses=[b.terminated(143)])
    world.put(PODS, evicted)
    world.last_output.follow(KEY, world.snapshot())
    await asyncio.sleep(2.0)
    data = world.cluster.objects["configmaps", b.NAMESPACE, "bert-logs"]["data"]
    assert data["worker-0.log"] == "saved at step 7\n"


@in_virtual_time
async def test_a_container_that_never_ends_is_let_go_after_its_grace_period_and_what_it_printed_is_kept() -> None:
    world = World()
    world.prints("2026-11-21T04:00:10Z saving\n", ends=False)
    world.last_output.follow(KEY, world.snapshot())
    await asyncio.sleep(59.0)
    assert world.kept() == ""
    await asyncio.sleep(3.0)
    assert world.kept() == "saving\n"


@in_virtual_time
async def test_an_operator_that_ends_writes_what_it_has_read_and_the_next_one_goes_on() -> None:
    world = World()
    world.prints("2026-11-21T04:00:10Z saving\n", ends=False)
    world.last_output.follow(KEY, world.snapshot())
    await asyncio.sleep(1.0)
    await world.last_output.close()
    assert world.kept() == "saving\n"
    world.prints("2026-11-21T04:00:10Z saving\n", "2026-11-21T04:00:11Z saved\n")
    world.operator().follow(KEY, world.snapshot())
    await asyncio.sleep(1.0)
    assert world.kept() == "saving\nsaved\n"


@in_virtual_time
async def test_a_job_that_keeps_no_output_has_none_read() -> None:
    world = World({"runPolicy": {"keepLogs": False}})
    world.last_output.follow(KEY, world.snapshot())
    await world.last_output.before_deletion(KEY, world.snapshot(), world.snapshot().observed.pods)
    await asyncio.sleep(5.0)
    assert world.cluster.calls["follow", "Pod"] == 0 and world.kept() == ""


@in_virtual_time
async def test_a_flood_is_read_slowly_and_only_its_end_is_held() -> None:
    """In the grace period, 10 MB arrive, both in one endless line and in short lines."""
    world = World()
    world.prints(*["x" * 8_192] * 600, *["2026-11-21T04:00:10Z x\n" * 300] * 600, "2026-11-21T04:00:20Z saved\n")
    clock = asyncio.get_running_loop().time
    world.last_output.follow(KEY, world.snapshot())
    one = world.last_output._jobs[b.JOB_UID].followed["pod-bert-1"]
    while one.runs:
        assert len(one.end.data) <= STAMPED * one.end.limit + TRIMMED
        await asyncio.sleep(0.5)
    assert clock() > 20.0
    await asyncio.sleep(1.0)
    assert world.kept().endswith("\nsaved\n") and len(world.kept()) <= 64 * 1024


@in_virtual_time
async def test_no_namespace_takes_anothers_place() -> None:
    places, reading = LogPlaces(), 0

    async def read(namespace: str, seconds: float) -> None:
        nonlocal reading
        async with places.one(namespace):
            reading += 1
            try:
                await asyncio.sleep(seconds)
            finally:
                reading -= 1

    tasks = [asyncio.create_task(read(f"hostile-{number % 8}", 3_600.0)) for number in range(1_000)]
    await asyncio.sleep(1.0)
    assert reading <= PLACES
    async with asyncio.timeout(2.0):
        await read("mine", 1.0)
    assert not all(task.done() for task in tasks)


@given(st.lists(st.binary(max_size=40).map(lambda part: part.replace(b"\r", b"\n")), max_size=40), st.integers(0, 300))
def test_the_end_of_a_log_is_the_end_of_what_came_in_whatever_pieces(pieces: list[bytes], limit: int) -> None:
    end = LogEnd(limit)
    for piece in pieces:
        end.feed(piece)
    log = end.log()
    whole = b"".join(pieces).decode(errors="replace").replace("\x00", "").removesuffix("\n").split("\n")
    texts = [stamped_line(line).text for line in whole]
    if log.lines:
        assert texts[-len(log.lines) + 1 :] == list(log.lines[1:]) or len(log.lines) == 1
        assert sum(len(line.encode()) + 1 for line in log.lines) <= max(limit, 1)
    assert log.cut or list(log.lines) == texts or texts == [""]


def reported(world: World, *lines: str, uid: str = "pod-bert-1", first: str = "2026-11-21T03:59:00Z") -> None:
    """Reports the last output of worker 1 as its agent sends it to the leader; each new stream begins with it."""
    begin = round((to_seconds(first) or 0.0) * 1_000)
    line = OutputLine(1, 1, uid, lines, tuple(begin + number for number in range(len(lines))))
    world.last_output.report(KEY, b.JOB_UID, line)
    world.last_output.report(KEY, b.JOB_UID, line)


@in_virtual_time
async def test_what_an_agent_has_sent_is_kept_where_there_is_no_log_to_follow() -> None:
    world = World()
    world.store.remove(PODS, KEY, "bert-1", "pod-bert-1")
    reported(world, "step 7", "saved at step 7")
    await asyncio.sleep(5.0)
    assert world.kept() == "step 7\nsaved at step 7\n"
    assert "saved at step 7" in str(world.cluster.objects["configmaps", b.NAMESPACE, "bert-evidence"]["data"])
    # The leader also sends it to the next operator, which may already know a later pod of that worker.
    world.last_output = world.operator()
    reported(world, "step 7", "saved at step 7")
    await asyncio.sleep(5.0)
    assert world.kept() == "step 7\nsaved at step 7\n" and len(world.recorded) == 1
    reported(world, "step 8", uid="another", first="2026-11-21T04:10:00Z")
    await asyncio.sleep(40.0)
    world.last_output = world.operator()
    reported(world, "step 7", "saved at step 7")
    await asyncio.sleep(5.0)
    assert world.kept() == "step 7\nsaved at step 7\nstep 8\n"


@in_virtual_time
async def test_a_leader_that_makes_pods_up_costs_a_write_each_half_minute() -> None:
    world = World()
    for number in range(100):
        first = f"2026-11-21T05:{number // 10:02}:00Z"
        reported(world, f"step {number}", uid=f"pod-{number}", first=first)
        await asyncio.sleep(6.0)
    written = [log.lines[-1] for kept in world.recorded for log in kept.values()]
    assert 2 <= len(written) <= 21 and len(set(written)) == len(written)


@in_virtual_time
async def test_a_log_that_is_read_to_its_end_counts_and_not_what_the_agent_has_sent() -> None:
    world = World()
    world.prints(10.0, "2026-11-21T04:00:10Z saved at step 7\n")
    reported(world, "saved at step 7", first="2026-11-21T04:00:09Z")
    await asyncio.sleep(1.0)
    world.last_output.follow(KEY, world.snapshot())
    await asyncio.sleep(20.0)
    assert world.kept() == "saved at step 7\n"
    world = World()
    world.prints("2026-11-21T04:00:10Z saving\n", 3.0)
    world.cluster.fail("follow", "pods", Unavailable("log", "the kubelet is cut off"), times=1_000)
    world.last_output.follow(KEY, world.snapshot())
    reported(world, "saving", "saved", first="2026-11-21T04:00:10Z")
    await asyncio.sleep(100.0)
    assert world.kept() == "saving\nsaved\n"


@in_virtual_time
async def test_what_an_agent_has_sent_of_another_job_or_of_one_that_keeps_no_output_is_dropped() -> None:
    world = World({"runPolicy": {"keepLogs": False}})
    reported(world, "a patient's name")
    world.last_output.report(KEY, "another job", OutputLine(1, 1, "uid", ("x",), (1,)))
    await asyncio.sleep(5.0)
    assert world.kept() == "" and not world.last_output._jobs


@in_virtual_time
async def test_a_deleted_jobs_pods_are_read_for_the_history() -> None:
    world = World()
    world.cluster.logs["bert-0"] = "2026-11-21T03:59:00Z step 7\n"
    world.prints(10.0, "2026-11-21T04:00:10Z saved at step 7\n")
    world.last_output.follow(KEY, world.snapshot())
    world.store.remove(JOBS, KEY, "bert", b.JOB_UID)
    world.last_output.forget(b.JOB_UID)
    await asyncio.sleep(20.0)
    assert {worker: log.lines for kept in world.recorded for worker, log in kept.items()} == {
        0: ("step 7",),
        1: ("saved at step 7",),
    }
    assert world.kept() == "" and not world.last_output._jobs

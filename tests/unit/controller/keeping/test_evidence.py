"""`keeping.evidence` keeps evidence in a ConfigMap, bounded, clean and merged, and nothing waits for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.controller import builders as b
from tests.unit.controller.polling import until
from tests.unit.controller.world import KEY, BaseWorld
from trainmaster_operator.api.evidence import AttemptEvidence, evidence_key
from trainmaster_operator.api.kept_logs import KeptLog
from trainmaster_operator.api.times import to_text
from trainmaster_operator.api.v1alpha1 import Failure, JobStatus, RecoveryTimes
from trainmaster_operator.controller.apiserver.cluster import CONFIG_MAPS, JOBS, PODS, STATEFUL_SETS
from trainmaster_operator.controller.apiserver.errors import Forbidden
from trainmaster_operator.controller.keeping.config_maps import JobConfigMaps
from trainmaster_operator.controller.keeping.evidence import EvidenceKeeper, fitted, room_for
from trainmaster_operator.controller.keeping.logs import PodLogs
from trainmaster_operator.reconciling.observed.snapshot import Job, PodView
from trainmaster_operator.wire.ranks import RankState, parse_rank_states
from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.stream import EvidenceLine, parse_line, split
from trainmaster_operator.wire.values import ProtocolError


def now_text() -> str:
    import time

    return to_text(time.time())


@dataclass
class World(BaseWorld):
    settle_seconds: float = 0.05
    keep_output: bool = True

    def __post_init__(self) -> None:
        super().__init__()
        self.put(JOBS, b.job())
        self.put(STATEFUL_SETS, b.child("StatefulSet"))
        for index in range(2):
            self.put(PODS, b.pod(index))
        # By pod, where a test says what it printed.
        self.printed: dict[str, str] = {}
        # The evidence that the history gets: the job's uid, the attempt, and the evidence.
        self.recorded: list[tuple[str, int, str]] = []
        self.keeper = EvidenceKeeper(
            JobConfigMaps(self.cluster, self.keep_output),
            self.store,
            cast(PodLogs, self),
            settle_seconds=self.settle_seconds,
            on_kept=self.record_kept,
        )

    def record_kept(self, job: Job, attempt: int, evidence: str) -> None:
        self.recorded.append((job.uid, attempt, evidence))

    async def read(self, namespace: str, pod: PodView, *, complete: bool) -> KeptLog:
        """Stands for `PodLogs.read`."""
        text = self.printed.get(pod.name, f"the end of {pod.name}\n")
        return KeptLog(tuple(text.removesuffix("\n").split("\n")))

    def record(self, *failures: Failure) -> None:
        self.keeper.record_failure(KEY, self.snapshot(), JobStatus(phase="Running", attempt=2, failures=list(failures)))

    def reported(self, worker: int, **fields: Any) -> None:
        uid = self.snapshot().observed.pods[worker].uid
        values: dict[str, Any] = {"attempt": 1, "worker": worker, "uid": uid, "state": "Failed", "reason": "Error"}
        self.store.record_report(KEY, Report(**{**values, **fields}))

    def data(self) -> dict[str, str]:
        found = self.cluster.objects.get(("configmaps", b.NAMESPACE, "bert-evidence"))
        return dict(found["data"]) if found else {}

    def kept(self, attempt: int) -> AttemptEvidence:
        found = AttemptEvidence.parse(self.data()[evidence_key(attempt)])
        assert found is not None
        return found


def failed(attempt: int = 1, reason: str = "Hung", **fields: Any) -> Failure:
    values: dict[str, Any] = {
        "worker": 1,
        "rank": 1,
        "pod": "bert-1",
        "message": "no progress",
        "failed_at": now_text(),
    }
    return Failure(attempt=attempt, reason=reason, **{**values, **fields})


def stalled(attempt: int = 1, worker: int = 1, text: str = "in stuck") -> EvidenceLine:
    line = {"type": "evidence", "attempt": attempt, "worker": worker, "ranks": {str(worker): {"step": 3, "text": text}}}
    parsed = parse_line(json.dumps(line).encode())
    assert isinstance(parsed, EvidenceLine)
    return parsed


async def test_an_attempts_stacks_errors_and_log_are_kept_with_the_job_as_owner() -> None:
    world = World()
    world.keeper.record_stall(b.JOB_UID, stalled())
    world.record(failed())
    world.reported(1, reason="Hung", rank=1, error="stuck\x1b[31m\ud800", exit_code=68, environment="2 x H200\x1b[31m")
    world.reported(0, state="Stopped", reason="Stopped", culprit=False)
    await until(lambda: bool(world.data()))
    kept = world.kept(1)
    assert kept.failure["reason"] == "Hung"
    assert kept.ranks == {1: {"step": 3, "text": "in stuck"}}
    assert (kept.workers[1]["rank"], kept.workers[1]["exitCode"]) == (1, 68)
    assert kept.workers[1]["error"] == "stuck[31m?", "no terminal commands, valid UTF-8"
    assert kept.workers[1]["environment"] == "2 x H200[31m"
    assert kept.workers[0]["state"] == "Stopped"
    assert kept.logs == {1: "the end of bert-1\n"}
    await until(lambda: not any(one.stalls or one.size for one in world.keeper._jobs.values()))
    metadata = world.cluster.objects["configmaps", b.NAMESPACE, "bert-evidence"]["metadata"]
    assert metadata["ownerReferences"][0]["uid"] == b.JOB_UID
    world.record(failed())
    await world.keeper.close()


async def test_what_was_written_is_said_and_what_was_not_is_not() -> None:
    world = World()
    world.record(failed())
    await until(lambda: bool(world.recorded))
    assert world.recorded == [(b.JOB_UID, 1, world.data()[evidence_key(1)])]
    world.record(failed(attempt=2))
    await until(lambda: len(world.recorded) == 2)
    assert world.recorded[1] == (b.JOB_UID, 2, world.data()[evidence_key(2)]), "added to the first one's"
    world.cluster.fail("patch", "configmaps", Forbidden("patch", "no", status=403))
    world.record(failed(attempt=3))
    await until(lambda: world.cluster.calls["patch", "ConfigMap"] >= 2)
    await world.keeper.close()
    assert len(world.recorded) == 2


async def test_of_a_worker_with_hundreds_of_ranks_the_evidence_of_all_is_kept() -> None:
    """Its agent used to send the evidence of only 128 ranks."""
    world = World()
    states = {rank: RankState(step=3, state="S") for rank in range(400)}
    for line in split(EvidenceLine(1, 1, states)):
        parsed = parse_line(json.dumps(line.to_wire()).encode())
        assert isinstance(parsed, EvidenceLine)
        world.keeper.record_stall(b.JOB_UID, parsed)
    world.record(failed())
    world.reported(1, reason="Hung", rank=1, exit_code=68)
    await until(lambda: bool(world.data()))
    assert world.kept(1).ranks == {rank: {"step": 3, "state": "S", "text": ""} for rank in states}
    await world.keeper.close()


@pytest.mark.parametrize("forbids", ["the job", "the operator"])
async def test_without_leave_to_keep_output_the_evidence_has_who_and_how_only(forbids: str) -> None:
    world = World(keep_output=forbids != "the operator")
    if forbids == "the job":
        world.put(JOBS, b.job(runPolicy={"keepLogs": False}))
    world.keeper.record_stall(b.JOB_UID, stalled(text="a patient's name"))
    world.record(failed())
    name = "a patient's name"
    world.reported(1, reason="Hung", rank=1, error=name, exit_code=68, environment=name)
    await until(lambda: bool(world.data()))
    await world.keeper.last(KEY, world.snapshot(), JobStatus(phase="Failed", attempt=1, failures=[failed()]))
    kept = world.kept(1)
    assert "patient" not in str(world.data())
    assert kept.logs == {}
    assert kept.ranks == {1: {"step": 3, "text": ""}}
    assert (kept.workers[1]["reason"], kept.workers[1]["exitCode"]) == ("Hung", 68)


async def test_attempts_are_added_and_the_same_failure_is_written_once() -> None:
    world = World()
    first = failed(1, "Error")
    world.record(first)
    await until(lambda: len(world.data()) == 1)
    writes = world.cluster.calls["patch", "ConfigMap"] + world.cluster.calls["create", "ConfigMap"]
    world.record(first)
    world.record(failed(2, "Signal"), first)
    await until(lambda: len(world.data()) == 2)
    assert world.cluster.calls["patch", "ConfigMap"] + world.cluster.calls["create", "ConfigMap"] == writes + 1
    assert (world.kept(1).failure["reason"], world.kept(2).failure["reason"]) == ("Error", "Signal")


@pytest.mark.parametrize(
    ("attempt", "lines"), [(1, ["one", "it fails"]), (2, ["[rank 1]: two", "it fails again"]), (3, None)]
)
async def test_the_log_is_of_the_attempt_alone_however_much_the_next_one_has_printed(
    attempt: int, lines: list[str] | None
) -> None:
    world = World()
    job = b.job(status={"phase": "Running", "attempt": 4})
    job["metadata"]["resourceVersion"] = "1000"
    world.store.upsert(JOBS, job)
    more = "".join(f"[rank 1]: step {step} of the next attempt\n" for step in range(1_000))
    world.printed["bert-1"] = (
        "one\nit fails\n--- attempt 2 ---\n[rank 1]: two\nit fails again\n--- attempt 4 ---\n" + more
    )
    world.record(failed(attempt, "Error"))
    await until(lambda: bool(world.data()))
    assert world.kept(attempt).logs == ({} if lines is None else {1: "".join(f"{line}\n" for line in lines)})
    await world.keeper.close()


async def test_of_an_attempt_that_printed_much_the_last_whole_lines_are_kept() -> None:
    world = World()
    world.printed["bert-1"] = "".join(f"line {number:04}\n" for number in range(1_900))
    world.record(failed(1, "Error"))
    await until(lambda: bool(world.data()))
    log = world.kept(1).logs[1]
    assert log.startswith("line ") and log.endswith("line 1899\n")
    assert 11 * 1024 < len(log) <= 12 * 1024
    await world.keeper.close()


async def test_how_long_the_way_back_took_is_added_when_it_is_known() -> None:
    world = World()
    failure = failed()
    world.record(failure)
    await until(lambda: bool(world.data()))
    assert "recovery" not in world.kept(1).failure
    back = failure.model_copy(update={"recovery": RecoveryTimes(seconds=0.4, assigned=0.1)})
    world.record(back)
    await until(lambda: "recovery" in world.kept(1).failure)
    assert world.kept(1).failure["recovery"] == {"seconds": 0.4, "assigned": 0.1}
    assert world.kept(1).logs == {1: "the end of bert-1\n"}


async def test_at_the_jobs_end_it_is_written_at_once_and_keeps_what_was_known() -> None:
    world = World(settle_seconds=60.0)
    earlier = AttemptEvidence(1, {"reason": "Hung"}, ranks={0: {"text": "kept before"}}, logs={1: "log"})
    metadata = {"namespace": b.NAMESPACE, "name": "bert-evidence", "ownerReferences": b.owner()}
    world.cluster.put(CONFIG_MAPS, {"metadata": metadata, "data": {evidence_key(1): earlier.to_json()}})
    world.keeper.record_stall(b.JOB_UID, stalled())
    world.record(failed())
    await world.keeper.last(KEY, world.snapshot(), JobStatus(phase="Failed", attempt=1, failures=[failed()]))
    kept = world.kept(1)
    assert kept.ranks.keys() == {0, 1}
    assert kept.logs == {1: "log"}


async def test_at_the_jobs_end_an_attempt_that_ended_just_before_is_written_too() -> None:
    world = World(settle_seconds=600)
    world.reported(1, attempt=1, error="the first error")
    first = failed(1, reason="Error")
    world.record(first)
    world.reported(0, attempt=2, error="the second error")
    second = failed(2, reason="Error", worker=0, rank=0, pod="bert-0")
    await world.keeper.last(KEY, world.snapshot(), JobStatus(phase="Failed", attempt=2, failures=[second, first]))
    assert world.kept(1).workers[1]["error"] == "the first error"
    assert world.kept(2).workers[0]["error"] == "the second error"
    await world.keeper.close()


async def test_what_only_a_pod_knows_is_written_before_the_operator_deletes_it() -> None:
    world = World(settle_seconds=60.0)
    failure = failed(1, "Error")
    job = b.job(
        status=JobStatus(phase="Restarting", attempt=1, failures=[failure]).model_dump(by_alias=True, mode="json")
    )
    job["metadata"]["resourceVersion"] = "1000"
    world.store.upsert(JOBS, job)
    world.reported(1)
    world.reported(0, culprit=False)
    bystander, culprit = (pod.uid for pod in world.snapshot().observed.pods)
    await world.keeper.before_deletion(KEY, world.snapshot(), bystander)
    assert (world.kept(1).workers.keys(), world.kept(1).logs) == ({0, 1}, {})
    await world.keeper.before_deletion(KEY, world.snapshot(), culprit)
    assert world.kept(1).logs == {1: "the end of bert-1\n"}
    before = sum(world.cluster.calls.values())
    await world.keeper.before_deletion(KEY, world.snapshot(), culprit)
    assert sum(world.cluster.calls.values()) == before, "a deletion that is tried again writes nothing"


async def test_what_cant_be_written_stops_nothing() -> None:
    world = World()
    refused = Forbidden("create configmaps", "no")
    world.cluster.fail("create", "configmaps", refused)
    await world.keeper.last(KEY, world.snapshot(), JobStatus(phase="Failed", attempt=1, failures=[failed()]))
    assert world.data() == {}
    metadata = {"namespace": b.NAMESPACE, "name": "bert-evidence", "ownerReferences": b.owner("somebody")}
    world.cluster.put(CONFIG_MAPS, {"metadata": metadata, "data": {"mine": "x"}})
    await world.keeper.last(KEY, world.snapshot(), JobStatus(phase="Failed", attempt=1, failures=[failed()]))
    assert world.data() == {"mine": "x"}, "an object of somebody else is left alone"


async def test_an_operator_that_comes_back_leaves_old_failures_alone() -> None:
    world = World()
    world.record(failed(at="2020-01-01T00:00:00Z"))
    await world.keeper.close()
    assert world.cluster.order == []


def test_a_large_attempt_is_fitted_and_the_culprits_stacks_go_last() -> None:
    huge = AttemptEvidence(
        3,
        {"rank": 7, "worker": 7, "message": "x"},
        {worker: {"error": "é" * 2_000} for worker in range(64)},
        {rank: {"text": "\x01" * 40_000} for rank in range(64)},
        {7: "log\n" * 3_000},
    )
    small = fitted(huge, 64 * 1024)
    assert len(small.to_json()) <= 64 * 1024
    assert len(small.ranks[7]["text"]) >= len(small.ranks.get(8, {"text": ""})["text"])
    assert small.failure == huge.failure


def test_older_attempts_give_way_but_not_the_first() -> None:
    data = {evidence_key(attempt): "x" * 1_000 for attempt in range(1, 6)}
    changes = room_for({**data, "note": "y"}, AttemptEvidence(6, {"message": "z" * 900}), 3_500)
    gone = {name for name, value in changes.items() if value is None}
    assert gone == {evidence_key(attempt) for attempt in (2, 3, 4)}
    same = AttemptEvidence(1)
    assert room_for({evidence_key(1): same.to_json()}, same) == {}


@given(st.recursive(st.none() | st.text() | st.floats() | st.integers(), lambda x: st.dictionaries(st.text(), x)))
def test_what_ranks_say_is_bounded_or_refused(value: Any) -> None:
    for said in (value, {"3": value}, {"3": {"text": value, "step": value, "state": value, "silentSeconds": value}}):
        try:
            ranks = parse_rank_states(said)
        except ProtocolError:
            continue
        json.dumps([state.to_wire() for state in ranks.values()], allow_nan=False).encode()


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"attempt":"x"}', '{"attempt":1,"ranks":[1]}', '{"attempt":1,"logs":3}']
)
def test_an_edited_value_is_passed_over(text: str) -> None:
    assert AttemptEvidence.parse(text) is None


def test_evidence_survives_the_wire() -> None:
    one = AttemptEvidence(2, {"reason": "Error"}, {1: {"state": "Failed"}}, {3: {"text": "x\ny"}}, {1: "log"})
    assert AttemptEvidence.parse(one.to_json()) == one

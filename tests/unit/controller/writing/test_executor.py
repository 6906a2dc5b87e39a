"""`writing.executor` writes the status first, and writes nothing that was decided on outdated facts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.signer import KEYS
from tests.unit.controller import builders as b
from tests.unit.controller.world import KEY, BaseWorld
from trainmaster_operator.api.kept_logs import KeptLog
from trainmaster_operator.api.v1alpha1 import JobStatus, Progress, WorkerCounts
from trainmaster_operator.controller.apiserver.cluster import EVENTS, JOBS, PODS, SERVICES, STATEFUL_SETS
from trainmaster_operator.controller.apiserver.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    TooManyRequests,
    Unavailable,
)
from trainmaster_operator.controller.cache.records import JobKey
from trainmaster_operator.controller.keeping import logs
from trainmaster_operator.controller.keeping.config_maps import JobConfigMaps
from trainmaster_operator.controller.keeping.ending_pods import LastOutput
from trainmaster_operator.controller.keeping.evidence import EvidenceKeeper
from trainmaster_operator.controller.keeping.logs import KeptLogs, PodLogs
from trainmaster_operator.controller.keys import AgentsSecrets
from trainmaster_operator.controller.writing.agent_config_maps import AgentConfigMaps
from trainmaster_operator.controller.writing.children import ChildWriter
from trainmaster_operator.controller.writing.executor import Executor, Outcome
from trainmaster_operator.controller.writing.status import EventRecorder, to_wire
from trainmaster_operator.reconciling.decision import (
    Apply,
    Assign,
    CollectStacks,
    Decision,
    DeleteChild,
    DeleteJob,
    DeletePod,
    JobEvent,
    Touch,
)
from trainmaster_operator.reconciling.observed.snapshot import RefusedWrite
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.names import ASSIGNMENT_ANNOTATION, TOUCHED_ANNOTATION


@dataclass
class World(BaseWorld):
    pushed: list[Assignment] = field(default_factory=list)
    # The number of writes before the last push.
    written: dict[tuple[str, str], int] = field(default_factory=dict)
    asked: list[CollectStacks] = field(default_factory=list)
    now: float = 1_000.0

    def __post_init__(self) -> None:
        super().__init__()

        async def push(key: JobKey, assignment: Assignment) -> None:
            await asyncio.sleep(0.01)
            self.pushed.append(assignment)
            self.written = dict(self.cluster.calls)

        agents = AgentConfigMaps(self.cluster, self.store, b"an agent", interval=60.0)
        pod_logs = PodLogs(self.cluster)
        config_maps = JobConfigMaps(self.cluster)
        logs = KeptLogs(config_maps, pod_logs, limit=100_000)
        evidence = EvidenceKeeper(config_maps, self.store, pod_logs)
        self.executor = Executor(
            self.cluster,
            self.store,
            KEYS,
            ChildWriter(self.cluster, self.store, AgentsSecrets(self.cluster, KEYS), agents),
            agents,
            EventRecorder(self.cluster, lambda: self.now),
            push=push,
            ask_for_stacks=lambda _key, _job, action: self.asked.append(action),
            logs=logs,
            evidence=evidence,
            last_output=LastOutput(self.store, pod_logs, logs, evidence),
            progress_seconds=5.0,
            now=lambda: self.now,
        )
        self.put(JOBS, b.job())

    def add_pods(self, count: int = 2) -> None:
        self.put(STATEFUL_SETS, b.child("StatefulSet"))
        for index in range(count):
            self.put(PODS, b.pod(index))

    async def execute(self, decision: Decision) -> Outcome:
        return await self.executor.execute(KEY, self.snapshot(), decision)


def running(**fields: Any) -> JobStatus:
    return JobStatus(phase="Running", attempt=1, **fields)


async def test_a_write_that_is_refused_for_a_day_is_still_tried_once_a_minute() -> None:
    """It is tried once a minute; a double holds only 1,024 doublings."""
    world = World()
    for _ in range(1_440):
        world.store.record_refusal(KEY, RefusedWrite("apply Service bert", "Forbidden", "quota", 0.0), 0.0)
    world.cluster.fail("create", "services", Forbidden("create", "quota", status=403, reason="Forbidden"))
    outcome = await world.execute(b.decided(running(), Apply(b.child("Service"))))
    assert outcome.retry_after == 60.0


async def test_status_is_written_before_any_action_and_read_back_into_the_store() -> None:
    world = World()
    await world.execute(b.decided(running(), Apply(b.child("Service")), Apply(b.child("StatefulSet"))))
    writes = [(verb, kind) for verb, kind, _ in world.cluster.order if verb != "get"]
    assert writes == [
        ("patch status", "DistributedTrainingJob"),
        ("create", "Service"),
        # The Secret is created once for a namespace.
        ("create", "Secret"),
        ("create", "StatefulSet"),
    ]
    assert world.snapshot().job.status.phase == "Running", "the next pass sees it before any watch does"
    assert len(world.snapshot().observed.children) == 2


async def test_an_equal_status_is_not_written_again() -> None:
    world = World()
    await world.execute(b.decided(running()))
    await world.execute(b.decided(running()))
    assert world.cluster.calls["patch status", "DistributedTrainingJob"] == 1


async def test_a_decision_on_an_old_view_is_not_written_and_nothing_follows_from_it() -> None:
    world = World()
    snapshot = world.snapshot()
    world.cluster.put(JOBS, b.job(status={"attempt": 5, "phase": "Running"}))
    with pytest.raises(Conflict):
        await world.executor.execute(KEY, snapshot, b.decided(running(), Apply(b.child("Service"))))
    assert ("services", b.NAMESPACE, "bert") not in world.cluster.objects
    assert world.snapshot().job.status.attempt == 5, "the job was read anew, so the next pass decides on the truth"


async def test_progress_alone_is_written_every_few_seconds_and_a_change_of_state_at_once() -> None:
    world = World()
    await world.execute(b.decided(running()))
    outcome = await world.execute(b.decided(running(progress=Progress(step=1))))
    assert (outcome.wrote_status, outcome.retry_after) == (False, 5.0)
    world.now += 2
    await world.execute(b.decided(running(restarts=1, progress=Progress(step=2))))
    assert world.stored("distributedtrainingjobs")["status"]["progress"]["step"] == 2
    world.now += 6
    outcome = await world.execute(b.decided(running(restarts=1, progress=Progress(step=3))))
    assert outcome.wrote_status


async def test_an_operator_that_has_just_started_writes_progress_when_the_reports_are_in() -> None:
    world = World()
    stands = running(workers=WorkerCounts(desired=2, created=2, running=2))
    world.put(JOBS, b.job(status=to_wire(stands)))
    connected = running(workers=WorkerCounts(desired=2, created=2, running=0))
    outcome = await world.execute(b.decided(connected))
    assert (outcome.wrote_status, outcome.retry_after) == (False, 5.0)
    world.now += 2
    assert not (await world.execute(b.decided(stands))).wrote_status
    world.now += 4
    assert (await world.execute(b.decided(connected))).wrote_status


async def test_progress_that_was_decided_on_an_old_view_is_not_written() -> None:
    """Otherwise a deposed leader's numbers would be beside the state that its successor wrote."""
    world = World()
    await world.execute(b.decided(running(progress=Progress(step=1))))
    snapshot = world.snapshot()
    world.cluster.put(JOBS, b.job(status={"attempt": 2, "phase": "Running", "progress": {"step": 9}}))
    world.now += 60
    with pytest.raises(Conflict):
        await world.executor.execute(KEY, snapshot, b.decided(running(progress=Progress(step=2))))
    assert world.stored("distributedtrainingjobs")["status"]["progress"] == {"step": 9}
    assert world.snapshot().job.status.attempt == 2


async def test_a_child_is_deleted_only_as_it_was_when_that_was_decided() -> None:
    world = World()
    made = world.cluster.put(SERVICES, b.child("Service"))
    world.store.upsert(SERVICES, made)
    world.cluster.put(SERVICES, b.child("Service", rendered_hash="newer"))
    action = DeleteChild("Service", "bert", made["metadata"]["uid"])
    with pytest.raises(Conflict):
        await world.execute(b.decided(running(), action))
    assert world.snapshot().observed.children[0].rendered_hash == "newer"
    await world.execute(b.decided(running(), action))
    assert ("services", b.NAMESPACE, "bert") not in world.cluster.objects


async def test_an_assignment_goes_to_the_leader_to_each_pod_and_to_the_template() -> None:
    world = World()
    world.add_pods()
    assignment = b.assignment(2)
    await world.execute(
        b.decided(
            running(), Assign(assignment, (b.ref(0), b.ref(1))), Apply(b.child("StatefulSet", rendered_hash="h2"))
        )
    )
    assert world.pushed == [assignment]
    assert world.written == {("patch status", JOBS.kind): 1}, "the slower ways wait for the push"
    for index in (0, 1):
        annotations = world.stored("pods", f"bert-{index}")["metadata"]["annotations"]
        assert annotations[ASSIGNMENT_ANNOTATION] == KEYS.sign(assignment)
    assert world.snapshot().observed.pods[0].assignment == assignment


async def test_an_assignment_that_is_over_goes_all_ways_at_once() -> None:
    world = World()
    world.add_pods(1)
    template = Apply(b.child("StatefulSet", rendered_hash="h2"))
    await world.execute(b.decided(running(), Assign(b.assignment(2).held(), (b.ref(0),)), template))
    assert [pushed.state for pushed in world.pushed] == ["Hold"]
    assert world.written["patch", "Pod"] == 1 and world.written["apply", "StatefulSet"] == 1


async def test_a_pod_that_was_replaced_meanwhile_does_not_get_the_others_assignment() -> None:
    world = World()
    world.add_pods(1)
    world.cluster.put(PODS, b.pod(0, uid="another"))
    world.cluster.objects["pods", b.NAMESPACE, "bert-0"]["metadata"]["uid"] = "another"
    await world.execute(b.decided(running(), Assign(b.assignment(2), (b.ref(0),))))
    assert ASSIGNMENT_ANNOTATION not in world.stored("pods", "bert-0")["metadata"]["annotations"]
    assert [pod.uid for pod in world.snapshot().observed.pods] == ["another"]


async def test_a_uid_that_differs_is_invalid_to_a_real_api_server_and_means_the_same() -> None:
    world = World()
    world.add_pods(1)
    world.cluster.remove(PODS, b.NAMESPACE, "bert-0")
    world.cluster.put(PODS, b.pod(0, uid="another"))
    world.cluster.fail("patch", "pods", Invalid("patch", "metadata.uid: field is immutable", status=422))
    await world.execute(b.decided(running(), Assign(b.assignment(2), (b.ref(0),))))
    assert [pod.uid for pod in world.snapshot().observed.pods] == ["another"]


async def test_a_patch_that_is_refused_for_another_reason_is_a_problem() -> None:
    world = World()
    world.add_pods(1)
    world.cluster.fail("patch", "pods", Invalid("patch", "denied the request: no annotations here", status=422))
    await world.execute(b.decided(running(), Assign(b.assignment(2), (b.ref(0),))))
    assert "no annotations here" in world.snapshot().observed.refused_writes[0].message


async def test_a_foreign_object_of_the_same_name_is_never_adopted() -> None:
    world = World()
    world.cluster.put(SERVICES, b.child("Service", owner_uid=None))
    before = dict(world.stored("services"))
    outcome = await world.execute(b.decided(running(), Apply(b.child("Service"))))
    assert world.stored("services") == before
    problem = world.snapshot().observed.refused_writes[0]
    assert problem.reason == "NotOurs"
    assert "Service 'bert' exists and belongs to nobody; delete it or rename the job" in problem.message
    assert outcome.retry_after is not None


async def test_a_refused_write_becomes_a_problem_and_is_tried_again_with_a_backoff_of_its_own() -> None:
    world = World()
    quota = Forbidden("apply", "exceeded quota: team-a", status=403, reason="Forbidden")
    world.cluster.fail("create", "statefulsets", quota, times=2)
    decision = b.decided(running(), Apply(b.child("Service")), Apply(b.child("StatefulSet")))
    outcome = await world.execute(decision)
    assert 0 < (outcome.retry_after or 0) <= 1.0
    assert world.snapshot().observed.refused_writes[0].message == "exceeded quota: team-a"
    assert ("services", b.NAMESPACE, "bert") in world.cluster.objects, "what isn't refused is done"
    await world.execute(decision)
    assert world.cluster.calls["create", "StatefulSet"] == 1, "not before its time"


async def test_a_refusal_that_ends_leaves_no_problem() -> None:
    world = World()
    world.cluster.fail("create", "services", Forbidden("apply", "no", status=403))
    await world.execute(b.decided(running(), Apply(b.child("Service"))))
    blocked = world.store.refusal(KEY, "apply Service bert")
    assert blocked is not None
    world.store.record_refusal(KEY, blocked, 0.0)
    await world.execute(b.decided(running(), Apply(b.child("Service"))))
    assert world.snapshot().observed.refused_writes == ()


@pytest.mark.parametrize("error", [TooManyRequests("x", "busy", status=429, retry_after=3.0), Unavailable("x", "etcd")])
async def test_a_failure_that_passes_is_raised_for_the_queue(error: ClusterError) -> None:
    world = World()
    world.cluster.fail("create", "services", error)
    with pytest.raises(type(error)):
        await world.execute(b.decided(running(), Apply(b.child("Service")), Touch(())))


async def test_a_pod_is_deleted_only_as_it_was_when_that_was_decided() -> None:
    world = World()
    world.add_pods(1)
    world.cluster.put(PODS, b.pod(0, phase="Pending"))
    with pytest.raises(Conflict):
        await world.execute(b.decided(running(), DeletePod(b.ref(0), "stuck", force=True)))
    assert ("pods", b.NAMESPACE, "bert-0") in world.cluster.objects
    await world.execute(b.decided(running(), DeletePod(b.ref(0), "stuck", force=True)))
    assert ("pods", b.NAMESPACE, "bert-0") not in world.cluster.objects


async def test_another_pod_of_the_same_name_is_never_deleted() -> None:
    world = World()
    world.add_pods(1)
    world.cluster.remove(PODS, b.NAMESPACE, "bert-0")
    world.cluster.put(PODS, b.pod(0, uid="another"))
    await world.execute(b.decided(running(), DeletePod(b.ref(0), "stuck")))
    assert world.stored("pods", "bert-0")["metadata"]["uid"] == "another"


async def test_only_a_job_that_has_ended_is_deleted() -> None:
    world = World()
    snapshot = world.snapshot()
    with pytest.raises(Conflict):
        await world.executor.execute(KEY, snapshot, b.decided(snapshot.job.status, DeleteJob(b.JOB_UID)))
    done = JobStatus(phase="Succeeded", attempt=1)
    await world.execute(b.decided(done, DeleteJob(b.JOB_UID)))
    assert not [place for place in world.cluster.objects if place[0] == "distributedtrainingjobs"]


async def test_the_workers_logs_are_kept_before_the_job_is_called_finished() -> None:
    world = World()
    world.add_pods()
    world.cluster.logs = {"bert-0": "step 1\nstep 2\n", "bert-1": "x" * 10}
    done = JobStatus(phase="Succeeded", attempt=1)
    await world.execute(b.decided(done, Apply(b.child("StatefulSet"))))
    await world.execute(b.decided(done, Apply(b.child("StatefulSet"))))
    kept = world.stored("configmaps", "bert-logs")
    assert kept["data"] == {"worker-0.log": "step 1\nstep 2\n", "worker-1.log": "x" * 10 + "\n"}
    assert kept["metadata"]["ownerReferences"][0]["uid"] == b.JOB_UID
    kinds = [kind for verb, kind, _ in world.cluster.order if verb in ("create", "apply", "patch status")]
    assert kinds == ["ConfigMap", "DistributedTrainingJob", "Secret", "StatefulSet", "StatefulSet"]


async def test_nobody_waits_for_the_last_lines_of_a_spare() -> None:
    world = World()
    world.add_pods(4)
    trained = {"phase": "Running", "attempt": 2, "workerOrder": [0, 2]}
    world.put(JOBS, b.job(status=trained))
    world.cluster.logs = {"bert-0": "step 1\n", "bert-1": "what it did before\n", "bert-2": "step 1\n"}
    await world.execute(b.decided(JobStatus(phase="Succeeded", attempt=2, worker_order=[0, 2])))
    assert world.stored("configmaps", "bert-logs")["data"] == {
        "worker-0.log": "step 1\n",
        "worker-1.log": "what it did before\n",
        "worker-2.log": "step 1\n",
    }
    read = [name for verb, _, name in world.cluster.order if verb == "log"]
    # If a log is empty, the previous container's log is read too, as always.
    assert (read.count("bert-1"), read.count("bert-3")) == (1, 2)


async def test_logs_are_being_read_before_pods_are_deleted_or_scaled_away() -> None:
    world = World()
    world.add_pods(3)
    status = JobStatus(phase="Running", attempt=1)
    deleted = DeletePod(b.ref(0), "it is to be replaced")
    # From now on the set has two pods.
    await world.execute(b.decided(status, Apply(b.child("StatefulSet")), deleted))
    verbs = ("patch status", "follow", "apply", "delete")
    assert [(verb, name) for verb, _, name in world.cluster.order if verb in verbs] == [
        ("patch status", "bert"),
        ("follow", "bert-2"),
        ("apply", "bert"),
        ("follow", "bert-0"),
        ("delete", "bert-0"),
    ]
    # The kubelet of a lost node returns no log.
    await world.execute(b.decided(status, DeletePod(b.ref(1), "its node is lost", force=True)))
    assert world.cluster.calls["follow", "Pod"] == 2


async def test_a_suspended_job_s_logs_are_kept_and_those_of_its_next_attempt_are_added() -> None:
    world = World()
    world.add_pods()
    world.put(JOBS, b.job(status={"phase": "Running", "attempt": 1}))
    world.cluster.logs = {"bert-0": "step 1\n", "bert-1": "one\n"}
    await world.execute(b.decided(JobStatus(phase="Suspending", attempt=1)))
    assert world.stored("configmaps", "bert-logs")["data"] == {"worker-0.log": "step 1\n", "worker-1.log": "one\n"}
    world.put(JOBS, b.job(status={"phase": "Running", "attempt": 2}))
    world.cluster.logs = {"bert-0": "--- attempt 2 ---\nstep 2\n", "bert-1": "--- attempt 2 ---\ntwo\n"}
    await world.execute(b.decided(JobStatus(phase="Succeeded", attempt=2)))
    assert world.stored("configmaps", "bert-logs")["data"] == {
        "worker-0.log": "step 1\n--- attempt 2 ---\nstep 2\n",
        "worker-1.log": "one\n--- attempt 2 ---\ntwo\n",
    }


async def test_an_operator_that_finds_an_attempt_s_logs_kept_adds_them_no_second_time() -> None:
    world = World()
    world.add_pods()
    world.put(JOBS, b.job(status={"phase": "Running", "attempt": 3}))
    world.cluster.logs = {"bert-0": "step 1\n"}
    for _ in range(2):
        await KeptLogs(JobConfigMaps(world.cluster), PodLogs(world.cluster), limit=100_000).save(
            KEY, world.snapshot(), complete=True
        )
        assert world.stored("configmaps", "bert-logs")["data"]["worker-0.log"] == "step 1\n"


async def test_logs_that_were_kept_are_said_as_they_stand_there() -> None:
    world = World()
    world.add_pods()
    said: list[dict[int, KeptLog]] = []
    for attempt in (1, 2):
        status = {"phase": "Running", "attempt": attempt}
        world.put(JOBS, b.job(status=status))
        world.cluster.logs = {"bert-0": f"step {attempt}\n", "bert-1": "one\n"}
        for _ in range(2):
            await KeptLogs(
                JobConfigMaps(world.cluster),
                PodLogs(world.cluster),
                limit=100_000,
                on_kept=lambda _job, logs: said.append(dict(logs)),
            ).save(KEY, world.snapshot(), complete=True)
    assert [logs[0].lines for logs in said] == [("step 1",), ("step 1", "step 2")]
    assert [set(logs) for logs in said] == [{0, 1}, {0, 1}]
    data = world.stored("configmaps", "bert-logs")["data"]
    assert said[-1][1] == KeptLog.parse(data, 1)


async def test_a_job_whose_status_was_written_is_said_as_the_api_server_has_it() -> None:
    world = World()
    said: list[Any] = []
    world.executor.written = said.append
    await world.execute(b.decided(JobStatus(phase="Pending", attempt=1)))
    assert [job["status"]["phase"] for job in said] == ["Pending"] and said[0]["spec"]["workers"] == 2
    await world.execute(b.decided(JobStatus(phase="Pending", attempt=1)))
    world.cluster.fail("patch status", JOBS.plural, Unavailable("patch", "no"))
    with pytest.raises(Unavailable):
        await world.execute(b.decided(JobStatus(phase="Starting", attempt=1)))
    assert len(said) == 1


@pytest.mark.parametrize(("limit", "spec"), [(100_000, {"runPolicy": {"keepLogs": False}}), (0, {})], ids=str)
async def test_logs_are_neither_read_nor_kept_where_the_job_or_the_operator_forbids_it(
    limit: int, spec: dict[str, Any]
) -> None:
    world = World()
    world.executor.logs = KeptLogs(JobConfigMaps(world.cluster), PodLogs(world.cluster), limit=limit)
    world.put(JOBS, b.job(**spec))
    world.add_pods()
    world.cluster.logs = {"bert-0": "a patient's name\n"}
    await world.execute(b.decided(JobStatus(phase="Failed", attempt=1), Apply(b.child("StatefulSet"))))
    assert ("configmaps", b.NAMESPACE, "bert-logs") not in world.cluster.objects
    assert world.cluster.calls["log", "Pod"] == 0


async def test_a_log_that_cannot_be_read_does_not_hold_up_the_end() -> None:
    world = World()
    world.add_pods()
    world.cluster.fail("log", "pods", Unavailable("log", "the node is gone"), times=2)
    await world.execute(b.decided(JobStatus(phase="Failed", attempt=1), Apply(b.child("StatefulSet"))))
    assert ("statefulsets", b.NAMESPACE, "bert") in world.cluster.objects


async def test_a_log_that_comes_too_late_is_missed_aloud(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.add_pods()
    world.cluster.logs = {"bert-0": "step 1\n"}
    answer = world.cluster.pod_log

    async def pod_log(namespace: str, pod: str, **options: Any) -> str:
        if pod == "bert-1":
            await asyncio.Event().wait()
        return await answer(namespace, pod, **options)

    monkeypatch.setattr(world.cluster, "pod_log", pod_log)
    monkeypatch.setattr(logs, "READING_SECONDS", 1.0)
    monkeypatch.setattr(logs, "SETTLE_SECONDS", 0.0)
    with caplog.at_level("WARNING", logs.__name__):
        await world.execute(b.decided(JobStatus(phase="Failed", attempt=1), Apply(b.child("StatefulSet"))))
    assert world.stored("configmaps", "bert-logs")["data"] == {"worker-0.log": "step 1\n"}
    assert "the log of bert-1 isn't kept: it wasn't read within 1 s" in caplog.text


async def test_events_are_about_the_job_and_a_repeated_one_is_counted_up() -> None:
    world = World()
    event = JobEvent("Warning", "Restarting", "rank 3 on node gpu-7 was killed (OOMKilled)")
    for restarts in (0, 1):
        await world.execute(b.decided(running(restarts=restarts), events=(event,)))
    events = [raw for (plural, _, _), raw in world.cluster.objects.items() if plural == EVENTS.plural]
    assert len(events) == 1
    assert events[0]["count"] == 2
    assert events[0]["involvedObject"]["uid"] == b.JOB_UID
    assert events[0]["involvedObject"]["apiVersion"] == "trainmaster.dev/v1alpha1"


async def test_a_flood_of_events_is_cut_off() -> None:
    world = World()
    events = tuple(JobEvent("Normal", "Noise", f"number {number}") for number in range(60))
    await world.execute(b.decided(running(), events=events))
    assert world.cluster.calls["create", "Event"] == 25


async def test_an_event_that_cannot_be_written_does_not_fail_the_pass() -> None:
    world = World()
    world.cluster.fail("create", "events", Forbidden("create", "no", status=403))
    await world.execute(b.decided(running(), events=(JobEvent("Normal", "Created", "x"),)))


async def test_touching_changes_only_the_touched_annotation() -> None:
    world = World()
    world.add_pods(1)
    await world.execute(b.decided(running(), Touch((b.ref(0),))))
    assert world.stored("pods", "bert-0")["metadata"]["annotations"] == {TOUCHED_ANNOTATION: "1000.000"}


async def test_the_set_is_applied_after_what_its_pods_mount() -> None:
    world = World()
    await world.execute(
        b.decided(running(), Apply(b.child("StatefulSet")), Apply(b.child("ConfigMap", "bert-training")))
    )
    applied = [kind for verb, kind, _ in world.cluster.order if verb == "create"]
    assert applied == ["ConfigMap", "Secret", STATEFUL_SETS.kind]

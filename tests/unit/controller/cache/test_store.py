"""`cache.store` shows the newest known state of a job, in whatever order the states arrive."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.signer import KEYS
from tests.unit.controller import builders as b
from tests.unit.controller.world import KEY, BaseWorld
from trainmaster_operator.controller.apiserver.cluster import CONFIG_MAPS, GANGS, JOBS, PODS, STATEFUL_SETS
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.reconciling import decide
from trainmaster_operator.reconciling.observed.snapshot import RefusedWrite, StreamView
from trainmaster_operator.rendering import Settings
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.report import Report
from trainmaster_operator.wire.stream import ProgressLine, Recovery, StallLine


def versioned(raw: dict[str, Any], version: int, **metadata: Any) -> dict[str, Any]:
    return {**raw, "metadata": {"uid": "u", **raw["metadata"], "resourceVersion": str(version), **metadata}}


class World(BaseWorld):
    def __init__(self, job: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.put_set()
        if job is not None:
            self.store.upsert(JOBS, versioned(job, 10))

    def put_set(self, job_uid: str = b.JOB_UID, version: int = 1) -> None:
        """Stores the StatefulSet that controls the pods of `b.pod`."""
        self.store.upsert(STATEFUL_SETS, versioned(b.child("StatefulSet", owner_uid=job_uid), version))


def test_a_late_watch_event_never_takes_back_our_own_status_write() -> None:
    world = World(b.job(status={"attempt": 1}))
    # The answer to our status write, then the watch event of something before it.
    world.store.upsert(JOBS, versioned(b.job(status={"attempt": 2}), 12))
    world.store.upsert(JOBS, versioned(b.job(status={"attempt": 1}), 11))
    assert world.snapshot().job.status.attempt == 2
    assert world.snapshot().version.resource_version == "12"


def test_resource_versions_are_compared_as_numbers() -> None:
    world = World()
    world.store.upsert(JOBS, versioned(b.job(status={"attempt": 1}), 999))
    world.store.upsert(JOBS, versioned(b.job(status={"attempt": 2}), 1000))
    assert world.snapshot().job.status.attempt == 2


def test_a_deleted_object_never_comes_back_by_a_late_event() -> None:
    world = World(b.job())
    world.store.upsert(PODS, versioned(b.pod(0), 11))
    world.store.delete(PODS, versioned(b.pod(0), 13))
    world.store.upsert(PODS, versioned(b.pod(0), 12))
    assert world.snapshot().observed.pods == ()


def test_the_deletion_of_an_earlier_object_of_the_same_name_is_not_taken_for_this_one() -> None:
    world = World(b.job())
    world.store.upsert(PODS, versioned(b.pod(0, uid="new"), 15))
    world.store.delete(PODS, versioned(b.pod(0, uid="old"), 14))
    assert [pod.uid for pod in world.snapshot().observed.pods] == ["new"]


def test_a_late_event_of_an_earlier_object_of_the_same_name_does_not_take_its_place() -> None:
    """kopf keeps the order of each uid's events only; the deletion of the first pod was never seen."""
    world = World(b.job())
    world.store.upsert(PODS, versioned(b.pod(0, uid="first"), 11))
    world.store.upsert(PODS, versioned(b.pod(0, uid="second"), 14))
    world.store.upsert(PODS, versioned(b.pod(0, uid="first"), 13))
    assert [pod.uid for pod in world.snapshot().observed.pods] == ["second"]


def test_children_may_come_before_their_job() -> None:
    world = World()
    world.store.upsert(STATEFUL_SETS, versioned(b.child("StatefulSet"), 11))
    world.store.upsert(PODS, versioned(b.pod(1), 12))
    assert world.store.snapshot(KEY) is None
    world.store.upsert(JOBS, versioned(b.job(), 10))
    observed = world.snapshot().observed
    assert [child.kind for child in observed.children] == ["StatefulSet"]
    assert [pod.worker for pod in observed.pods] == [1]


def test_a_job_created_anew_under_the_same_name_starts_with_nothing_of_the_old_one() -> None:
    world = World(b.job(uid="old", status={"attempt": 3}))
    world.store.upsert(PODS, versioned(b.pod(0, job_uid="old"), 11))
    world.store.record_report(KEY, Report(3, 0, "x", "Failed"))
    world.store.record_stream(KEY, StreamView(connected=True))
    world.store.upsert(JOBS, versioned(b.job(uid="new"), 20))
    snapshot = world.snapshot()
    assert (snapshot.job.uid, snapshot.job.status.attempt) == ("new", 0)
    assert (snapshot.observed.pods, snapshot.observed.reports) == ((), ())
    assert not snapshot.observed.stream.connected
    world.store.upsert(JOBS, versioned(b.job(uid="old"), 12))
    assert world.snapshot().job.uid == "new"


def stopped(job_uid: str) -> dict[str, Any]:
    message = json.dumps({"attempt": 1, "worker": 0, "uid": "pod-bert-0", "state": "Stopped", "exitCode": 143})
    return b.pod(0, job_uid=job_uid, containerStatuses=[b.terminated(143, message)])


def test_what_the_pods_of_an_earlier_job_of_the_same_name_report_as_they_end_is_not_this_jobs() -> None:
    world = World()
    world.put_set("old", 2)
    world.store.upsert(JOBS, versioned(b.job(uid="old"), 10))
    world.store.upsert(PODS, versioned(b.pod(0, job_uid="old"), 11))
    assert [pod.worker for pod in world.snapshot().observed.pods] == [0]
    world.store.upsert(JOBS, versioned(b.job(uid="new"), 20))
    world.store.upsert(PODS, versioned(stopped("old"), 21))
    assert world.snapshot().observed.reports == ()


def test_what_a_pod_reported_as_it_ended_counts_also_where_the_pod_is_seen_before_its_job() -> None:
    world = World()
    world.store.upsert(PODS, versioned(stopped(b.JOB_UID), 11))
    world.store.upsert(JOBS, versioned(b.job(), 10))
    assert [report.state for report in world.snapshot().observed.reports] == ["Stopped"]


def test_an_end_is_not_taken_back_by_an_earlier_report_of_the_same_pod() -> None:
    world = World(b.job(status={"attempt": 1}))
    failed = Report(1, 0, "pod", "Failed", exit_code=1, at=5.0)
    world.store.record_report(KEY, failed)
    world.store.record_report(KEY, failed._replace(state="Running", exit_code=None))
    assert world.snapshot().observed.reports == (failed,)


def test_reports_of_attempts_before_the_previous_one_are_forgotten() -> None:
    world = World(b.job(status={"attempt": 1}))
    world.store.record_report(KEY, Report(1, 0, "pod", "Failed"))
    world.store.upsert(JOBS, versioned(b.job(status={"attempt": 3}), 11))
    assert world.snapshot().observed.reports == ()


def test_a_termination_message_is_a_report_and_nonsense_in_it_is_not() -> None:
    world = World(b.job(status={"attempt": 1}))
    message = json.dumps({"attempt": 1, "worker": 0, "uid": "pod-bert-0", "state": "Failed", "exitCode": 7})
    world.store.upsert(PODS, versioned(b.pod(0, containerStatuses=[b.terminated(7, message)]), 11))
    world.store.upsert(PODS, versioned(b.pod(1, containerStatuses=[b.terminated(1, '{"attempt": "many"}')]), 12))
    world.store.upsert(PODS, versioned(b.pod(2, containerStatuses=[b.terminated(1, "Traceback ...")]), 13))
    observed = world.snapshot().observed
    assert [(report.worker, report.exit_code) for report in observed.reports] == [(0, 7)]
    ends = [pod.worker_container.end for pod in observed.pods if pod.worker_container]
    assert [end.exit_code if end else None for end in ends] == [7, 1, 1]


def test_progress_asks_for_no_pass_and_that_of_an_old_attempt_is_ignored() -> None:
    world = World(b.job())
    world.changes.clear()
    assert world.store.record_progress(KEY, ProgressLine(2, 0, {0: RankProgress(step=5)}), 1.0, 1) is True
    assert world.store.record_progress(KEY, ProgressLine(2, 1, {1: RankProgress(step=5)}), 2.0, 1) is False
    assert world.store.record_progress(KEY, ProgressLine(1, 0, {0: RankProgress(step=99)}), 3.0, 1) is None
    assert world.changes == []
    observed = world.snapshot().observed
    assert (observed.progress_attempt, observed.progress[0][0].step) == (2, 5)


def test_a_stall_asks_for_a_pass_when_it_begins_and_when_it_ends() -> None:
    world = World(b.job())
    world.changes.clear()
    line = StallLine(1, 1_700.0, 1, "train", 0.05, 60.0, "rank 1 is at train.py:41")
    assert world.store.record_stall(KEY, line) and not world.store.record_stall(KEY, line)
    assert world.snapshot().observed.stall == line
    assert world.store.record_stall(KEY, StallLine(1)) and not world.store.record_stall(KEY, None)
    assert world.snapshot().observed.stall is None
    assert world.changes == [KEY, KEY]


def test_pods_and_progress_of_a_job_are_read_without_a_snapshot() -> None:
    world = World()
    assert world.store.progress(KEY) is None and not world.store.pods(KEY)
    world.store.upsert(JOBS, versioned(b.job(), 10))
    world.store.upsert(STATEFUL_SETS, versioned(b.child("StatefulSet"), 11))
    for number, pod in enumerate((b.pod(1), b.pod(0), b.pod(7))):
        world.store.upsert(PODS, versioned(pod, 12 + number))
    stranger = b.pod(0)
    stranger["metadata"] |= {"name": "stranger-0", "uid": "stranger", "ownerReferences": []}
    world.store.upsert(PODS, versioned(stranger, 20))
    assert [pod.name for pod in world.store.pods(KEY)] == [pod.name for pod in world.snapshot().observed.pods]
    assert [pod.worker for pod in world.store.pods(KEY)] == [0, 1, 7]
    assert world.store.progress(KEY) is None
    world.store.record_progress(KEY, ProgressLine(2, 1, {3: RankProgress(step=5)}), 7.5, 4)
    assert world.store.progress(KEY) == (2, 7.5, {1: {3: RankProgress(step=5)}})


def test_how_a_worker_came_back_from_a_fault_asks_for_one_pass() -> None:
    world = World(b.job())
    world.changes.clear()
    line = ProgressLine(2, 0, {0: RankProgress(step=5)}, recovery=Recovery(assigned=0.1))
    world.store.record_progress(KEY, line, 1.0, 1)
    assert world.changes == [], "it isn't there yet"
    back = line._replace(recovery=Recovery(assigned=0.1, first_step=0.4))
    world.store.record_progress(KEY, back, 2.0, 1)
    world.store.record_progress(KEY, back, 3.0, 1)
    assert world.changes == [KEY]
    assert world.snapshot().observed.recoveries == {0: back.recovery}
    world.store.record_progress(KEY, ProgressLine(3, 0, {0: RankProgress(step=6)}), 4.0, 1)
    assert world.snapshot().observed.recoveries == {}, "of another attempt"


def test_an_object_that_changed_in_nothing_that_is_decided_on_asks_for_no_pass() -> None:
    world = World(b.job())
    world.store.upsert(PODS, versioned(b.pod(0), 11))
    world.changes.clear()
    world.store.upsert(PODS, versioned(b.pod(0), 12))
    assert world.changes == []
    known = world.store.version(KEY, PODS, "bert-0")
    assert known is not None
    assert known.resource_version == "12", "preconditions need the newest version all the same"


def test_a_spec_that_cannot_run_is_refused_in_a_sentence() -> None:
    world = World(b.job(workers=0))
    job = world.snapshot().job
    assert job.spec is None
    assert job.invalid is not None
    assert "workers" in job.invalid.message


def test_a_job_whose_status_cannot_be_read_is_left_alone_until_it_can() -> None:
    world = World(b.job(status={"phase": "Levitating"}))
    snapshot = world.snapshot()
    assert decide(snapshot.job, snapshot.observed, 1_000.0, Settings()).actions == ()
    assert str(snapshot.job.unreadable).startswith("the status can't be read (phase: Input should be 'Pending'")
    world.store.upsert(JOBS, versioned(b.job(status={"phase": "Succeeded"}), 11))
    assert world.snapshot().job.status.phase == "Succeeded"


def test_a_child_of_an_earlier_job_is_shown_with_its_owner() -> None:
    world = World(b.job())
    world.store.upsert(CONFIG_MAPS, versioned(b.child("ConfigMap", owner_uid="earlier"), 11))
    assert world.snapshot().observed.children[0].owner_uid == "earlier"


@pytest.mark.parametrize("controller", [None, {"kind": "ReplicaSet"}, {"kind": "ReplicaSet", "name": "bert"}])
def test_what_nobody_s_set_or_job_controls_is_never_stored(controller: dict[str, str] | None) -> None:
    """Such a pod has a job's label, but its creator decides how large and how many they are."""
    store = Store(lambda key: None, KEYS)
    owners = [] if controller is None else [{**controller, "uid": "theirs", "controller": True}]
    for resource, raw in (
        (PODS, b.pod(0)),
        (CONFIG_MAPS, b.child("ConfigMap")),
        (STATEFUL_SETS, b.child("StatefulSet")),
    ):
        raw["metadata"]["ownerReferences"] = owners
        store.upsert(resource, versioned(raw, 10))
        assert not store.wants(resource, raw["metadata"])
    assert len(store) == 0


def test_a_pod_that_loses_its_controller_is_the_job_s_no_more() -> None:
    world = World()
    for resource, raw in ((JOBS, b.job()), (STATEFUL_SETS, b.child("StatefulSet")), (PODS, b.pod(0))):
        world.store.upsert(resource, versioned(raw, 10))
    assert len(world.snapshot().observed.pods) == 1
    orphan = b.pod(0)
    orphan["metadata"]["ownerReferences"] = []
    world.store.upsert(PODS, versioned(orphan, 11))
    assert world.snapshot().observed.pods == ()


def test_what_was_refused_for_want_of_a_type_is_tried_again_when_it_is_listed() -> None:
    world = World(b.job())
    for _ in range(2):
        for action, reason in (("apply PodGroup bert", "NotInstalled"), ("apply Service bert", "Forbidden")):
            world.store.record_refusal(KEY, RefusedWrite(action, reason, "no", 0.0), 60.0)
        world.changes.clear()
        world.store.record_listed(GANGS["volcano"])
        assert world.changes == [KEY], "also when it had been listed before and was gone meanwhile"
        assert [one.reason for one in world.snapshot().observed.refused_writes] == ["Forbidden"]


def test_the_same_refusal_again_is_no_news() -> None:
    world = World(b.job())
    world.changes.clear()
    for at in (1.0, 2.0):
        world.store.record_refusal(KEY, RefusedWrite("apply x", "Forbidden", "exceeded quota", at), at + 5)
    assert len(world.changes) == 1
    assert world.snapshot().observed.refused_writes[0].message == "exceeded quota"
    world.store.clear_refusal(KEY, "apply x")
    assert world.snapshot().observed.refused_writes == ()

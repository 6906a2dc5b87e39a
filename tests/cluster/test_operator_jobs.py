"""Jobs run from `kubectl apply` to their end, with the real operator and real agents.

The checks of pods rely on Kubernetes: a container that exits is restarted in its pod (a StatefulSet's pods must have
restartPolicy Always, kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle). So "in place" means the same uid *and*
no container restart.
"""

from __future__ import annotations

import asyncio
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.operator_account import HOME, operator_kubeconfig
from tests.cluster.operator_under_test import OperatorProcess, install_crd, training_job
from trainmaster_local.testing.clusters import Cluster
from trainmaster_operator.controller.app import Operator
from trainmaster_operator.controller.settings import OperatorSettings
from trainmaster_operator.reconciling import decide

pytestmark = pytest.mark.usefixtures("pods_run")

# Trains `STEPS` steps of 0.1 s; `fault` runs at step 3. Every rank prints when it starts: `rank attempt`.
TRAIN = """
import json, os, pathlib, signal, sys, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["TRAINMASTER_ATTEMPT"])
print("start", rank, attempt, os.getpid(), flush=True)
progress = pathlib.Path(os.environ["TRAINMASTER_PROGRESS_FILE"])
for step in range({steps}):
    progress.write_text(json.dumps({{"step": step + 1, "totalSteps": {steps}, "loss": 1 / (step + 1)}}))
    if step == 3:
        {fault}
        pass
    time.sleep(0.1)
print("done", rank, attempt, flush=True)
"""


def train(fault: str = "pass", steps: int = 8) -> str:
    return textwrap.dedent(TRAIN).format(steps=steps, fault=fault)


class Jobs:
    """Reads what a person would look at with kubectl."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def status(self, name: str = "job") -> dict[str, Any]:
        return dict(self.cluster.get("dtj", name).get("status") or {})

    def phase(self, name: str = "job") -> str:
        return str(self.status(name).get("phase"))

    def pods(self) -> dict[str, dict[str, Any]]:
        return {pod["metadata"]["name"]: pod for pod in self.cluster.items("pods")}

    def uids(self) -> dict[str, str]:
        return {name: pod["metadata"]["uid"] for name, pod in self.pods().items()}

    def until_phase(self, *phases: str, seconds: float = 90, name: str = "job") -> str:
        self.cluster.eventually(lambda: self.phase(name) in phases, seconds, f"{name}: {' or '.join(phases)}")
        return self.phase(name)

    def until_all_started(self, attempt: int, workers: int = 2) -> None:
        self.cluster.eventually(
            lambda: all(f" {attempt} " in self.log(f"job-{worker}") for worker in range(workers)), 60
        )

    def log(self, pod: str) -> str:
        return self.cluster.log(pod, "worker")

    def kept_logs(self, name: str = "job") -> dict[str, str]:
        # A moment after the job's end, before its pods are deleted.
        return dict(self.cluster.eventually(lambda: self.cluster.get("configmap", f"{name}-logs")["data"]))

    def events(self) -> list[str]:
        found = self.cluster.items("events", fields="involvedObject.kind=DistributedTrainingJob")
        return [f"{event['reason']}: {event['message']}" for event in found]


@pytest.fixture
def jobs(cluster: Cluster, operator: OperatorProcess) -> Jobs:
    return Jobs(cluster)


def test_two_workers_train_to_success_and_free_their_resources(cluster: Cluster, jobs: Jobs) -> None:
    cluster.apply(training_job("job", train()))
    jobs.until_phase("Succeeded")
    cluster.eventually(lambda: not jobs.pods(), 60, "pods gone")
    assert cluster.get("statefulset", "job")["spec"]["replicas"] == 0
    status = jobs.status()
    assert (status["attempt"], status.get("restarts", 0)) == (1, 0)
    assert status["progress"]["step"] == 8
    kept = jobs.kept_logs()
    logs = {name: text for name, text in kept.items() if name.endswith(".log")}
    assert sorted(logs) == ["worker-0.log", "worker-1.log"]
    assert all("start" in text and "done" in text for text in logs.values())
    job = cluster.get("dtj", "job")
    assert "finalizers" not in job["metadata"]


def test_workers_with_a_read_only_root_write_to_tmp_and_nothing_is_kept_that_the_job_does_not_allow(
    cluster: Cluster, jobs: Jobs
) -> None:
    scratch = """
import os, pathlib, sys, tempfile
for folder in (pathlib.Path.home(), pathlib.Path(tempfile.gettempdir())):
    (folder / "scratch").write_text("a patient's name")
print("a patient's name", flush=True)
sys.exit(int(os.environ["TRAINMASTER_ATTEMPT"]) == 1 and os.environ["RANK"] == "1")
"""
    job = training_job("job", scratch)
    job["spec"] |= {"securityContext": {"readOnlyRootFilesystem": True}}
    job["spec"]["runPolicy"] = {**job["spec"].get("runPolicy", {}), "keepLogs": False}
    cluster.apply(job)
    jobs.until_phase("Succeeded")
    evidence = cluster.eventually(lambda: cluster.get("configmap", "job-evidence")["data"])
    assert "patient" not in str(evidence)
    assert "job-logs" not in {found["metadata"]["name"] for found in cluster.items("configmaps")}


def test_a_failed_rank_restarts_the_group_in_place(cluster: Cluster, jobs: Jobs) -> None:
    script = train("sys.exit(7) if rank == 1 and attempt == 1 else None")
    cluster.apply(training_job("job", script, runPolicy={"keepPods": "All"}))
    cluster.eventually(lambda: len(jobs.pods()) == 2, 60, "two pods")
    before = jobs.uids()
    cluster.eventually(lambda: jobs.status().get("attempt") == 2, 60, "attempt 2")
    jobs.until_phase("Succeeded")
    jobs.until_all_started(2)
    assert jobs.uids() == before
    restarts = [pod["status"]["containerStatuses"][0]["restartCount"] for pod in jobs.pods().values()]
    assert restarts == [0, 0]
    status = jobs.status()
    assert (status["attempt"], status["restarts"]) == (2, 1)
    failure = status["failures"][0]
    assert (failure["attempt"], failure["worker"], failure["exitCode"]) == (1, 1, 7)
    assert failure["pod"] == "job-1"


def test_a_job_that_uses_its_restarts_up_fails_and_says_why(cluster: Cluster, jobs: Jobs) -> None:
    script = train("if rank == 0: raise ValueError('the data is broken')")
    cluster.apply(training_job("job", script, failurePolicy={"maxRestarts": 1}))
    jobs.until_phase("Failed")
    cluster.eventually(lambda: not jobs.pods(), 60, "pods gone")
    status = jobs.status()
    assert (status["attempt"], status["restarts"]) == (2, 1)
    assert "the data is broken" in str(status["failures"])
    assert "the data is broken" in jobs.kept_logs()["worker-0.log"]
    cluster.eventually(
        lambda: any(event.startswith("MaxRestartsExceeded") for event in jobs.events()), what="the event"
    )
    assert cluster.kubectl("describe", "dtj", "job").stdout.count("Failed")


def test_a_deleted_job_leaves_nothing_behind(cluster: Cluster, jobs: Jobs) -> None:
    cluster.apply(training_job("job", train(steps=600), training={"steps": 1}))
    jobs.until_all_started(1)
    cluster.kubectl("delete", "dtj", "job", timeout=30)
    kinds = "statefulsets,services,pods"
    cluster.eventually(lambda: not cluster.items(kinds), 60, f"{kinds} gone")

    def config_maps() -> list[str]:
        names = [item["metadata"]["name"] for item in cluster.items("configmaps")]
        return [name for name in names if name.startswith("job")]

    cluster.eventually(lambda: not config_maps(), what="ConfigMaps gone")


def test_training_does_not_notice_that_the_operator_is_killed_and_comes_back(
    cluster: Cluster, operator: OperatorProcess, jobs: Jobs
) -> None:
    cluster.apply(training_job("job", train(steps=60)))
    jobs.until_all_started(1)
    jobs.until_phase("Running")
    before, started = jobs.uids(), jobs.log("job-0")
    operator.kill()
    time.sleep(1.0)
    operator.start()
    jobs.until_phase("Succeeded")
    status = jobs.status()
    assert (status["attempt"], status.get("restarts", 0)) == (1, 0)
    kept = jobs.kept_logs()
    assert kept["worker-0.log"].count("start") == 1
    assert started.splitlines()[0] in kept["worker-0.log"]
    assert sorted(before) == ["job-0", "job-1"]


def test_a_failure_while_the_operator_is_away_is_answered_when_it_is_back(
    cluster: Cluster, operator: OperatorProcess, jobs: Jobs
) -> None:
    fault = "time.sleep(1.5) or sys.exit(3) if rank == 0 and attempt == 1 else None"
    cluster.apply(training_job("job", train(fault, steps=30)))
    jobs.until_all_started(1)
    operator.kill()
    time.sleep(3.5)
    operator.start()
    jobs.until_phase("Succeeded")
    status = jobs.status()
    assert (status["attempt"], status["restarts"]) == (2, 1)
    assert status["failures"][0]["exitCode"] == 3


async def test_without_any_stream_failures_and_the_end_are_learned_from_the_pods(
    cluster: Cluster, pods_run: None, tmp_path: Path
) -> None:
    """This is the sure way alone (docs/protocol.md): agents without an operator report by exiting."""
    install_crd(cluster)
    settings = OperatorSettings(
        namespaces=(cluster.namespace,),
        kubeconfig=str(operator_kubeconfig(cluster.kubeconfig, tmp_path)),
        lease_namespace=HOME,
        leader_elect=False,
        # Nothing listens there.
        agent_port=9,
    )
    operator, stop = Operator(settings, decide), asyncio.Event()
    running = asyncio.create_task(operator.run(stop))
    jobs = Jobs(cluster)
    fault = "sys.exit(7) if rank == 1 and attempt == 1 else None"
    try:
        await asyncio.wait_for(operator.ready.wait(), 90)
        await asyncio.to_thread(cluster.apply, training_job("job", train(fault)))
        await asyncio.to_thread(jobs.until_phase, "Succeeded")
        status = await asyncio.to_thread(jobs.status)
        assert (status["attempt"], status["restarts"]) == (2, 1)
        assert (status["failures"][0]["worker"], status["failures"][0]["exitCode"]) == (1, 7)
    finally:
        stop.set()
        await asyncio.wait_for(running, 60)


def test_a_deleted_pod_is_a_disruption_and_costs_no_restart(cluster: Cluster, jobs: Jobs) -> None:
    cluster.apply(training_job("job", train("time.sleep(600) if attempt == 1 else None")))
    jobs.until_all_started(1)
    jobs.until_phase("Running")
    before = jobs.uids()
    cluster.delete("pod", "job-1", wait=False, grace=1)
    cluster.eventually(lambda: jobs.status().get("attempt") == 2, 60, "attempt 2")
    jobs.until_phase("Succeeded", seconds=90)
    status = jobs.status()
    assert (status["attempt"], status.get("restarts", 0), status["disruptions"]) == (2, 0, 1)
    assert before["job-0"] in status["podUIDs"]
    assert before["job-1"] not in status["podUIDs"]


def test_a_job_that_a_quota_keeps_from_its_pods_says_so(cluster: Cluster, jobs: Jobs) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    cluster.apply(quota)
    cluster.apply(training_job("job", train()))
    cluster.eventually(lambda: "exceeded quota: few" in str(jobs.status()), 60, "the quota in the status")

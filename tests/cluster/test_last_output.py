"""The lines that ranks print while their pods end are kept: those of a deleted pod, of the lead, and of a suspended
job, even if there was no operator at that moment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.operator_under_test import OperatorProcess, running_operator, status, training_job
from tests.cluster.test_command_line import apply, command, phase, wait_for
from tests.cluster.test_recording import receiver
from trainmaster.client import JobClient
from trainmaster_local.testing.clusters import Cluster
from trainmaster_operator.api.records import LogRecord

# Does what a training loop does on a spot node: it saves its state while its pod ends, and prints that.
SAVES_AT_THE_END = """
import os, signal, sys, time
rank, attempt = os.environ["RANK"], os.environ["TRAINMASTER_ATTEMPT"]
def save(*_):
    print("rank", rank, "saves", flush=True)
    time.sleep(0.3)
    print("rank", rank, "attempt", attempt, "saved at step 7", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("rank", rank, "attempt", attempt, "trains", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def operator(cluster: Cluster, pods_run: None, tmp_path: Path) -> Iterator[OperatorProcess]:
    with running_operator(cluster, tmp_path) as started:
        yield started


def lines(cluster: Cluster, *options: str) -> list[str]:
    code, output, errors = command(
        "kubectl-dtj", "logs", "job", "-n", cluster.namespace, *options, kubeconfig=cluster.kubeconfig
    )
    assert code == 0, errors
    return [line for line in output.splitlines() if "[agent]" not in line]


def printed(rank: int, attempt: int) -> list[str]:
    """Returns what a rank prints in an attempt whose pod is deleted."""
    own = f"[rank {rank}]: rank {rank}"
    return [f"{own} attempt {attempt} trains", f"{own} saves", f"{own} attempt {attempt} saved at step 7"]


def running(cluster: Cluster, attempt: int) -> bool:
    found = status(cluster)
    return found.get("phase") == "Running" and found.get("attempt") == attempt


def trains(cluster: Cluster, attempt: int) -> None:
    """Waits until both ranks have printed that they train: only then does SIGTERM find their handlers."""
    wait_for(lambda: running(cluster, attempt), f"attempt {attempt} runs")
    wait_for(
        lambda: all(f"rank {rank} attempt {attempt} trains" in cluster.log(f"job-{rank}", "worker") for rank in (0, 1)),
        "ranks train",
    )


def evidence_logs(cluster: Cluster, attempt: int) -> str:
    kept = [found for found in cluster.items("configmaps") if found["metadata"]["name"] == "job-evidence"]
    return str([json.loads(found["data"].get(f"attempt-{attempt}.json", "{}")).get("logs") for found in kept])


def test_what_ranks_print_while_a_pod_is_deleted_and_while_the_job_is_suspended_is_kept(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    apply(cluster, training_job("job", SAVES_AT_THE_END, workers=2))
    trains(cluster, 1)
    cluster.delete("pod", "job-1", wait=False)
    trains(cluster, 2)
    assert sorted(lines(cluster, "--previous", "--worker", "1")) == sorted(printed(1, 1))
    wait_for(lambda: "saved at step 7" in evidence_logs(cluster, 1), "the evidence has the last lines")

    # The lead is gone with everything that it received.
    cluster.delete("pod", "job-0", wait=False)
    trains(cluster, 3)
    for rank in (0, 1):
        assert lines(cluster, "--previous", "--rank", str(rank)) == printed(rank, 2)
    jobs = JobClient(cluster.namespace, kubeconfig=str(cluster.kubeconfig))
    for of_sdk in (list(jobs.logs("job")), list(jobs.logs("job", worker=1))):
        assert set(printed(1, 1)) < set(of_sdk)

    cluster.patch("dtj", "job", {"spec": {"runPolicy": {"suspend": True}}})
    wait_for(lambda: phase(cluster, "job") == "Suspended" and not cluster.items("pods"), "the pods are gone")
    everything = [
        "--- attempt 2 ---",
        "--- attempt 3 ---",
        *(line for rank in (0, 1) for attempt in (1, 2, 3) for line in printed(rank, attempt)),
    ]
    wait_for(lambda: sorted(lines(cluster)) == sorted(everything), "all of it is kept, once")


def test_the_history_has_what_a_deleted_jobs_pods_print_last(cluster: Cluster, pods_run: None, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("mine")
    with receiver() as (url, got):
        options = (f"--history-url={url}", f"--history-token-file={token}", "--history-seconds=0.5")
        with running_operator(cluster, tmp_path, *options):
            apply(cluster, training_job("job", SAVES_AT_THE_END, workers=2))
            trains(cluster, 1)
            cluster.delete("dtj", "job")

            def saved() -> set[int]:
                logs = [record for _, record in got if isinstance(record, LogRecord)]
                return {record.worker for record in logs if record.log.lines[-1].endswith("saved at step 7")}

            wait_for(lambda: saved() == {0, 1}, "the history has both workers' last lines")


def test_what_a_pod_printed_last_is_kept_where_no_operator_was_there(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    apply(cluster, training_job("job", SAVES_AT_THE_END, workers=2))
    trains(cluster, 1)
    operator.kill()
    cluster.delete("pod", "job-1")
    wait_for(lambda: len(cluster.items("pods")) == 2, "there is another pod")
    operator.start()
    trains(cluster, 2)
    wait_for(
        lambda: set(printed(1, 1)) <= set(lines(cluster, "--previous", "--worker", "1")), "the lead had its last lines"
    )

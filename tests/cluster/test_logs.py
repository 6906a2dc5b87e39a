"""`kubectl dtj logs` shows real workers' output: merged by time, by rank, by attempt, and of the rank that failed
first.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.operator_under_test import OperatorProcess, running_operator, training_job
from tests.cluster.test_command_line import apply, command, phase, wait_for
from trainmaster.client import AsyncJobClient, JobClient
from trainmaster_local.testing.clusters import Cluster

TURNS = 6
# The ranks print in turns; then rank 1 waits for a file and fails, in every attempt.
IN_TURNS = f"""
import os, pathlib, sys, time
folder = pathlib.Path("FOLDER")
rank, attempt = int(os.environ["RANK"]), os.environ["TRAINMASTER_ATTEMPT"]
def until(name):
    while not (folder / name).exists():
        time.sleep(0.01)
for turn in range({TURNS}):
    if turn % 2 == rank:
        until(f"{{attempt}}-{{turn}}")
        print("attempt", attempt, "turn", turn, flush=True)
        # Later than the line's time, which the container's runtime takes.
        time.sleep(0.05)
        (folder / f"{{attempt}}-{{turn + 1}}").touch()
until("fail-" + attempt)
if rank == 1:
    print("attempt", attempt, "fails", file=sys.stderr, flush=True)
    raise SystemExit(3)
time.sleep(60)
"""


@pytest.fixture
def operator(cluster: Cluster, pods_run: None, tmp_path: Path) -> Iterator[OperatorProcess]:
    with running_operator(cluster, tmp_path) as started:
        yield started


def has_log(cluster: Cluster, attempt: int) -> bool:
    """Returns whether the evidence of an attempt contains the end of a log; it doesn't before the first failed rank is
    known.
    """
    kept = [found for found in cluster.items("configmaps") if found["metadata"]["name"] == "turns-evidence"]
    return any(json.loads(found["data"].get(f"attempt-{attempt}.json", "{}")).get("logs") for found in kept)


def in_python(lines: Iterator[str]) -> list[str]:
    return [line for line in lines if "[agent]" not in line]


async def in_coroutines(cluster: Cluster) -> list[str]:
    async with AsyncJobClient(cluster.namespace, kubeconfig=str(cluster.kubeconfig)) as jobs:
        return [line async for line in jobs.logs("turns") if "[agent]" not in line]


def turns(attempt: int) -> list[str]:
    """Returns what both ranks print in turns, in the order of time."""
    return [f"[rank {turn % 2}]: attempt {attempt} turn {turn}" for turn in range(TURNS)]


def test_logs_are_merged_by_time_and_picked_by_rank_and_attempt_also_when_the_pods_are_gone(
    cluster: Cluster, operator: OperatorProcess, pods_folder: Path
) -> None:
    def logs(*options: str) -> list[str]:
        arguments = ("logs", "turns", "-n", cluster.namespace, *options)
        code, output, errors = command("kubectl-dtj", *arguments, kubeconfig=cluster.kubeconfig)
        assert code == 0, errors
        sentences.append(errors)
        return [line for line in output.splitlines() if "[agent]" not in line]

    sentences: list[str] = []
    jobs = JobClient(cluster.namespace, kubeconfig=str(cluster.kubeconfig))
    followed: list[str] = []
    following = threading.Thread(target=lambda: followed.extend(in_python(jobs.logs("turns", follow=True))))
    (pods_folder / "1-0").touch()
    job = training_job("turns", IN_TURNS.replace("FOLDER", str(pods_folder)), workers=2)
    job["spec"]["failurePolicy"] = {"maxRestarts": 1}
    apply(cluster, job)
    wait_for(lambda: (pods_folder / f"1-{TURNS}").exists(), "both ranks have had their turns")
    first = turns(1)
    # An agent passes on its rank's output a little later.
    wait_for(lambda: logs() == first, "what both ranks have printed is in their pods' logs")
    assert in_python(jobs.logs("turns")) == first
    following.start()
    assert logs("--rank", "1") == first[1::2]
    assert logs("--worker", "0") == first[0::2]
    assert logs("--tail", "1", "--no-prefix") == ["attempt 1 turn 4", "attempt 1 turn 5"]

    (pods_folder / "2-0").touch()
    (pods_folder / "fail-1").touch()
    wait_for(lambda: (pods_folder / f"2-{TURNS}").exists(), "both ranks have had their turns again")
    failing = "[rank 1]: attempt 1 fails"
    both = [*first, failing, "--- attempt 2 ---", *turns(2)]
    wait_for(lambda: logs() == both, "what both ranks have printed again is there too")
    assert in_python(jobs.logs("turns")) == both
    assert logs("--attempt", "1") == [*first, failing] == logs("--previous")
    assert logs("--attempt", "2", "--rank", "1") == turns(2)[1::2]
    assert logs("--failed") == [*first[1::2], failing]
    assert "Attempt 1 ended with Error of worker 1, rank 1, pod turns-1" in sentences[-1]

    # The evidence has the end of the log once the first failed rank is known; a job that ends earlier has its own.
    wait_for(lambda: has_log(cluster, attempt=1), "the end of the log is in the evidence")
    (pods_folder / "fail-2").touch()
    wait_for(lambda: phase(cluster, "turns") == "Failed", "the job has failed")
    wait_for(lambda: not cluster.items("pods"), "the pods are gone")
    ended = [*both, "[rank 1]: attempt 2 fails"]
    assert logs() == ended == in_python(jobs.logs("turns")) == asyncio.run(in_coroutines(cluster))
    following.join(30)
    assert followed == ended
    assert logs("--attempt", "1") == [*first, failing]
    assert logs("--rank", "0", "--rank", "1", "--attempt", "2") == [*turns(2), ended[-1]]
    assert logs("--failed") == [*turns(2)[1::2], ended[-1]]
    assert "Its pod is gone; this was kept of its log." in sentences[-1]
    stamped = logs("--timestamps", "--rank", "0")
    times = [line.partition(" ")[0] for line in stamped]
    assert times == sorted(times) and all(time.endswith("Z") for time in times)
    assert logs("--since", "1h") == ended and logs("--since", "0s") == []

    # Without the kept logs, only the evidence of the rank that failed first is left.
    cluster.delete("configmap", "turns-logs")
    assert logs("--failed", "--attempt", "1")[-1] == failing
    assert "this is its end, from the evidence" in sentences[-1]

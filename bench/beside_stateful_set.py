"""Compares a job with a bare StatefulSet of the same program and image: `python -m bench.beside_stateful_set`.

Both have four pods of an image that isn't ours. Ranks join by TCP, and exit when a peer has gone. The benchmark
measures the seconds from apply until all ranks have joined, and from a pod's deletion by force until all have joined
again. It never deletes rank 0's pod, because the other ranks of a bare StatefulSet would look for it at its old
address. Each round uses new containers, because the kubelet restarts a container without delay only the first time.
TRAINMASTER_TEST_KUBECONFIG selects a real cluster. Pods of the embedded cluster start immediately, so there the
differences matter more than the ratios.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
import time

from bench.clusters import NAMESPACE, RING, RawObject, World, job, operator, table, world
from trainmaster_operator.controller.apiserver.cluster import PODS, SERVICES, STATEFUL_SETS
from trainmaster_operator.controller.apiserver.errors import Invalid, NotFound

WORKERS, ROUNDS = 4, 7
IMAGE = "python:3.12"
DELETED = 2
SECONDS = 60.0

# The agent sets these variables for ranks. The embedded cluster uses a hosts file (TRAINMASTER_HOSTS_FILE) as DNS.
RANK = f"""
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(1))  # else the kubelet waits out the grace of a first process
name, _, rank = os.environ["POD_NAME"].rpartition("-")
leader, file = f"{{name}}-0.{{name}}", os.environ.get("TRAINMASTER_HOSTS_FILE")
address = "" if file else leader
while not address:
    address = next((line.split()[0] for line in open(file) if leader in line.split()), "")
    time.sleep(0.005)
os.environ.update(RANK=rank, WORLD_SIZE="{WORKERS}", TRAINMASTER_ATTEMPT="1", MASTER_ADDR=address, MASTER_PORT="29500")
{RING}"""


def bare(name: str) -> RawObject:
    """Returns a bare StatefulSet that runs the program."""
    labels = {"bare": name}
    container = {
        "name": "worker",
        "image": IMAGE,
        "command": ["python3", "-c", RANK],
        "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    }
    return {
        "apiVersion": STATEFUL_SETS.api_version,
        "kind": STATEFUL_SETS.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "serviceName": name,
            "replicas": WORKERS,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 5},
            },
        },
    }


async def apply_bare(made: World, name: str) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"clusterIP": "None", "selector": {"bare": name}, "publishNotReadyAddresses": True},
    }
    await made.cluster.apply(SERVICES, NAMESPACE, name, service, force=True)
    await made.cluster.apply(STATEFUL_SETS, NAMESPACE, name, bare(name), force=True)


async def delete_bare(made: World, name: str) -> None:
    for resource in (STATEFUL_SETS, SERVICES):
        found = await made.cluster.get(resource, NAMESPACE, name)
        await made.cluster.delete(resource, NAMESPACE, name, uid=found["metadata"]["uid"])
    async with asyncio.timeout(SECONDS):
        while [
            pod async for page in made.cluster.pages(PODS, NAMESPACE, label_selector=f"bare={name}") for pod in page
        ]:
            await asyncio.sleep(0.05)


async def joined(made: World, name: str, since: float) -> float:
    """Returns the seconds from `since` until all ranks have joined."""
    async with asyncio.timeout(SECONDS):
        while True:
            found = [at for worker in range(WORKERS) if (at := await joined_at(made, f"{name}-{worker}")) > since]
            if len(found) == WORKERS:
                return max(found) - since
            await asyncio.sleep(0.05)


async def joined_at(made: World, pod: str) -> float:
    """Returns the time at which a pod's rank last joined; 0 if it hasn't."""
    try:
        text = await made.cluster.pod_log(NAMESPACE, pod, tail_lines=50, limit_bytes=65_536)
    except (NotFound, Invalid):
        # The pod doesn't exist yet, or its container hasn't started.
        return 0.0
    return max(map(float, re.findall(r"joined \d+ \d+ \d+ ([0-9.]+)", text)), default=0.0)


async def measure(made: World, name: str, *, is_bare: bool) -> tuple[float, float]:
    """Returns the seconds that a start takes, and that the recovery from a pod's deletion takes."""
    since = time.time()
    await (apply_bare(made, name) if is_bare else made.apply(job(name, WORKERS, image=IMAGE)))
    started = await joined(made, name, since)
    # A container that has just started isn't deleted at once.
    await asyncio.sleep(2.0)
    pod = await made.cluster.get(PODS, NAMESPACE, f"{name}-{DELETED}")
    since = time.time()
    await made.force_delete(pod)
    back = await joined(made, name, since)
    await (delete_bare(made, name) if is_bare else made.delete(name))
    print(f"{name}: started {started:.3f} s, a pod deleted {back:.3f} s", flush=True)
    return started, back


async def main() -> int:
    measured: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    async with world() as made:
        with operator(made) as running:
            running.serving()
            await asyncio.sleep(1.0)
            for number in range(ROUNDS):
                for is_bare, found in measured.items():
                    name = f"{'bare' if is_bare else 'job'}-{number}"
                    found.append(await measure(made, name, is_bare=is_bare))
    rows: list[list[object]] = []
    for title, column in (("apply to all ranks joined", 0), ("pod deleted by force to all joined again", 1)):
        others, ours = ([each[column] for each in measured[is_bare]] for is_bare in (True, False))
        middles = [statistics.median(others), statistics.median(ours)]
        rows.append([title, *middles, max(others), max(ours), middles[1] - middles[0], middles[1] / middles[0]])
    columns = ["medians, s", "StatefulSet", "job", "worst: StatefulSet", "job", "difference", "ratio"]
    table(f"{WORKERS} pods of {IMAGE}, {ROUNDS} rounds", columns, rows)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

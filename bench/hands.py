"""Measures the time until a user's own code makes its first step: `python -m bench.hands`.

The same script is started from an image that is present on the node, and by `submit --code`. Then changed code is
pushed into a job of DDP ranks that start warm. Operator, agents and ranks are real, so this needs the embedded cluster.
Each time lasts from the moment when the command reads the folder until the last rank's first step.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.clusters import NAMESPACE, World, operator, spread, table, world
from trainmaster.client import JobClient
from trainmaster.client.code import archive_folder, push_code, submit_with_code

WORKERS = 2
RUNS = 7
PUSHES = 9
# Goals in seconds: how much longer `submit --code` may take than an image, and a push until its first step.
SUBMIT_GOAL, PUSH_GOAL = 0.3, 1.5
SECONDS = 120.0

PLAIN = """
import os, sys, time
with open(sys.argv[1], "a") as file:
    file.write(f"{os.environ['TRAINMASTER_JOB']} {os.environ['RANK']} {time.time()}\\n")
time.sleep(600)
"""

DDP = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from version import VERSION
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(8, 64)).sum().backward()
optimizer.step()
with open(sys.argv[1], "a") as file:
    file.write(f"{VERSION} {os.environ['RANK']} {time.time()}\\n")
with open(f"{os.environ['TRAINMASTER_PROGRESS_FILE']}.{os.environ['RANK']}", "w") as file:
    file.write('{"step": 1}')
time.sleep(600)
"""


class Steps:
    """Steps reads the line that each rank writes at its first step: a word, the rank, and the time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def last(self, word: str) -> float:
        """Waits until all ranks have written this word; returns the last rank's time."""
        async with asyncio.timeout(SECONDS):
            while True:
                lines = [line.split() for line in self.path.read_text().splitlines()] if self.path.exists() else []
                found = {line[1]: float(line[2]) for line in lines if line[0] == word}
                if len(found) == WORKERS:
                    return max(found.values())
                await asyncio.sleep(0.01)


def _manifest(name: str, script: str, steps: Steps, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name},
        "spec": {"workers": WORKERS, "command": ["python3", script, str(steps.path)], **spec},
    }


async def submits(made: World, folder: Path) -> list[list[object]]:
    """Measures jobs whose script is on the node and jobs that upload it, alternately."""
    jobs = JobClient(NAMESPACE, kubeconfig=str(made.kubeconfig))
    code, steps = folder / "plain", Steps(folder / "plain-steps")
    code.mkdir()
    (code / "train.py").write_text(PLAIN)
    times: dict[str, list[float]] = {"image": [], "code": []}
    for run in range(RUNS):
        for kind in times:
            name = f"{kind}-{run}"
            since = time.time()
            if kind == "image":
                body = _manifest(name, str(code / "train.py"), steps, launcher="exec")
                await asyncio.to_thread(jobs.submit, body)
            else:
                body = _manifest(name, "train.py", steps, launcher="exec")
                archive = archive_folder(code)
                await asyncio.to_thread(submit_with_code, jobs, body, archive)
            times[kind].append(await steps.last(name) - since)
            await made.delete(name)
    more = [brought - there for brought, there in zip(times["code"], times["image"], strict=True)]
    return [
        ["submit, the script in an image that is present", *spread(times["image"])],
        ["submit --code", *spread(times["code"])],
        ["submit --code, more than the image", *spread(more, SUBMIT_GOAL)],
    ]


async def pushes(made: World, folder: Path) -> list[list[object]]:
    """Measures pushes into a job whose ranks are forked from warm processes."""
    jobs = JobClient(NAMESPACE, kubeconfig=str(made.kubeconfig))
    code, steps = folder / "ddp", Steps(folder / "ddp-steps")
    code.mkdir()
    (code / "train.py").write_text(DDP)
    (code / "version.py").write_text("VERSION = 'first'\n")
    await asyncio.to_thread(submit_with_code, jobs, _manifest("pushed", "train.py", steps), archive_folder(code))
    await steps.last("first")
    # In this time the warm process learns the first step's imports, and imports these modules.
    await asyncio.sleep(8.0)
    times = []
    for run in range(PUSHES):
        while (await made.status("pushed")).get("phase") != "Running":
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.5)
        (code / "version.py").write_text(f"VERSION = 'push-{run}'\n")
        since = time.time()
        await asyncio.to_thread(push_code, jobs, "pushed", archive_folder(code))
        times.append(await steps.last(f"push-{run}") - since)
    status = await made.status("pushed")
    assert status.get("restarts", 0) == status.get("disruptions", 0) == 0, "a push counted as a failure"
    await made.delete("pushed")
    return [["push, to the first DDP step with the new code (warm ranks)", *spread(times, PUSH_GOAL)]]


async def main() -> None:
    """Measures, and prints the results."""
    folder = Path(tempfile.mkdtemp(prefix="trainmaster-bench-"))
    try:
        async with world() as made:
            with operator(made):
                rows = [*await submits(made, folder), *await pushes(made, folder)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table("One's own code, to the first step (s)", ["", "median", "min", "max", "of the goal"], rows)


if __name__ == "__main__":
    asyncio.run(main())
    sys.exit(0)

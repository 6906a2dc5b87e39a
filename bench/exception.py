"""Measures how long an exception takes to its report: `python -m bench.exception`.

A worker has two ranks of a plain script: torch, gloo, DDP. Rank 1 raises an exception at step 3. The time ends when the
leader's stream has the report, as an operator reads it. The agent from sources has no library, so its ranks only
report by exiting: this is what Python and torch take to exit.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from tests.processes.agent.agents import AGENT, Job, Stream
from tests.processes.agent.warm.both_ways import without_memory
from trainmaster_operator.agent.build import zipapp_bytes

TIMES = 5
SCRIPT = """
import os, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(1, 100):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    if step == 3 and dist.get_rank() == 1:
        with open(f"{sys.argv[1]}/raised", "w") as file:
            file.write(str(time.time()))
        raise ValueError("lost")
"""
TORCHRUN, STARTED = {"TRAINMASTER_LAUNCHER": "torchrun"}, {"TRAINMASTER_WARM_START": "true"}
WAYS = {"torchrun": TORCHRUN, "warm": TORCHRUN | STARTED, "cold": TORCHRUN | STARTED}


def is_failure(attempt: int, line: dict[str, Any]) -> bool:
    """Returns whether a line of the stream reports the attempt's failure."""
    report = line.get("report") or {}
    return (report.get("state"), report.get("attempt")) == ("Failed", attempt)


def measure(folder: Path, way: str, *, library: bool) -> list[float]:
    """Returns the seconds from each of several exceptions to its report."""
    job = Job(folder, f"127.{random.randrange(1, 127)}.{random.randrange(250)}")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "agent.pyz").write_bytes(zipapp_bytes())
    more = {"TRAINMASTER_CGROUP_ROOT": str(without_memory(job))} if way == "cold" else {}
    agent = job.agent(0, NPROC_PER_NODE="2", **WAYS[way], **more)
    command = [sys.executable, str(folder / "agent.pyz")] if library else AGENT
    agent.start(sys.executable, str(folder / "train.py"), str(folder), agent=command)
    found = []
    try:
        for attempt in range(1, TIMES + 1):
            job.annotate(job.assignment(attempt))
            stream = Stream(agent)
            line = stream.until(partial(is_failure, attempt), 300.0)
            report = line["report"]
            found.append(time.time() - float((folder / "raised").read_text()))
            assert "ValueError: lost" in report["error"], report
            stream.close()
    finally:
        job.end()
    return found


def main() -> None:
    """Measures, and prints each row as it is known, because a busy machine takes minutes to import torch so often."""
    print(f"An exception -> its report (s), {TIMES} times")
    print(f"{'ranks':10}{'reported':18}{'median':>8}{'worst':>8}{'load':>6}")
    for library in (True, False):
        for way in WAYS:
            with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as folder:
                found = measure(Path(folder), way, library=library)
            median, worst, load = statistics.median(found), max(found), os.getloadavg()[0]
            reported = "as it is raised" if library else "by exiting"
            print(f"{way:10}{reported:18}{median:8.2f}{worst:8.2f}{load:6.0f}", flush=True)


if __name__ == "__main__":
    main()

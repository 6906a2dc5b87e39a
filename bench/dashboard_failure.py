"""Measures how soon a killed rank is on the dashboard's page, in a real browser: `python -m bench.dashboard_failure`.

A job of two ranks trains on a cluster on this machine, and one rank is killed repeatedly. The measured time lasts from
the kill until the job's timeline on the page shows one more mark.
"""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import expect

from bench.clusters import spread, table
from tests.cluster.operator_under_test import training_job
from tests.dashboard_pages.browser import CHROMIUM, MISSING, chromium, new_page
from trainmaster.client import JobClient
from trainmaster.local import running_cluster

KILLS = 7
LIMIT = 1.0
BIN = Path(sys.executable).parent
SCRIPT = """
import json, os, pathlib, time
print("process", os.getpid(), "of attempt", os.environ["TRAINMASTER_ATTEMPT"], flush=True)
progress = pathlib.Path(os.environ["TRAINMASTER_PROGRESS_FILE"])
for step in range(1, 100_000):
    temporary = progress.with_suffix(".tmp")
    temporary.write_text(json.dumps({"step": step, "loss": 1 / step, "stepSeconds": 0.1}))
    temporary.rename(progress)
    time.sleep(0.1)
"""


def killed(jobs: JobClient, attempt: int) -> float:
    """Kills rank 1 of an attempt, and returns the time."""
    found = None
    while found is None:
        log = "\n".join(jobs.logs("bert", 1))
        found = re.search(rf"process (\d+) of attempt {attempt}\b", log)
    time.sleep(2)
    os.kill(int(found[1]), signal.SIGKILL)
    return time.time()


def main() -> int:
    """Measures, prints the table, and returns 1 if the limit is exceeded."""
    if not CHROMIUM.exists():
        print(MISSING)
        return 1
    seen = []
    with tempfile.TemporaryDirectory() as folder, running_cluster(Path(folder)) as cluster:
        jobs = JobClient("default", kubeconfig=str(cluster.kubeconfig))
        jobs.submit(training_job("bert", SCRIPT, failurePolicy={"maxRestarts": 100}))
        command = [BIN / "kubectl-dtj", "open", "bert", "--no-browser", "--kubeconfig", cluster.kubeconfig]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as dashboard,
            chromium() as browser,
            new_page(browser) as (page, _),
        ):
            assert dashboard.stdout is not None
            page.goto(next(line for line in dashboard.stdout if "#launch=" in line).strip())
            for attempt in range(1, KILLS + 1):
                at = killed(jobs, attempt)
                expect(page.locator(".mark")).to_have_count(attempt)
                seen.append(time.time() - at)
            dashboard.terminate()
    columns = (f"{KILLS} kills, seconds", "median", "least", "most", "median to limit")
    table("A killed rank on the page", columns, [("from the kill to the timeline", *spread(seen, LIMIT))])
    return 0 if statistics.median(seen) < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())

"""A real browser shows a job that really trains: data flows from the agents through operator and history to the page.

Its curves grow, the slow rank is seen and opens with its stacks and log, a killed rank appears on the timeline, and the
page still shows all of it once the job is deleted.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.cluster.forkserver import context, trainmaster
from tests.cluster.operator_under_test import running_operator, status, training_job
from tests.dashboard_pages.browser import CHROMIUM, MISSING, chromium, new_page
from tests.processes.agent.agents import free_port
from trainmaster_local.testing.clusters import Cluster

pytestmark = [pytest.mark.usefixtures("pods_run"), pytest.mark.timeout(300)]

BIN = Path(sys.executable).parent
SECONDS = 60.0
# Both ranks step together as DDP's do: rank 1 computes for three times as long, and rank 0 waits for it.
SCRIPT = """
import faulthandler, json, os, pathlib, signal, time
faulthandler.register(signal.SIGUSR2, all_threads=True, chain=False)
rank, attempt = int(os.environ["RANK"]), int(os.environ["TRAINMASTER_ATTEMPT"])
print(f"rank {rank} of attempt {attempt} is process {os.getpid()}.", flush=True)
progress = pathlib.Path(os.environ["TRAINMASTER_PROGRESS_FILE"])

def compute_gradients():
    time.sleep(0.15 if rank else 0.05)

for step in range(20 * (attempt - 1) + 1, 2000):
    compute_gradients()
    time.sleep(0 if rank else 0.1)
    figures = {"step": step, "totalSteps": 2000, "loss": 3 / step ** 0.5, "samplesPerSecond": 213.0}
    figures |= {"stepSeconds": 0.15}
    figures |= {"computeSeconds": 0.15 if rank else 0.05, "gradNorm": 1.0 + rank, "learningRate": 0.01}
    temporary = progress.with_suffix(".tmp")
    temporary.write_text(json.dumps(figures))
    temporary.rename(progress)
    if step % 10 == 0:
        print(f"step {step} is done", flush=True)
"""


@contextmanager
def process(arguments: list[str], log: Path) -> Iterator[None]:
    """Runs `trainmaster` with these arguments."""
    started = context.Process(target=trainmaster, args=(arguments, log), daemon=True)
    started.start()
    try:
        yield
    finally:
        started.terminate()
        started.join(10)
        print(log.read_text())


@contextmanager
def history(cluster: Cluster, folder: Path, token: Path) -> Iterator[str]:
    """Yields the address of a history."""
    port = free_port("127.0.0.1")
    options = ["--file", str(folder / "history.sqlite"), "--address", "127.0.0.1", "--port", str(port)]
    options += ["--writer-token-file", str(token), "--kubeconfig", str(cluster.kubeconfig)]
    with process(["history", "serve", *options], folder / "history.log"):
        address = f"http://127.0.0.1:{port}"

        def ready() -> bool:
            try:
                return bool(urllib.request.urlopen(f"{address}/readyz", timeout=5).status == 200)
            except OSError:
                return False

        cluster.eventually(ready, SECONDS, "the history answers")
        yield address


@contextmanager
def opened(cluster: Cluster, folder: Path, address: str) -> Iterator[str]:
    """Yields the address that `kubectl dtj open` would open."""
    log = folder / "open.log"
    command = [BIN / "kubectl-dtj", "open", "--no-browser", "--history", address]
    command += ["--kubeconfig", cluster.kubeconfig, "--namespace", cluster.namespace]
    with log.open("wb") as output:
        started = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        found = cluster.eventually(
            lambda: re.search(r"http://\S+#launch=\S+", log.read_text()), SECONDS, "an address to open"
        )
        yield found[0]
    finally:
        started.send_signal(signal.SIGTERM)
        assert started.wait(20) == 0, log.read_text()


def test_a_job_is_seen_as_it_trains_fails_and_is_gone(cluster: Cluster, tmp_path: Path) -> None:
    if not CHROMIUM.exists():
        pytest.fail(MISSING, pytrace=False)
    token = tmp_path / "writer-token"
    token.write_text("only-the-operator-knows")
    with (
        history(cluster, tmp_path, token) as address,
        running_operator(
            cluster, tmp_path, f"--history-url={address}", f"--history-token-file={token}", "--history-seconds=0.5"
        ),
        opened(cluster, tmp_path, address) as url,
        chromium() as browser,
        new_page(browser) as (page, said),
    ):
        cluster.apply(training_job("bert", SCRIPT))
        page.goto(url)
        page.get_by_role("link", name="bert").click()
        expect(page.get_by_role("heading", name="bert")).to_be_visible()
        expect(page.locator(".job-head")).to_contain_text("Running")

        # The slow rank is detected, although both report the same time for a step.
        expect(page.locator(".straggler")).to_contain_text("Rank 1 (worker 1) takes 0.150 s")
        for title in ("Loss", "Speed", "Step time", "Goodput", "Processor", "Memory"):
            expect(page.locator(".curve-title").get_by_text(title).first).to_be_visible()

        page.get_by_role("button", name="Open rank 1").click()
        drawer = page.get_by_role("dialog", name="Rank 1")
        # The newest lines are shown, and the first ones after scrolling up.
        expect(drawer.locator(".log-line").last).to_contain_text("is done")
        drawer.locator(".log-box").evaluate("box => { box.scrollTop = 0 }")
        expect(drawer.locator(".log-line").first).to_contain_text("rank 1 of attempt 1")
        expect(drawer.get_by_text("bert-1").first).to_be_visible()
        drawer.get_by_role("button", name="Collect stacks").click()
        expect(drawer.locator(".stacks pre")).to_contain_text("compute_gradients")
        page.keyboard.press("Escape")

        loss = page.locator(".curve").filter(has_text="Loss").first
        before = loss.inner_text()
        cluster.eventually(lambda: loss.inner_text() != before, SECONDS, "the curve of the loss grows")

        killed = re.search(r"rank 1 of attempt 1 is process (\d+)", cluster.kubectl("logs", "bert-1").stdout)
        assert killed is not None
        os.kill(int(killed[1]), signal.SIGKILL)
        expect(page.locator(".failures li")).to_contain_text("Signal: rank 1")
        expect(page.locator(".mark")).to_have_count(1)
        expect(page.locator(".line-of-time .segment")).to_have_count(2)
        assert status(cluster, "bert")["attempt"] == 2

        page.get_by_role("tab", name="Logs").click()
        expect(page.locator(".log-line").filter(has_text="rank 0 of attempt 2")).to_be_visible()

        page.get_by_role("button", name="Suspend").click()
        page.get_by_role("dialog").get_by_role("button", name="Suspend").click()
        expect(page.locator(".job-head")).to_contain_text("Suspended")

        assert said == []
        cluster.delete("dtj", "bert")
        page.get_by_role("tab", name="Overview").click()
        expect(page.locator(".job-head")).to_contain_text("deleted")
        page.goto(f"{url.partition('#')[0]}?deleted=1")
        page.get_by_role("link", name="bert").click()
        expect(page.locator(".failures li")).to_contain_text("Signal: rank 1")
        expect(page.locator(".plot canvas").first).to_be_visible()
        # The page may be asking why the job is suspended, or for its metrics, when the job is deleted.
        assert [line for line in said if "404 (Not Found)" not in line or "/bert/" not in line] == []

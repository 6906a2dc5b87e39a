"""`python -m tools.screenshots` takes the pictures of the dashboard in docs/pictures, which needs eight minutes.

Nothing in the pictures is invented. On a cluster on this machine a job trains on two workers with two ranks each, and
continues after three faults (a killed rank, a hanging rank, a deleted pod). Then one of its ranks is slowed down. Two
smaller jobs before it have other learning rates, and are compared with it. Debian's Chromium shows the page that
`kubectl dtj open` serves.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import yaml
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from trainmaster.client import JobClient, TrainingJob
from trainmaster.local import running_cluster

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
BIN = Path(sys.executable).parent
EXAMPLE = ROOT / "manifests" / "examples" / "reviews.yaml"
STEPS = 1_220
# Names and learning rates of the jobs that are compared with the example, and their epochs.
COMPARED, EPOCHS = {"reviews-slow": 0.0003, "reviews-fast": 0.03}, 2
BROWSER = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
# Width and height of a window, in CSS pixels.
WIDE, PHONE = (1440, 900), (390, 844)


def main() -> None:
    """Trains the job, causes the faults, and takes the pictures."""
    PICTURES.mkdir(exist_ok=True)
    with TemporaryDirectory(prefix="trainmaster-pictures-") as folder, ExitStack() as stack:
        kubeconfig, history = stack.enter_context(_everything(Path(folder)))
        jobs = JobClient("default", kubeconfig=kubeconfig)
        others = [jobs.submit(_compared(*one)) for one in COMPARED.items()]
        for job in others:
            jobs.wait(job.name, until=lambda job: job.finished, timeout=900)
        jobs.submit(_manifest())
        _break(jobs, Path(folder))
        address = stack.enter_context(_dashboard(kubeconfig, history))
        _slowed(Path(folder), lambda: _pictures(address(), others))


def _compared(name: str, rate: float) -> dict[str, Any]:
    """Returns the manifest of a job with another learning rate."""
    job = _manifest()
    job["metadata"]["name"] = name
    job["spec"]["workers"] = 1
    job["spec"]["training"] |= {"epochs": EPOCHS, "optimizer": {**job["spec"]["training"]["optimizer"], "lr": rate}}
    return job


def _manifest() -> dict[str, Any]:
    [job] = yaml.safe_load_all(EXAMPLE.read_text(encoding="utf-8"))
    job["spec"] |= {
        "processesPerWorker": 2,
        "resources": {"cpu": {"request": "100m", "limit": 2}, "memory": "2Gi"},
        "failurePolicy": {"hang": {"progressSeconds": 8}},
    }
    job["spec"]["training"] |= {"epochs": 5, "evaluation": {"every_steps": 305}}
    return dict(job)


@contextmanager
def _everything(folder: Path) -> Iterator[tuple[str, str]]:
    """Runs a cluster, an operator and a history; yields the cluster's kubeconfig and the history's address."""
    token, port = folder / "writer-token", _free_port()
    token.write_text(secrets.token_urlsafe(), encoding="utf-8")
    address = f"http://127.0.0.1:{port}"
    to_history = ("--history-url", address, "--history-token-file", str(token))
    with running_cluster(folder, nodes=2, operator_options=to_history) as cluster:
        kubeconfig = str(cluster.kubeconfig)
        options = ["--file", str(folder / "history.sqlite"), "--port", str(port), "--address", "127.0.0.1"]
        command = [BIN / "trainmaster", "history", "serve", *options, "--writer-token-file", str(token)]
        with _process([*command, "--kubeconfig", kubeconfig]):
            yield kubeconfig, address


@contextmanager
def _dashboard(kubeconfig: str, history: str) -> Iterator[Callable[[], str]]:
    """Runs the dashboard, and yields a function. Each call returns an address that opens one page."""
    command = [BIN / "kubectl-dtj", "open", "reviews", "--no-browser", "--kubeconfig", kubeconfig, "--history", history]
    with _process(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = process.stdout

        def address() -> str:
            for line in lines:
                if found := re.search(r"http://\S+#launch=\S+", line.decode()):
                    return found[0]
            raise SystemExit("the dashboard has ended")

        yield address


@contextmanager
def _process(command: list[object], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(list(map(str, command)), **options)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _break(jobs: JobClient, folder: Path) -> None:
    """Causes three faults, each after some steps, and waits after each until the job trains again."""
    pod = "/api/v1/namespaces/default/pods/reviews-1"
    faults: list[Callable[[], object]] = [
        lambda: os.kill(_pid(folder, 3), signal.SIGKILL),
        lambda: os.kill(_pid(folder, 1), signal.SIGSTOP),
        lambda: jobs.transport.request("DELETE", pod),
    ]
    attempt = 0
    for share, fault in zip((0.2, 0.4, 0.6), faults, strict=True):
        # Ranks that join after a fault begin another attempt.
        _until(jobs, partial(_is_beyond, attempt, share))
        attempt = jobs.get("reviews").status.attempt
        fault()
    _until(jobs, partial(_is_beyond, attempt, 0.75))


def _is_beyond(attempt: int, share: float, job: TrainingJob) -> bool:
    return job.status.attempt > attempt and _step(job) > STEPS * share


def _slowed(folder: Path, work: Callable[[], None]) -> None:
    """Does the work while a rank runs only a quarter of the time."""
    done, pid = threading.Event(), _pid(folder, 2)

    def slow() -> None:
        while not done.wait(0.02):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.06)
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        time.sleep(30)
        work()
    finally:
        done.set()
        thread.join()


def _pictures(address: str, others: Sequence[TrainingJob]) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=BROWSER
        )
        page = browser.new_page(viewport={"width": WIDE[0], "height": WIDE[1]}, color_scheme="light")
        page.goto(address)
        page.get_by_text("Where every second went").wait_for()
        page.locator(".curve").first.wait_for()
        time.sleep(6)
        _take(page, "job")
        page.emulate_media(color_scheme="dark")
        _take(page, "job-dark")
        page.emulate_media(color_scheme="light")
        compared = ",".join(f"{job.namespace}/{job.name}/{job.uid}" for job in others)
        page.evaluate(f"location.hash = 'x=step&smooth=0.6&with={compared}'")
        page.locator(".jobs-key a").nth(len(others)).wait_for()
        time.sleep(10)
        page.locator("section:has(#curves-title)").screenshot(path=PICTURES / "compare.png")
        page.evaluate("location.hash = 'rank=2'")
        page.get_by_role("button", name="Collect stacks").click()
        page.get_by_text("Thread").first.wait_for()
        time.sleep(2)
        page.screenshot(path=PICTURES / "rank.png")
        page.keyboard.press("Escape")
        page.get_by_role("tab", name="Logs").click()
        time.sleep(3)
        page.screenshot(path=PICTURES / "logs.png")
        page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
        time.sleep(2)
        page.screenshot(path=PICTURES / "phone.png")
        browser.close()
    for path in PICTURES.glob("*.png"):
        # With 256 colours, the file takes a third of the bytes, without a visible difference.
        with Image.open(path) as picture:
            picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


def _take(page: Page, name: str) -> None:
    page.screenshot(path=PICTURES / f"{name}.png", full_page=True)


def _pid(folder: Path, rank: int) -> int:
    """Returns the id of a rank's process, which keeps the file for the rank's stacks open."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            files = [Path(file.path) for file in process.open_files() if file.path.startswith(str(folder))]
            if any(file.suffix == f".{rank}" and "stacks" in file.name for file in files):
                return int(process.pid)
    raise SystemExit(f"rank {rank} doesn't run")


def _step(job: TrainingJob) -> int:
    return 0 if job.status.progress is None else job.status.progress.step or 0


def _until(jobs: JobClient, reached: Callable[[TrainingJob], bool]) -> None:
    jobs.wait("reviews", until=lambda job: job.finished or reached(job), timeout=900)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


if __name__ == "__main__":
    main()

"""`kubectl dtj` and `trainmaster operator` run as processes on the cluster: what a person sees, and the exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import certifi
import pytest
import yaml

from tests.cluster.operator_under_test import OperatorProcess, install_crd, running_operator, training_job
from trainmaster_local.testing.clusters import Cluster

BIN = Path(sys.executable).parent
OPERATOR = ("operator", "run", "--all-namespaces")


def command(program: str, *arguments: str, kubeconfig: Path, path: Path | None = None) -> tuple[int, str, str]:
    """Runs one of our programs until it ends; returns its exit code, stdout and stderr."""
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "COLUMNS": "80"}
    if path is not None:
        environment["PATH"] = f"{path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [BIN / program, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


def changed_kubeconfig(cluster: Cluster, folder: Path, *, cluster_fields: object = None, user: object = None) -> Path:
    """Returns the cluster's kubeconfig, with other fields of the cluster or another user."""
    document = yaml.safe_load(cluster.kubeconfig.read_text())
    if isinstance(cluster_fields, dict):
        entry = document["clusters"][0]["cluster"]
        entry.pop("certificate-authority-data", None)
        entry |= cluster_fields
    if user is not None:
        document["users"][0]["user"] = user
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize(("program", "arguments"), [("kubectl-dtj", ("status",)), ("trainmaster", OPERATOR)])
def test_a_kubeconfig_with_the_authority_of_another_cluster_is_one_sentence(
    cluster: Cluster, tmp_path: Path, program: str, arguments: tuple[str, ...]
) -> None:
    wrong = changed_kubeconfig(cluster, tmp_path, cluster_fields={"certificate-authority": certifi.where()})
    code, output, errors = command(program, *arguments, kubeconfig=wrong)
    assert (code, output) == (1, "")
    assert "Traceback" not in errors
    assert "unable to get local issuer certificate" in errors.splitlines()[-1]


@pytest.mark.parametrize(("program", "arguments"), [("kubectl-dtj", ("status",)), ("trainmaster", OPERATOR)])
def test_a_plugin_that_isnt_installed_is_named_and_nobody_goes_on_as_nobody(
    cluster: Cluster, tmp_path: Path, program: str, arguments: tuple[str, ...]
) -> None:
    plugin = {"exec": {"command": "cloud-login", "apiVersion": "client.authentication.k8s.io/v1"}}
    path = changed_kubeconfig(cluster, tmp_path, user=plugin)
    code, output, errors = command(program, *arguments, kubeconfig=path)
    assert (code, output, len(errors.splitlines())) == (1, "", 1)
    assert "exec.command: the plugin 'cloud-login' isn't installed; install it" in errors


def test_names_of_jobs_and_namespaces_are_completed(cluster: Cluster) -> None:
    install_crd(cluster)
    for name in ("bert-mrpc", "bert-sst2", "llama"):
        apply(cluster, training_job(name, "pass"))
    for words, wanted in (
        (("-n", cluster.namespace, "status", "bert"), ["bert-mrpc", "bert-sst2"]),
        (("wait", "-n", cluster.namespace, "l"), ["llama"]),
        (("status", "-n", cluster.namespace), [cluster.namespace]),
        (("-n", "kube-s"), ["kube-system"]),
    ):
        code, output, _ = command("kubectl_complete-dtj", *words, kubeconfig=cluster.kubeconfig)
        assert (code, output.splitlines()) == (0, [*wanted, ":4"])


# Prints its attempt, and ends when a file or a signal asks it to.
STEPS = """
import os, pathlib, time
attempt = os.environ["TRAINMASTER_ATTEMPT"]
print("attempt", attempt, "begins", flush=True)
while not pathlib.Path("GO" + attempt).exists():
    time.sleep(0.05)
print("attempt", attempt, "ends", flush=True)
raise SystemExit(3 if attempt == "1" else 0)
"""


@pytest.fixture
def operator(cluster: Cluster, pods_run: None, tmp_path: Path) -> Iterator[OperatorProcess]:
    with running_operator(cluster, tmp_path) as started:
        yield started


class Following:
    """Runs `kubectl dtj` in the background, and collects its output."""

    def __init__(self, cluster: Cluster, folder: Path, *arguments: str) -> None:
        self.output, self.errors = folder / "stdout", folder / "stderr"
        self.process = subprocess.Popen(
            [BIN / "kubectl-dtj", *arguments, "--namespace", cluster.namespace],
            env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
            stdout=self.output.open("wb"),
            stderr=self.errors.open("wb"),
        )

    def until(self, words: str, path: Path | None = None) -> None:
        """Waits until the words are printed."""
        wait_for(lambda: words in (path or self.output).read_text(), f"{words!r} is printed", self.shown)

    def end(self) -> tuple[int, str, str]:
        """Waits for its end; returns the exit code, stdout and stderr."""
        code = self.process.wait(60)
        return code, self.output.read_text(), self.errors.read_text()

    def shown(self) -> str:
        return f"{self.output.read_text()}\n{self.errors.read_text()}"


def wait_for(holds: Callable[[], bool], what: str, shown: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, f"never: {what}\n{shown()}"
        time.sleep(0.1)


def phase(cluster: Cluster, name: str) -> str:
    return str((cluster.get("dtj", name).get("status") or {}).get("phase"))


def apply(cluster: Cluster, body: dict[str, Any]) -> None:
    cluster.apply(body)


def test_logs_are_followed_from_before_the_first_pod_through_restart_suspend_and_resume_to_the_end(
    cluster: Cluster, operator: OperatorProcess, pods_folder: Path
) -> None:
    apply(cluster, training_job("steps", STEPS.replace("GO", f"{pods_folder}/go"), workers=1))
    following = Following(cluster, pods_folder, "logs", "steps", "-f")
    following.until("attempt 1 begins")
    (pods_folder / "go1").touch()
    following.until("attempt 2 begins")
    run = {"kubeconfig": cluster.kubeconfig}
    assert command("kubectl-dtj", "suspend", "steps", "-n", cluster.namespace, **run)[0] == 0
    following.until("Job steps has no pods: Suspended", following.errors)
    code, kept, _ = command("kubectl-dtj", "logs", "steps", "-n", cluster.namespace, **run)
    assert (code, kept.splitlines()[-2:]) == (0, ["--- attempt 2 ---", "[rank 0]: attempt 2 begins"])
    assert command("kubectl-dtj", "resume", "steps", "-n", cluster.namespace, **run)[0] == 0
    following.until("attempt 3 begins")
    resumed = {
        options: command("kubectl-dtj", "logs", "steps", *options, "-n", cluster.namespace, **run)[1].splitlines()
        for options in ((), ("--attempt", "1"), ("-p",))
    }
    (pods_folder / "go3").touch()
    code, output, errors = following.end()
    live = [
        *("[rank 0]: attempt 1 begins", "[rank 0]: attempt 1 ends", "--- attempt 2 ---", "[rank 0]: attempt 2 begins"),
        *("--- attempt 3 ---", "[rank 0]: attempt 3 begins", "[rank 0]: attempt 3 ends"),
    ]
    assert (code, [line for line in output.splitlines() if "attempt" in line]) == (0, live)
    assert errors.splitlines()[-1] == "Job steps has ended: Succeeded."
    assert resumed == {(): live[:-1], ("--attempt", "1"): live[:2], ("-p",): live[2:4]}, "what was kept, once"
    code, kept, _ = command("kubectl-dtj", "logs", "steps", "-n", cluster.namespace, **run)
    assert (code, kept.splitlines()) == (0, live)


def test_logs_of_a_job_whose_program_isnt_there_say_so(
    cluster: Cluster, operator: OperatorProcess, tmp_path: Path
) -> None:
    job = training_job("nowhere", "", workers=1)
    job["spec"]["command"] = ["/no/such/program"]
    apply(cluster, job)
    code, output, errors = Following(cluster, tmp_path, "logs", "nowhere", "-f").end()
    assert (code, output) == (0, "")
    assert "Job nowhere has failed: " in errors and "/no/such/program" in errors
    code, output, errors = command(
        "kubectl-dtj", "logs", "nowhere", "-n", cluster.namespace, kubeconfig=cluster.kubeconfig
    )
    assert (code, output) == (0, "")
    assert "Job nowhere has failed: " in errors and "/no/such/program" in errors


def test_a_deleted_job_ends_those_who_watch_it_with_1(
    cluster: Cluster, operator: OperatorProcess, tmp_path: Path
) -> None:
    apply(cluster, training_job("gone", STEPS.replace("GO", f"{tmp_path}/go"), workers=1))
    wait_for(lambda: phase(cluster, "gone") == "Running", "the job runs")
    watchers = []
    for arguments in (("logs", "gone", "-f"), ("status", "gone", "-w")):
        folder = tmp_path / arguments[0]
        folder.mkdir()
        watchers.append(Following(cluster, folder, *arguments))
    watchers[0].until("attempt 1 begins")
    watchers[1].until("Running")
    cluster.kubectl("delete", "dtj", "gone")
    for watcher in watchers:
        code, _, errors = watcher.end()
        assert code == 1
        assert errors.splitlines()[-1].startswith("error: Job gone was deleted while it")


def test_in_a_terminal_the_clock_moves_and_into_a_pipe_names_are_whole(
    cluster: Cluster, operator: OperatorProcess, tmp_path: Path
) -> None:
    long = "a-job-whose-name-is-as-long-as-its-pods-allow"
    apply(cluster, training_job(long, STEPS.replace("GO", f"{tmp_path}/go"), workers=1))
    wait_for(lambda: phase(cluster, long) == "Running", "the job runs")
    code, output, _ = command("kubectl-dtj", "status", "-n", cluster.namespace, kubeconfig=cluster.kubeconfig)
    assert (code, [line.split()[0] for line in output.splitlines()]) == (0, ["NAME", long])
    master, slave = pty.openpty()
    watching = subprocess.Popen(
        [BIN / "kubectl-dtj", "status", long, "--watch", "--namespace", cluster.namespace],
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "TERM": "xterm", "COLUMNS": "80", "LINES": "40"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        # A shell's background processes ignore SIGINT, and that is inherited through these tests.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(slave)
    shown = bytearray()
    # The job doesn't change; only the clock's values do.
    while len(set(re.findall(rb"time (\d+)s", shown))) < 3:
        shown += os.read(master, 65_536)
    watching.send_signal(signal.SIGINT)
    try:
        while chunk := os.read(master, 65_536):
            shown += chunk
    except OSError:
        # The terminal's other side is closed.
        assert watching.wait(30) == 130
    assert b"Traceback" not in shown


def test_kubectl_runs_the_plugin_with_its_options_before_and_behind_the_command(
    cluster: Cluster, operator: OperatorProcess, tmp_path: Path
) -> None:
    apply(cluster, training_job("asked", STEPS.replace("GO", f"{tmp_path}/go"), workers=1))
    wait_for(lambda: phase(cluster, "asked") == "Running", "the job runs")

    def dtj(*words: str) -> str:
        code, output, errors = command("kubectl", "dtj", *words, kubeconfig=cluster.kubeconfig, path=BIN)
        assert code == 0, errors
        return output

    namespace = ("-n", cluster.namespace)
    assert dtj(*namespace, "status", "asked", "-o", "name") == "distributedtrainingjob.trainmaster.dev/asked\n"
    whole, known = json.loads(dtj("status", "asked", "-o", "json", *namespace)), cluster.get("dtj", "asked")
    assert [whole[field] for field in ("apiVersion", "kind", "spec")] == [
        known[field] for field in ("apiVersion", "kind", "spec")
    ]
    assert whole["metadata"]["uid"] == known["metadata"]["uid"] and "managedFields" not in whole["metadata"]
    assert dtj(*namespace, "list").splitlines()[1].split()[:2] == ["asked", "Running"]
    assert dtj(*namespace, "list", "-l", "no=such") == ""
    assert dtj("suspend", "dtj/asked", *namespace) == "asked: suspending\n"
    assert dtj(*namespace, "wait", "asked", "--for", "suspended", "--timeout=60s") == "asked: Suspended\n"

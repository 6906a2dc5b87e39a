"""`trainmaster local up`, `down` and `status` manage one process tree, which is gone when it ends, however it ends."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainmaster_local import cluster
from trainmaster_local.testing.clusters import KUBECTL

WORK = """
apiVersion: v1
kind: Pod
metadata: {name: work}
spec:
  containers:
  - {name: c, image: python, command: [sh, -c, "echo up; sleep 987654 & sleep 987654"]}
"""


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "state"
    cluster.down(tmp_path / "state")


def run_work(info: cluster.ClusterInfo) -> None:
    env = {**os.environ, "KUBECONFIG": str(info.kubeconfig)}
    subprocess.run([str(KUBECTL), "apply", "-f", "-"], input=WORK, text=True, env=env, check=True, timeout=90)
    wait = [str(KUBECTL), "wait", "--for=condition=Ready", "pod/work", "--timeout=60s"]
    subprocess.run(wait, env=env, check=True, timeout=90)


def below(folder: Path) -> list[str]:
    """Returns the command lines of the processes that work in the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if str(folder) in str((entry / "cwd").readlink()):
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue  # it ended meanwhile, or is the kernel's
    return found


def gone(folder: Path) -> bool:
    deadline = time.monotonic() + 60
    while below(folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_up_runs_pods_and_down_ends_all_of_it(state_dir: Path) -> None:
    info = cluster.up(state_dir, gpus=2)
    assert cluster.status(state_dir) == info
    run_work(info)
    assert any("sleep" in line for line in below(state_dir))
    with pytest.raises(cluster.LocalClusterError, match=r"is up already at https://127\.0\.0\.1:\d+"):
        cluster.up(state_dir)
    assert cluster.down(state_dir) is True
    assert gone(state_dir)
    assert cluster.status(state_dir) is None
    assert cluster.down(state_dir) is False


@pytest.fixture
def real_node() -> Iterator[None]:
    """Runs programs that listen on every address of a Kubernetes node (kubelet, kube-proxy, k3s, an API server, etcd,
    exporters).

    They don't listen on 8472, which agents of concurrent tests use.
    """
    ports = (2379, 2380, 6443, 6444, 9100, 10248, 10249, 10250, 10255, 10256, 10257, 10259)
    with contextlib.ExitStack() as stack:
        for port in ports:
            listener = stack.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("0.0.0.0", port))
                listener.listen()
            except OSError as error:
                # This machine's own.
                assert error.errno == errno.EADDRINUSE
        yield


def test_up_runs_pods_on_a_machine_that_is_a_node_itself(real_node: None, state_dir: Path) -> None:
    run_work(cluster.up(state_dir))


@pytest.mark.parametrize("detach", [True, False])
def test_a_folder_that_cant_be_used_is_one_sentence(tmp_path: Path, detach: bool) -> None:
    (tmp_path / "file").touch()
    for folder, problem in ((tmp_path / "file", "File exists"), (Path("/proc/none"), "No such file or directory")):
        with pytest.raises(cluster.LocalClusterError) as caught:
            cluster.up(folder, detach=detach)
        assert str(caught.value) == (
            f"the cluster can't keep its files in {folder}: {problem} ({folder}); "
            "choose another with --state-dir (TRAINMASTER_LOCAL_DIR)"
        )


@pytest.mark.parametrize("detach", [True, False])
def test_a_folder_with_others_files_stays_as_it_is(tmp_path: Path, detach: bool) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "run.log").write_text("mine")
    with pytest.raises(cluster.LocalClusterError, match="has files that no cluster made; name an empty folder"):
        cluster.up(tmp_path, detach=detach)
    assert [path.name for path in tmp_path.rglob("*")] == ["logs", "run.log"]


def test_a_cluster_that_ends_as_it_starts_says_why_in_one_sentence(state_dir: Path) -> None:
    state_dir.mkdir()
    for name in (cluster.LOCK, "hosts"):
        (state_dir / name).touch()
    with pytest.raises(cluster.LocalClusterError, match=r"^the cluster can't keep its files in [^\n]*$"):
        cluster.up(state_dir)


def test_up_finds_the_machines_gpus(state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """These are the GPUs that nvidia-smi lists, except those that the user's environment hides."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    listed = "".join(f"GPU {number}: NVIDIA H200 (UUID: GPU-{number}aaa)\n" for number in range(3))
    program.write_text(f"#!/bin/sh\n[ $1 = -L ] && printf '{listed}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    info = cluster.up(state_dir, nodes=2)
    sentence = "GPUs: local-0 has 1 nvidia.com/gpu (2); local-1 has 1 nvidia.com/gpu (1)."
    assert info.gpus == sentence
    assert cluster.status(state_dir) == info
    env = {**os.environ, "KUBECONFIG": str(info.kubeconfig)}
    columns = r"custom-columns=N:.metadata.name,G:.status.allocatable.nvidia\.com/gpu"
    shown = subprocess.run(
        [str(KUBECTL), "get", "nodes", "--no-headers", "-o", columns], env=env, text=True, stdout=subprocess.PIPE,
        check=True, timeout=90,
    )  # fmt: skip
    assert shown.stdout.split() == ["local-0", "1", "local-1", "1"]


def test_nothing_is_left_of_a_killed_cluster_and_another_can_start(state_dir: Path) -> None:
    info = cluster.up(state_dir)
    run_work(info)
    os.kill(info.pid, signal.SIGKILL)
    assert gone(state_dir)
    assert cluster.status(state_dir) is None
    again = cluster.up(state_dir)
    assert again.pid != info.pid
    assert cluster.status(state_dir) == again

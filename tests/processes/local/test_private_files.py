"""Other users of the machine can neither read nor write a local cluster's files: Secrets, logs, programs."""

from __future__ import annotations

import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainmaster.client import HttpTransport, JobClient, find_server
from trainmaster.local import RunningCluster, running_cluster
from trainmaster_local import cluster
from trainmaster_local.config import ClusterConfig
from trainmaster_local.embedded import ThreadedCluster

NOBODY = 65534
SHARED_MEMORY = Path("/dev/shm")
WRITES = """
import os, pathlib, socket, tempfile, time
for folder in (os.environ["CHECKPOINTS"], os.environ["TRAINMASTER_MEMORY_DIR"], os.environ["TRAINMASTER_STATE_DIR"]):
    pathlib.Path(folder, "mine").write_text("x")
kept = tempfile.NamedTemporaryFile()
listener = socket.socket(socket.AF_UNIX)
listener.bind(tempfile.mkdtemp() + "/socket")
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """Makes a folder that all users of the machine can reach, as a home may be."""
    with tempfile.TemporaryDirectory(prefix="trainmaster-private-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def job(checkpoints: Path) -> dict[str, Any]:
    volume = {"name": "keys", "secret": {"secretName": "keys"}}
    mount = {"name": "keys", "mountPath": "/keys"}
    worker = {"name": "worker", "volumeMounts": [mount], "env": [{"name": "CHECKPOINTS", "value": str(checkpoints)}]}
    return {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": "job"},
        "spec": {
            # An image other than the bundled one: its pods get the agent from a ConfigMap.
            "image": "python:3.12",
            "workers": 1,
            "launcher": "exec",
            "command": ["python3", "-c", WRITES],
            "checkpoint": {"path": "/checkpoints", "volume": {"hostPath": str(checkpoints)}},
            "podTemplate": {"spec": {"volumes": [volume], "containers": [worker]}},
        },
    }


def run_job(running: RunningCluster, checkpoints: Path) -> None:
    """Waits until a rank has written to each of its volumes."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"key": "s3cret"}}
    transport = HttpTransport(find_server(str(running.kubeconfig)))
    transport.request("POST", "/api/v1/namespaces/default/secrets", body=secret)
    jobs = JobClient("default", kubeconfig=str(running.kubeconfig))
    jobs.submit(job(checkpoints))
    deadline = time.monotonic() + 60
    while not (checkpoints / "mine").exists():
        assert time.monotonic() < deadline, jobs.get("job")
        time.sleep(0.1)
    time.sleep(0.5)


def made(roots: list[Path]) -> list[Path]:
    """Returns all files and folders."""
    return [path for root in roots for path in (root, *root.rglob("*"))]


def exposed(roots: list[Path]) -> list[str]:
    """Returns what the group or others may read, write or enter, by its mode and the modes of the folders above it up
    to a root.
    """
    found, left = [], list(roots)
    while left:
        path = left.pop()
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode) or not mode & 0o077:
            continue
        found.append(f"{stat.filemode(mode)} {path}")
        left += path.iterdir() if stat.S_ISDIR(mode) else []
    return found


def open_to_nobody(paths: list[Path]) -> list[str]:
    """Returns what the user `nobody` may read or write. It forks, because that user may not run a Python in root's
    home.
    """
    found = [path for path in paths if not path.is_symlink()]
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            opened = [str(path) for path in found if os.access(path, os.R_OK) or os.access(path, os.W_OK)]
            os.write(write_end, json.dumps(opened).encode()[:60_000])
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return list(json.loads(text))


def memory_of(running: RunningCluster) -> list[Path]:
    info = cluster.status(running.kubeconfig.parent)
    assert info is not None
    return list(SHARED_MEMORY.glob(f"trainmaster-local-{info.pid}-*"))


def test_nobody_else_reads_or_writes_what_a_cluster_and_its_jobs_make(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(shared / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (shared / "tmp").mkdir(mode=0o777)
    with running_cluster(shared / "run") as running:
        run_job(running, shared / "checkpoints")
        roots = [*shared.iterdir(), *memory_of(running)]
        roots.remove(shared / "tmp")
        roots += (shared / "tmp").iterdir()
        assert len(memory_of(running)) == 1
        assert [path for path in made(roots) if path.is_file() and b"s3cret" in path.read_bytes()]
        assert exposed(roots) == []
        if os.geteuid() == 0:
            assert open_to_nobody(made(roots)) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_folder_of_another_user_is_refused(shared: Path) -> None:
    """Its owner could replace the files in it."""
    (shared / "theirs").mkdir()
    os.chown(shared / "theirs", NOBODY, NOBODY)
    sentence = r"^the cluster can't keep its files in \S+: it belongs to another user "
    with pytest.raises(cluster.LocalClusterError, match=sentence):
        cluster.up(shared / "theirs")
    assert (shared / "theirs").stat().st_mode & 0o777 == 0o755


def test_an_open_folder_that_others_may_need_is_not_closed(shared: Path) -> None:
    (shared / "file").touch()
    with (
        pytest.raises(PermissionError, match=r"other users may enter it \(mode 0755\)"),
        ThreadedCluster(ClusterConfig(state_dir=shared, nodes=())),
    ):
        raise AssertionError("it started")
    assert shared.stat().st_mode & 0o777 == 0o755


def test_an_open_folder_of_an_earlier_cluster_is_closed(shared: Path) -> None:
    for name in ("empty", "earlier"):
        (shared / name).mkdir(mode=0o755)
    (shared / "earlier" / "cluster.lock").touch()
    for name in ("empty", "earlier"):
        cluster.up(shared / name)
        cluster.down(shared / name)
        assert (shared / name).stat().st_mode & 0o777 == 0o700

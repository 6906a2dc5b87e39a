"""Code that fits no ConfigMap is uploaded to a claim. On failure, a sentence gives the reason and nothing is left."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.dtj_command import JOBS, PODS, run
from tests.unit.client.fakes import job
from trainmaster.cli.connection import Connection
from trainmaster.client import JobClient, JobExists, JobNotFound, NoCluster, NotAllowed
from trainmaster.client.code import claims

CORE = "/api/v1/namespaces/default"
POD = "reviews-code-upload"
FORBIDDEN = 'pods is forbidden: User "ann" cannot create resource "pods" in API group "" in the namespace "default"'
QUOTA = f'pods "{POD}" is forbidden: exceeded quota: compute, requested: cpu=500m, used: cpu=4, limited: cpu=4'
Hook = Callable[[], None]


class FakeCluster:
    """Fakes an API server with a claim. It keeps created objects, and the upload's pod goes through `statuses`.

    `before` and `after` are called around the handling of a request (`METHOD path`), and may raise.
    """

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {f"{CORE}/persistentvolumeclaims/archives": {}}
        self.statuses: list[dict[str, Any]] = [{"phase": "Pending"}, {"phase": "Succeeded"}]
        self.events: list[dict[str, Any]] = []
        self.before: dict[str, Hook] = {}
        self.after: dict[str, Hook] = {}
        self.made: list[dict[str, Any]] = []

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Any:
        del query, content_type
        self.before.get(f"{method} {path}", lambda: None)()
        answer = getattr(self, f"_{method.lower()}")(path, body)
        self.after.get(f"{method} {path}", lambda: None)()
        return answer

    def _get(self, path: str, _body: Any) -> Any:
        if path == f"{CORE}/events":
            return {"items": self.events, "metadata": {}}
        found = self._found(path)
        if path == f"{PODS}/{POD}" and "status" not in found:
            status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
            return {**found, "status": status}
        return found

    def _post(self, path: str, body: Any) -> Any:
        at = f"{path}/{body['metadata']['name']}"
        if at in self.objects:
            raise JobExists(f'"{body["metadata"]["name"]}" already exists')
        metadata = {**body["metadata"], "uid": f"uid-{len(self.made)}"}
        self.made.append({**body, "metadata": metadata})
        self.objects[at] = self.made[-1]
        return self.made[-1]

    def _patch(self, path: str, body: Any) -> Any:
        self._found(path)["spec"] |= body["spec"]
        return self._found(path)

    def _delete(self, path: str, body: Any) -> Any:
        uid = ((body or {}).get("preconditions") or {}).get("uid")
        assert uid in (None, self._found(path)["metadata"]["uid"]), "somebody else's object is deleted"
        return self.objects.pop(path)

    def _found(self, path: str) -> dict[str, Any]:
        if path not in self.objects:
            raise JobNotFound(f"{path} not found")
        return self.objects[path]

    def lines(self, path: str, *, query: Mapping[str, str], read_seconds: float | None) -> Iterator[bytes]:
        raise AssertionError("nothing is watched")

    def beginning(self, path: str, *, limit: int, seconds: float) -> bytes:
        raise AssertionError("no log is read")

    def left(self) -> list[str]:
        """Returns the names of the pods and ConfigMaps that exist."""
        return [path.rpartition("/")[2] for path in self.objects if "/pods/" in path or "/configmaps/" in path]

    def digest(self) -> str:
        """Returns the digest of the code that the job names."""
        return str(self.objects[f"{JOBS}/reviews"]["spec"]["code"]["digest"])


def raising(error: BaseException) -> Hook:
    def hook() -> None:
        raise error

    return hook


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Returns a cluster with a job whose code is on a claim."""
    fake = FakeCluster()
    reviews = job()
    reviews["spec"]["code"] = {"digest": "0" * 64, "claim": {"claimName": "archives", "path": "code/reviews"}}
    fake.objects[f"{JOBS}/reviews"] = reviews
    monkeypatch.setattr(claims, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(claims, "UPLOAD_SECONDS", 2)
    monkeypatch.setattr(Connection, "client", lambda _: JobClient("default", transport=fake))
    return fake


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a folder whose archive has two pieces: random bytes can't be compressed."""
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "noise.bin").write_bytes(os.urandom(800_000))
    return tmp_path


def push(folder: Path) -> Any:
    return run("push", "reviews", str(folder), "--no-wait")


def refusal(cluster: FakeCluster, folder: Path) -> str:
    """Returns the sentence of a push that fails, and checks that nothing is left and the job keeps its code."""
    result = push(folder)
    assert (result.exit_code, result.stdout, cluster.digest()) == (1, "", "0" * 64), result.output
    assert cluster.left() == []
    (line,) = result.stderr.splitlines()
    return str(line)


def test_what_was_brought_is_named_by_the_job_and_its_pod_and_pieces_are_gone(
    cluster: FakeCluster, folder: Path
) -> None:
    result = push(folder)
    assert (result.exit_code, result.stderr) == (0, "")
    assert [each["kind"] for each in cluster.made] == ["Pod", "ConfigMap", "ConfigMap"]
    pod = cluster.made[0]
    for piece in cluster.made[1:]:
        assert [owner["uid"] for owner in piece["metadata"]["ownerReferences"]] == [pod["metadata"]["uid"]]
    arguments = pod["spec"]["containers"][0]["command"][3:]
    assert arguments == ["/run/claim/code/reviews", cluster.digest(), "2", "2", "0" * 64, "reviews"]
    assert cluster.left() == []


@pytest.mark.parametrize("why", [FORBIDDEN, QUOTA])
def test_a_pod_that_is_refused(cluster: FakeCluster, folder: Path, why: str) -> None:
    cluster.before[f"POST {PODS}"] = raising(NotAllowed(why))
    assert refusal(cluster, folder) == (
        f"error: a pod has to bring the code to claim archives, and the cluster refuses it or its pieces: {why}; code "
        "of up to 700 KB (compressed) needs no pod: ignore what isn't code"
    )


def test_a_piece_that_is_refused_takes_the_pod_along(cluster: FakeCluster, folder: Path) -> None:
    def second() -> None:
        if len(cluster.made) == 2:
            raise NotAllowed("exceeded quota: configmaps")

    cluster.before[f"POST {CORE}/configmaps"] = second
    assert "refuses it or its pieces: exceeded quota: configmaps; code of up to 700 KB" in refusal(cluster, folder)
    assert len(cluster.made) == 2


NO_NODE = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 Insufficient cpu."}
NEVER: dict[str, tuple[dict[str, Any], str]] = {
    "no node": ({"phase": "Pending", "conditions": [NO_NODE]}, "it has no node: " + NO_NODE["message"]),
    "a volume that can't be mounted": ({"phase": "Pending"}, "MountVolume.SetUp failed for volume pvc-1: timed out"),
}


@pytest.mark.parametrize("what", NEVER)
def test_a_pod_that_never_starts(
    cluster: FakeCluster, folder: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(claims, "UPLOAD_SECONDS", 0)
    status, why = NEVER[what]
    cluster.statuses = [status]

    def event(uid: str, message: str, second: int, kind: str = "Warning") -> dict[str, Any]:
        at = f"2026-11-21T04:00:0{second}Z"
        return {"type": kind, "involvedObject": {"uid": uid}, "message": message, "lastTimestamp": at}

    cluster.events = [
        event("uid-0", "an older warning", 1),
        event("uid-0", "MountVolume.SetUp failed for\nvolume pvc-1: timed out", 3),
        event("uid-0", "Successfully assigned default/reviews-code-upload to node-a", 4, "Normal"),
        event("another", "Back-off", 5),
    ]
    assert refusal(cluster, folder) == (
        f"error: pod {POD}, which brings the code to its volume, wasn't done within 0 s: {why}; the code is as it was: "
        "mend that, and try again"
    )


def container(**state: Any) -> list[dict[str, Any]]:
    return [{"name": "upload", "state": state}]


PULL = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "nowhere"'}
TRACEBACK = "Traceback (most recent call last):\n  File ...\nMemoryError\n"
FAILED: dict[str, tuple[dict[str, Any], str]] = {
    "an image that can't be pulled": (
        {"phase": "Pending", "containerStatuses": container(waiting=PULL)},
        'its image can\'t be pulled (Back-off pulling image "nowhere")',
    ),
    "a volume that is full": (
        {
            "phase": "Failed",
            "containerStatuses": container(
                terminated={"exitCode": 1, "message": "/run/claim/code/reviews: No space left on device\n"}
            ),
        },
        "exit code 1: /run/claim/code/reviews: No space left on device",
    ),
    "a traceback": (
        {"phase": "Failed", "containerStatuses": container(terminated={"exitCode": 1, "message": TRACEBACK})},
        "exit code 1: MemoryError",
    ),
    "a kill for memory": (
        {"phase": "Failed", "containerStatuses": container(terminated={"exitCode": 137, "reason": "OOMKilled"})},
        "exit code 137: OOMKilled",
    ),
    "an eviction": (
        {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
        "The node was low on resource: memory.",
    ),
}


@pytest.mark.parametrize("what", FAILED)
def test_a_pod_that_dies(cluster: FakeCluster, folder: Path, what: str) -> None:
    status, why = FAILED[what]
    cluster.statuses = [{"phase": "Running"}, status]
    assert refusal(cluster, folder) == (
        f"error: pod {POD}, which brings the code to its volume, has failed: {why}; the code is as it was: mend that, "
        "and try again"
    )


def test_a_pod_that_somebody_deletes(cluster: FakeCluster, folder: Path) -> None:
    def delete() -> None:
        cluster.objects.pop(f"{PODS}/{POD}", None)

    cluster.before[f"GET {PODS}/{POD}"] = delete
    assert refusal(cluster, folder) == (
        f"error: pod {POD}, which brings the code to its volume, was deleted; try again"
    )


INTERRUPTED = [f"POST {PODS}", f"POST {CORE}/configmaps", f"GET {PODS}/{POD}"]


@pytest.mark.parametrize("request_", INTERRUPTED)
def test_ctrl_c_leaves_nothing(cluster: FakeCluster, folder: Path, request_: str) -> None:
    """The request has arrived, but its answer hasn't come back."""
    hooks = iter([raising(KeyboardInterrupt())])
    cluster.after[request_] = lambda: next(hooks, lambda: None)()
    result = push(folder)
    assert (result.exit_code, result.stdout, cluster.digest()) == (130, "", "0" * 64)
    assert cluster.made and cluster.left() == []


def test_a_second_ctrl_c_leaves_no_pod(cluster: FakeCluster, folder: Path) -> None:
    """Objects that the pod owns are deleted with it."""
    cluster.after[f"GET {PODS}/{POD}"] = raising(KeyboardInterrupt())
    for path in (f"{PODS}/{POD}", f"{CORE}/configmaps/{POD}-0"):
        cluster.after[f"DELETE {path}"] = raising(KeyboardInterrupt())
    assert push(folder).exit_code == 130
    assert POD not in cluster.left()


def test_a_connection_that_breaks_while_the_pod_is_made_leaves_none(cluster: FakeCluster, folder: Path) -> None:
    cluster.after[f"POST {PODS}"] = raising(NoCluster("The answer of the cluster broke off: reset."))
    assert refusal(cluster, folder) == "error: The answer of the cluster broke off: reset."
    assert len(cluster.made) == 1


def left_behind(**status: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": POD, "uid": "uid-of-another"}, "status": status}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_the_pod_of_an_upload_that_was_killed_makes_way(cluster: FakeCluster, folder: Path, phase: str) -> None:
    cluster.objects[f"{PODS}/{POD}"] = left_behind(phase=phase)
    assert push(folder).exit_code == 0
    assert cluster.left() == []


def test_the_pod_of_somebody_elses_upload_stays(cluster: FakeCluster, folder: Path) -> None:
    cluster.objects[f"{PODS}/{POD}"] = left_behind(phase="Running")
    result = push(folder)
    assert (result.exit_code, cluster.left(), cluster.made) == (1, [POD], [])
    assert result.stderr == (
        f"error: pod {POD} is there: code is being brought to the job by somebody else; wait for it, or delete the pod "
        f"where nobody does that any more (kubectl delete pod {POD})\n"
    )


def test_ctrl_c_leaves_somebody_elses_pod_alone(cluster: FakeCluster, folder: Path) -> None:
    cluster.objects[f"{PODS}/{POD}"] = left_behind(phase="Running")
    cluster.before[f"POST {PODS}"] = raising(KeyboardInterrupt())
    assert push(folder).exit_code == 130
    assert cluster.left() == [POD]


def test_a_claim_that_is_not_there(cluster: FakeCluster, folder: Path) -> None:
    cluster.objects.pop(f"{CORE}/persistentvolumeclaims/archives")
    assert refusal(cluster, folder) == (
        "error: there is no PersistentVolumeClaim archives in default to bring the code to; create it, or name another "
        "by --code-claim"
    )


def test_a_job_of_a_name_that_is_taken_brings_nothing_to_the_other_jobs_archives(
    cluster: FakeCluster, folder: Path
) -> None:
    words = ("--name", "reviews", "--script", "train.py", "--code", str(folder), "--code-claim", "archives")
    result = run("submit", *words)
    assert (result.exit_code, cluster.made) == (1, [])
    code, _, error = result.stderr.partition("\n")
    assert code == "code: 2 files, 800.5 KB"
    assert error == 'error: distributedtrainingjobs.trainmaster.dev "reviews" already exists\n'


def test_a_job_whose_code_was_not_brought_is_not_created(cluster: FakeCluster, folder: Path) -> None:
    cluster.objects.pop(f"{JOBS}/reviews")
    cluster.statuses = [{"phase": "Failed", "message": "The node was low on resource: memory."}]
    words = ("--name", "reviews", "--script", "train.py", "--code", str(folder), "--code-claim", "archives")
    result = run("submit", *words)
    assert (result.exit_code, cluster.left(), f"{JOBS}/reviews" in cluster.objects) == (1, [], False)
    assert re.search(f"\nerror: pod {POD}, which brings .* has failed: The node was low", result.stderr)

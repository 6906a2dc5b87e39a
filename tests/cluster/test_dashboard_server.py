"""The dashboard runs before a real API server and jobs: a viewer's token decides exactly what they see and do."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.operator_under_test import OperatorProcess, running_operator, training_job
from tests.cluster.test_command_line import apply
from tests.processes.dashboard.page_client import Live, PageClient, page_client
from trainmaster.client.server import address_of
from trainmaster.dashboard.app import Dashboard, DashboardSettings, serving
from trainmaster_local.testing.clusters import Cluster

BIN = Path(sys.executable).parent
# Each rank prints a line whenever the file with that number appears, and reports its progress.
PRINTS = """
import json, os, pathlib, time
folder, rank = pathlib.Path("FOLDER"), os.environ["RANK"]
for step in range(1, 100):
    while not (folder / str(step)).exists():
        time.sleep(0.01)
    print(f"step {step} of rank {rank}", flush=True)
    progress = {"step": step, "loss": 1.0, "stepSeconds": 0.25}
    pathlib.Path(os.environ["TRAINMASTER_PROGRESS_FILE"]).write_text(json.dumps(progress))
"""
VIEW = [
    {"apiGroups": ["trainmaster.dev"], "resources": ["distributedtrainingjobs"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["get", "list"]},
    {"apiGroups": [""], "resources": ["pods/log", "configmaps"], "verbs": ["get"]},
]
EDIT = [
    *VIEW,
    {"apiGroups": ["trainmaster.dev"], "resources": ["distributedtrainingjobs"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]},
]


@pytest.fixture
def operator(cluster: Cluster, pods_run: None, tmp_path: Path) -> Iterator[OperatorProcess]:
    with running_operator(cluster, tmp_path) as started:
        yield started


def person(cluster: Cluster, name: str, rules: list[dict[str, Any]]) -> str:
    """Makes a service account with these rights in the namespace; returns a token."""
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": cluster.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    cluster.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
        {**rbac, "kind": "Role", "rules": rules},
        {**rbac, "kind": "RoleBinding", "roleRef": role, "subjects": [subject]},
    )
    return cluster.kubectl("create", "token", name).stdout.strip()


@asynccontextmanager
async def dashboard(cluster: Cluster) -> AsyncIterator[PageClient]:
    settings = DashboardSettings("cluster", address_of(str(cluster.kubeconfig)), recheck_seconds=0.5)
    async with serving(Dashboard(settings), "127.0.0.1", 0) as (_, port), page_client(f"http://127.0.0.1:{port}") as it:
        yield it


async def row_with(live: Live, uid: str, **fields: Any) -> None:
    """Waits until the list shows these fields of a job."""
    while True:
        rows = [row for row in (await live.next("changed"))["rows"] if row["uid"] == uid]
        if any(all(row.get(name) == value for name, value in fields.items()) for row in rows):
            return


async def test_each_viewer_sees_and_does_what_their_token_may(
    cluster: Cluster, operator: OperatorProcess, pods_folder: Path
) -> None:
    viewer, editor = person(cluster, "viewer", VIEW), person(cluster, "editor", EDIT)
    nobody = person(cluster, "nobody", [])
    where = f"/api/jobs/{cluster.namespace}/train"
    scope = f"/api/jobs?namespace={cluster.namespace}"
    async with dashboard(cluster) as page, page.live(scope, viewer) as jobs:
        assert (await jobs.next("jobs"))["jobs"] == []
        apply(cluster, training_job("train", PRINTS.replace("FOLDER", str(pods_folder)), workers=2))
        (row,) = (await jobs.next("changed"))["rows"]
        uid = row["uid"]
        assert row["name"] == "train" and row["namespace"] == cluster.namespace

        for path in ("/api/jobs", "/api/jobs?namespace=kube-system", "/api/jobs/kube-system/train", "/api/nodes"):
            assert (await page.get(path, viewer))[0] == 403, path
        for path in (scope, where, f"{where}/logs", f"{where}/why", f"{where}/manifest", f"{where}/metrics"):
            assert (await page.get(path, nobody))[0] == 403, path
        assert (await page.get(where, viewer[:-3] + "AAA"))[0] == 401
        _, known = await page.get("/api/viewer", viewer)
        assert known["user"] == f"system:serviceaccount:{cluster.namespace}:viewer" and not known["allNamespaces"]

        await row_with(jobs, uid, phase="Running")
        async with page.live(f"{where}/logs?follow=1", viewer) as logs, page.live(where, editor) as job:
            (pods_folder / "1").touch()
            printed: set[tuple[int, int, str]] = set()
            while len(printed) < 2:
                lines = await logs.next("lines")
                printed |= {(line["worker"], line["rank"], line["text"]) for line in lines if "step" in line["text"]}
            assert printed == {(0, 0, "step 1 of rank 0"), (1, 1, "step 1 of rank 1")}
            found: dict[str, Any] = {"ranks": []}
            while [rank["step"] for rank in found["ranks"]] != [1, 1]:
                found = await job.next("ranks")
            assert [rank["stepSeconds"] for rank in found["ranks"]] == [0.25, 0.25]
            events = next((data for name, data in job.events if name == "events"), None) or await job.next("events")
            assert "dtj/train" in {event["object"] for event in events}
        _, heat = await page.get(f"{where}/heat", editor)
        assert heat["ranks"] == [0, 1] and heat["values"][-1] == [0.25, 0.25]
        assert (await page.get(f"{where}/heat", viewer))[0] == 403, "the viewer may not ask the agents"
        assert "Healthy" in (await page.get(f"{where}/why", viewer))[1]["cause"]

        status, stacks = await page.post(f"{where}/stacks", editor)
        assert status == 200 and sorted(stacks["ranks"]) == ["0", "1"] and not stacks["unanswered"]
        assert (await page.post(f"{where}/stacks", viewer))[0] == 403
        status, answer = await page.post(f"{where}/suspend", viewer)
        assert status == 403 and "patch" in answer["sentence"]
        assert (await page.post(f"{where}/suspend", editor))[0] == 200
        await row_with(jobs, uid, phase="Suspended")
        assert (await page.post(f"{where}/resume", editor))[0] == 200
        await row_with(jobs, uid, suspended=False)

        cluster.delete("rolebinding", "viewer")
        name, last = (await jobs.end())[-1]
        assert name == "problem" and last["sentence"].startswith("You may not ")
        assert (await page.get(scope, viewer))[0] == 403


def test_a_laptops_dashboard_prints_where_it_is_and_ends_with_ctrl_c(cluster: Cluster, tmp_path: Path) -> None:
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "SSH_CONNECTION": "10.0.0.1 5 10.0.0.2 22"}
    process = subprocess.Popen(
        [BIN / "kubectl-dtj", "open", "train", "-n", cluster.namespace],
        env={**environment, "USER": "ann", "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline() for _ in range(4)]
        address = re.fullmatch(
            rf"(http://127\.0\.0\.1:(\d+))/jobs/{cluster.namespace}/train#launch=(\S+)", lines[-1].strip()
        )
        assert address is not None, lines
        assert f"ssh -N -L {address[2]}:127.0.0.1:{address[2]} ann@10.0.0.2" in lines[1]

        async def launch() -> None:
            async with page_client(address[1]) as page:
                _, answer = await page.post("/api/launch", body={"code": address[3]})
                status, viewer = await page.get("/api/viewer", answer["key"])
                assert (status, viewer["mode"], viewer["namespace"]) == (200, "laptop", cluster.namespace)

        asyncio.run(launch())
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0 and process.stdout.read() == "" and time.monotonic() - started < 10
    finally:
        process.kill()

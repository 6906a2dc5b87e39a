"""The user's code needs no image: it is submitted, pushed into running jobs, lost and restored, broken and repaired."""

from __future__ import annotations

import os
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cluster.scenarios import Scenario, Stage
from trainmaster.cli.main import program
from trainmaster.client import InvalidRequest
from trainmaster.client.code import Archive, archive_files, archive_folder, push_code, submit_with_code

# One rank per worker; it prints which code it runs, from where, and what the agent has set up for it.
SCRIPT = """
import json, os, pathlib, signal, sys, time
from lib.version import VERSION
rank, attempt = int(os.environ["RANK"]), int(os.environ["TRAINMASTER_ATTEMPT"])
signal.signal(signal.SIGTERM, lambda *_: (print(f"rank {rank} saves", flush=True), sys.exit(0)))
print(f"rank {rank}, attempt {attempt}, code {VERSION}, in {os.path.basename(os.getcwd())}", flush=True)
pathlib.Path("notes").write_text("kept")
progress = pathlib.Path(os.environ["TRAINMASTER_PROGRESS_FILE"])
for step in range(1, 10_000):
    progress.write_text(json.dumps({"step": step}))
    time.sleep(0.1)
"""


def code(version: str, script: str = SCRIPT, **files: bytes) -> Archive:
    """Returns a version's code."""
    own = {"train.py": textwrap.dedent(script).encode(), "lib/version.py": f"VERSION = {version!r}\n".encode()}
    return archive_files({**own, "lib/__init__.py": b"", **files})


def manifest(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "trainmaster.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name},
        "spec": {"workers": 2, "launcher": "exec", "command": ["python3", "train.py"], **spec},
    }


def until_code(scenario: Scenario, version: str, attempt: int, workers: int = 2) -> None:
    """Waits until all ranks of an attempt report that they run this code."""

    def ran() -> bool:
        said = "".join(scenario.log(f"{scenario.name}-{worker}") for worker in range(workers))
        missing = [r for r in range(workers) if f"rank {r}, attempt {attempt}, code {version}, in code" not in said]
        assert not missing, (missing, said[-1500:])
        return True

    scenario.until(ran, f"code {version} in attempt {attempt}")


def test_code_is_pushed_into_a_running_job_in_place(scenario: Scenario) -> None:
    jobs, name = scenario.client, scenario.name
    submit_with_code(jobs, manifest(name), code("one"))
    until_code(scenario, "one", 1)
    scenario.until_phase("Running")
    uids = scenario.uids()
    config_map = scenario.cluster.get("configmap", f"{name}-code")
    assert config_map["metadata"]["ownerReferences"][0]["uid"] == jobs.get(name).uid
    assert push_code(jobs, name, code("two")).changed
    until_code(scenario, "two", 2)
    assert not push_code(jobs, name, code("two")).changed
    status = scenario.until_phase("Running", 2)
    assert (scenario.uids(), scenario.container_restarts()) == (uids, [0, 0])
    assert (scenario.accounts, status["codeDigest"]) == ((2, 0, 0), code("two").digest)
    assert "rank 0 saves" in scenario.log(f"{name}-0")

    # A restart is one more attempt with the same code.
    jobs.restart(name)
    until_code(scenario, "two", 3)
    assert (scenario.accounts, scenario.uids()) == ((3, 0, 0), uids)

    # A lost pod comes back with the new code.
    scenario.cluster.delete("pod", f"{name}-1", wait=False)
    until_code(scenario, "two", 4)
    assert scenario.accounts == (4, 0, 1)


def test_a_broken_push_is_repaired_by_another_one(scenario: Scenario) -> None:
    jobs, name = scenario.client, scenario.name
    policy = {"maxRestarts": 2, "backoff": {"initialSeconds": 50}}
    submit_with_code(jobs, manifest(name, failurePolicy=policy), code("one"))
    until_code(scenario, "one", 1)
    scenario.until_phase("Running")
    push_code(jobs, name, code("two", "import nowhere"))
    scenario.until(lambda: scenario.why("Running").get("reason") == "BackOff", "its back-off")
    assert "nowhere" in scenario.failures[0]["message"]
    began = time.monotonic()
    push_code(jobs, name, code("three"))
    until_code(scenario, "three", 3)
    assert time.monotonic() - began < 40, "the back-off was waited for"
    assert scenario.accounts == (3, 1, 0)


def test_a_job_that_has_failed_refuses_code(scenario: Scenario) -> None:
    jobs, name = scenario.client, scenario.name
    submit_with_code(jobs, manifest(name, failurePolicy={"maxRestarts": 0}), code("one", "import nowhere"))
    scenario.until_phase("Failed")
    with pytest.raises(InvalidRequest, match=rf"^Job {name} has ended \(Failed\), and ended jobs never train again"):
        push_code(jobs, name, code("two"))


def test_a_job_whose_code_is_in_its_image_refuses_code(scenario: Scenario) -> None:
    scenario.apply()
    with pytest.raises(InvalidRequest, match="nothing can be pushed into it; submit it again with --code"):
        push_code(scenario.client, scenario.name, code("two"))


def test_a_refused_job_leaves_no_config_map(scenario: Scenario) -> None:
    with pytest.raises(InvalidRequest, match="workers"):
        submit_with_code(scenario.client, manifest(scenario.name, workers=0), code("one"))
    found = scenario.cluster.kubectl("get", "configmap", f"{scenario.name}-code", check=False)
    assert "NotFound" in found.stderr


def test_a_push_outlives_the_operator(stage: Stage, scenario: Scenario) -> None:
    jobs, name = scenario.client, scenario.name
    submit_with_code(jobs, manifest(name), code("one"))
    until_code(scenario, "one", 1)
    scenario.until_phase("Running")
    stage.operator.kill()
    try:
        push_code(jobs, name, code("two"))
    finally:
        stage.operator.start()
    until_code(scenario, "two", 2)
    assert scenario.accounts == (2, 0, 0)


def test_the_commands_submit_push_and_restart(scenario: Scenario, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/version.py").write_text("VERSION = 'one'\n")
    name = scenario.name
    where = ["--kubeconfig", str(scenario.cluster.kubeconfig), "-n", scenario.cluster.namespace]

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(program("kubectl dtj"), [*arguments, *where])
        assert result.exit_code == 0, result.output
        return result.output

    shown = run("submit", "--name", name, "--script", "train.py", "--code", str(tmp_path), "--dry-run")
    assert "digest: " + archive_folder(tmp_path).digest in shown
    submitted = run("submit", "--name", name, "--script", "train.py", "--code", str(tmp_path))
    assert f"\ndistributedtrainingjob.trainmaster.dev/{name} created\n" in submitted
    until_code(scenario, "one", 1, workers=1)
    scenario.until_phase("Running")
    (tmp_path / "lib/version.py").write_text("VERSION = 'two'\n")
    pushed = run("push", name, str(tmp_path))
    assert f"{name}: running the new code in attempt 2, " in pushed
    assert "already has this code" in run("push", name, str(tmp_path))
    assert run("restart", name) == f"{name}: restarting\n"
    until_code(scenario, "two", 3, workers=1)


def test_code_that_no_config_map_holds_comes_by_a_claim(scenario: Scenario) -> None:
    jobs, name, cluster = scenario.client, scenario.name, scenario.cluster
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"{name}-archives"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    with pytest.raises(InvalidRequest, match=f"there is no PersistentVolumeClaim {name}-archives in"):
        submit_with_code(jobs, manifest(name), code("one"), claim=f"{name}-archives")
    cluster.apply(claim)
    # Two pieces, because random data can't be compressed.
    noise = {"noise.bin": os.urandom(900_000)}
    submit_with_code(jobs, manifest(name), code("one", **noise), claim=f"{name}-archives")
    until_code(scenario, "one", 1)
    scenario.until_phase("Running")
    for attempt, version in enumerate(("two", "three"), 2):
        push_code(jobs, name, code(version, **noise))
        until_code(scenario, version, attempt)
    assert scenario.accounts == (3, 0, 0)
    left = cluster.kubectl("get", "pods,configmaps", "-l", f"trainmaster.dev/code-of={name}", "-o", "name").stdout
    assert left == ""

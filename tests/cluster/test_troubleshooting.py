"""docs/troubleshooting.md shows real output: each situation of the page is made, and its commands are run.

The commands are those of the page's `console` blocks, in order. The output below a command must match what the command
prints, except for numbers, times, blanks and line breaks; `…` stands for anything.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.gang_schedulers import KUEUE, installed
from tests.cluster.operator_under_test import install_crd, running_operator
from tests.unit.docs.snippets import Block, blocks, exchanges, pattern, plain
from tests.why.situations import all_situations
from trainmaster_local.testing.clusters import Cluster, SharedCluster, new_namespace, open_cluster, suite_config

PAGE = "troubleshooting.md"
# The causes that `kubectl dtj why` has to name. This cluster serves no LocalQueues of Kueue that could be missing.
CAUSES = {one.job: one.cause for one in all_situations() if one.is_recorded} | {"queued": "Queued"}


@dataclass(frozen=True)
class Situation:
    """Describes a job with a mistake, the objects beside it, and how its status shows that it has reached the page's
    state.
    """

    spec: Mapping[str, Any]
    phase: str
    reason: str
    beside: tuple[Mapping[str, Any], ...] = ()


def program(text: str, **spec: Any) -> dict[str, Any]:
    """Returns a job's spec whose workers run some lines of Python."""
    return {"image": "python:3.12", "launcher": "exec", "workers": 2, "command": ["python3", "-c", text], **spec}


def named(kind: str, name: str, **body: Any) -> dict[str, Any]:
    """Returns an object of the core API."""
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **body}


WAIT = "import time; time.sleep(600)"
WORKER_ENV = {
    "name": "worker",
    "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "t"}}}],
}
# Rank 0 is a step behind the other one.
STEP = """
import faulthandler, json, os, signal, time
faulthandler.register(signal.SIGUSR2, all_threads=True, chain=False)
step = 7 + int(os.environ["RANK"])
open(os.environ["TRAINMASTER_PROGRESS_FILE"], "w").write(json.dumps({"step": step}))
def load_batch():
    time.sleep(600)
load_batch()
"""
FAILING = """
import os, time
if os.environ["RANK"] == "1":
    time.sleep(600)
print("loading /data/train.bin")
raise FileNotFoundError("/data/train.bin")
"""
EAT = """
import os, time
held = bytearray(512 << 20 if os.environ["RANK"] == "0" else 1)
time.sleep(600)
"""
# A cluster's rule on pods, like one of a Pod Security Standard or Kyverno.
_RULE = {
    "expression": "!object.spec.?volumes.orValue([]).exists(volume, has(volume.hostPath))",
    "message": "hostPath volumes are not allowed here",
}
_PODS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
_ADMISSION = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "no-host-paths"}}
POLICY = {
    **_ADMISSION,
    "kind": "ValidatingAdmissionPolicy",
    "spec": {"matchConstraints": {"resourceRules": [_PODS]}, "validations": [_RULE]},
}
BINDING = {
    **_ADMISSION,
    "kind": "ValidatingAdmissionPolicyBinding",
    "spec": {"policyName": "no-host-paths", "validationActions": ["Deny"]},
}
REFUSED = {"image": "python:3.12", "command": ["python3", "train.py"], "workers": 0, "resources": {"memory": "10GB"}}
PYTHON_WITHOUT_TORCH = f'#!/bin/sh\nPYTHONPATH="/opt/conda/bin:$PYTHONPATH" exec {sys.executable} "$@"\n'
NO_TORCH = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
# By the job's name on the page.
SITUATIONS: dict[str, Situation] = {
    "big": Situation(program(WAIT, resources={"gpus": 64}), "Pending", "Unschedulable"),
    "crowded": Situation(
        program(WAIT), "Pending", "QuotaExceeded", (named("ResourceQuota", "team", spec={"hard": {"pods": "1"}}),)
    ),
    "unpulled": Situation({**program(WAIT), "image": "registry.example.com/team/train:1.0"}, "Starting", "ImagePull"),
    "unclaimed": Situation(
        program(WAIT, checkpoint={"volume": {"claimName": "checkpoints"}}), "Pending", "Unschedulable"
    ),
    "secretless": Situation(
        program(WAIT, podTemplate={"spec": {"containers": [WORKER_ENV]}}), "Starting", "CreateContainer"
    ),
    "gang": Situation(program(WAIT, scheduling={"gang": {"scheduler": "volcano"}}), "Pending", "NotInstalled"),
    "wrong": Situation(program(WAIT, resources={"cpu": {"request": 4, "limit": 2}}), "Failed", "InvalidSpec"),
    "failing": Situation(program(FAILING), "Failed", "FailsAtStart"),
    "hungry": Situation(
        program(EAT, resources={"memory": "128Mi"}, failurePolicy={"maxRestarts": 0}), "Failed", "MaxRestartsExceeded"
    ),
    "hanging": Situation(
        program(STEP, failurePolicy={"hang": {"progressSeconds": 2, "action": "Fail"}}), "Failed", "Hung"
    ),
    "late": Situation(program(WAIT, runPolicy={"activeDeadlineSeconds": 3}), "Failed", "DeadlineExceeded"),
    "paused": Situation(program(WAIT, runPolicy={"suspend": True}), "Suspended", "Suspended"),
    "queued": Situation(
        program(WAIT, scheduling={"gang": {"scheduler": "kueue"}, "queue": "team"}), "Suspended", "Queued"
    ),
    "missing": Situation({**program(WAIT), "command": ["/opt/train/train.sh"], "workers": 1}, "Failed", "LaunchError"),
    "torchless": Situation(
        {
            "image": "python:3.12",
            "workers": 1,
            "command": ["/opt/conda/bin/python", "train.py"],
            "podTemplate": {
                "spec": {
                    "volumes": [{"name": "conda", "configMap": {"name": "conda", "defaultMode": 0o755}}],
                    "containers": [
                        {"name": "worker", "volumeMounts": [{"name": "conda", "mountPath": "/opt/conda/bin"}]}
                    ],
                }
            },
        },
        "Failed",
        "LaunchError",
        # A Python without torch.
        (named("ConfigMap", "conda", data={"python": PYTHON_WITHOUT_TORCH, "torch.py": NO_TORCH}),),
    ),
    "onhost": Situation(
        program(WAIT, checkpoint={"volume": {"hostPath": "/data"}}), "Pending", "Refused", (POLICY, BINDING)
    ),
}


@dataclass
class Console:
    """Runs a shell whose kubectl uses a cluster, in a namespace that it shows as `default`."""

    kubeconfig: Path
    namespace: str
    folder: Path

    def run(self, command: str) -> str:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environ = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": path, "COLUMNS": "160"}
        done = subprocess.run(
            ["/bin/sh", "-c", command], env=environ, cwd=self.folder, capture_output=True, text=True, check=False
        )
        return (done.stdout + done.stderr).replace(self.namespace, "default")


def console(shared: SharedCluster, namespace: str, folder: Path) -> Console:
    """Starts a shell in a namespace that is the context's default."""
    config = yaml.safe_load(shared.kubeconfig.read_text())
    for context in config["contexts"]:
        context["context"]["namespace"] = namespace
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    path.chmod(0o600)
    return Console(path, namespace, folder)


@pytest.fixture(scope="module")
def served(
    shared_cluster: SharedCluster, pods_run: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Makes a namespace with an operator."""
    with new_namespace(shared_cluster) as cluster, running_operator(cluster, tmp_path_factory.mktemp("operator")):
        yield cluster


@pytest.fixture
def shell(request: pytest.FixtureRequest, shared_cluster: SharedCluster, tmp_path: Path) -> Iterator[Console]:
    """Starts the shell in which a block's commands are run, once its situation is there."""
    shared_cluster.needs_embedded("the page shows the embedded cluster's node and its kubelet's words")
    block: Block = request.param
    names = [name for name in (*SITUATIONS, "ignored") if re.search(rf"\b{name}\b", block.text)]
    if block.heading == "The custom resource isn't installed":
        with open_cluster(suite_config(tmp_path)) as bare:
            (tmp_path / "job.yaml").write_text(yaml.safe_dump(job("early", program(WAIT))))
            yield console(bare, "default", tmp_path)
        return
    if names and names != ["ignored"]:
        cluster = request.getfixturevalue("served")
        with situation(cluster, names[0]):
            yield console(cluster.shared, cluster.namespace, tmp_path)
        return
    cluster = request.getfixturevalue("cluster")
    install_crd(cluster)
    (tmp_path / "refused.yaml").write_text(yaml.safe_dump(job("refused", REFUSED)))
    for name in names:
        cluster.apply(job(name, program(WAIT)))
    yield console(cluster.shared, cluster.namespace, tmp_path)


@contextmanager
def situation(cluster: Cluster, name: str) -> Iterator[None]:
    """Keeps a job of the table in the state that the page shows."""
    made = SITUATIONS[name]
    with ExitStack() as stack:
        if name == "queued":
            stack.enter_context(installed(cluster, *KUEUE))
        for item in made.beside:
            cluster.apply(dict(item))
        cluster.apply(job(name, made.spec))
        cluster.eventually(lambda: shown(cluster, name) == (made.phase, made.reason), 60, f"{name}: {made}")
        try:
            yield
        finally:
            cluster.kubectl("delete", "dtj", name)
            cluster.eventually(lambda: not cluster.items("pods"), 60, "its pods are gone")
            for item in made.beside:
                cluster.kubectl("delete", item["kind"], item["metadata"]["name"])


def shown(cluster: Cluster, name: str) -> tuple[str, str]:
    """Returns a job's phase, and the reason of the condition that explains it."""
    status = cluster.get("dtj", name).get("status", {})
    phase = str(status.get("phase", ""))
    kind = phase if phase in ("Failed", "Suspended") else "Running"
    reasons = [each["reason"] for each in status.get("conditions", []) if each["type"] == kind]
    return phase, next(iter(reasons), "")


def job(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a job's manifest."""
    body = {"apiVersion": "trainmaster.dev/v1alpha1", "kind": "DistributedTrainingJob"}
    return {**body, "metadata": {"name": name}, "spec": dict(spec)}


@pytest.mark.parametrize(
    ("block", "shell"),
    [(block, block) for block in blocks(PAGE, "console")],
    indirect=["shell"],
    ids=lambda block: f"{block.heading}:{block.line}" if isinstance(block, Block) else "",
)
def test_a_command_prints_what_the_page_shows(block: Block, shell: Console) -> None:
    for command, shown in exchanges(block):
        said = shell.run(command)
        print(f"$ {command}\n{said}")
        assert plain(shown).strip("…"), f"the page shows nothing below {command}"
        assert pattern(shown).fullmatch(plain(said)), f"not what the page shows:\n{shown}"
    for name in (name for name in (*SITUATIONS, "ignored") if f"status {name}" in block.text):
        answer = shell.run(f"kubectl dtj why {name} -o json")
        assert f'"cause": "{CAUSES[name]}"' in answer, answer


def test_every_situation_is_on_the_page() -> None:
    commands = [command for block in blocks(PAGE, "console") for command, _ in exchanges(block)]
    assert {name for name in SITUATIONS if not any(name in command.split() for command in commands)} == set()

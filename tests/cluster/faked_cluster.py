"""A cluster of faked workers and killable operators, for tests of what happens between any two writes."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import operator_account
from tests.cluster.faked_agents import Script, Timings
from tests.cluster.faked_workers import FakedWorkers
from tests.cluster.forked_operator import ForkedOperator
from tests.cluster.operator_account import HOME, operator_kubeconfig
from trainmaster.local import configure
from trainmaster_local.config import ClusterConfig, KubeletTimings, NodeConfig, NodeTimings
from trainmaster_local.embedded import ThreadedCluster
from trainmaster_local.inside import Api
from trainmaster_operator.api.crd import crd_yaml
from trainmaster_operator.controller.settings import OperatorSettings
from trainmaster_operator.wire.names import ASSIGNMENT_ANNOTATION, JOB_NAME_LABEL

JOBS = "distributedtrainingjobs.trainmaster.dev"
CHILDREN = ("pods", "services", "statefulsets.apps", "configmaps")
WRITES = ("create", "update", "patch", "delete", "deletecollection")


@dataclass
class FakedCluster:
    """Runs one embedded cluster on a thread, with faked workers and the operators that are started here."""

    threaded: ThreadedCluster
    workers: FakedWorkers
    log: Path
    operators: list[ForkedOperator] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def api(self) -> Api:
        """Returns the API, only for reading from this thread; `call` writes."""
        return self.threaded.cluster.api

    def start_operator(self, **settings: Any) -> ForkedOperator:
        disorder = settings.pop("disorder", None)
        made = OperatorSettings(
            kubeconfig=str(operator_kubeconfig(self.threaded.cluster.kubeconfig, self.log.parent)),
            lease_namespace=HOME,
            **{
                "leader_elect": False,
                "reach": "direct",
                "agent_port": self.workers.port,
                **settings,
            },
        )
        operator = ForkedOperator(made, self.log, disorder)
        self.operators.append(operator)
        return operator

    def stop_operators(self) -> None:
        while self.operators:
            self.operators.pop().stop()

    def namespace(self) -> str:
        """Makes a new namespace."""
        name = f"case-{next(self._numbers)}"
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        self.threaded.call(self.api.create("namespaces", body))
        return name

    def submit(self, namespace: str, script: Script, *, workers: int = 2, **spec: Any) -> str:
        """Create a job named `job`; returns its name in `workers`."""
        self.workers.script[f"{namespace}/job"] = script
        body = {
            "apiVersion": "trainmaster.dev/v1alpha1",
            "kind": "DistributedTrainingJob",
            "metadata": {"name": "job", "namespace": namespace},
            "spec": {
                "image": "ghcr.io/trainmaster/trainer:0.1.0",
                "workers": workers,
                "launcher": "exec",
                "command": ["python3", "train.py"],
                **spec,
            },
        }
        self.threaded.call(self.api.create(JOBS, body, namespace))
        return f"{namespace}/job"

    def status(self, namespace: str) -> dict[str, Any]:
        found = self.api.peek(JOBS, "job", namespace) or {}
        return dict(found.get("status") or {})

    def describe(self, namespace: str) -> str:
        """Returns what a failed test prints."""
        lines = [json.dumps(self.status(namespace))]
        for pod in self.api.peek_all("pods", namespace):
            metadata, status = pod["metadata"], pod["status"]
            assigned = (metadata.get("annotations") or {}).get(ASSIGNMENT_ANNOTATION, "")[:60]
            agent = self.workers.agents.get(metadata["uid"])
            lines.append(f"{metadata['name']} {metadata['uid']} {status.get('phase')} {assigned}")
            lines.append(f"  {json.dumps(status.get('containerStatuses'))[:600]}")
            known = {name: value for name, value in vars(agent).items() if name != "home"} if agent else None
            lines.append(f"  agent: {known}"[:3000])
        return "\n".join([*lines, *map(str, self.workers.runs(f"{namespace}/job"))])

    def at_rest(self, namespace: str, *others: str) -> bool:
        """Returns whether the job has ended and its resources are free. `others` are pods that aren't the job's."""
        ended = self.status(namespace).get("phase") in ("Succeeded", "Failed")
        sets = self.api.peek_all("statefulsets.apps", namespace)
        pods = {pod["metadata"]["name"] for pod in self.api.peek_all("pods", namespace)} - {*others}
        return ended and not pods and all(not s["spec"]["replicas"] for s in sets)

    def leftovers(self, namespace: str) -> list[str]:
        """Returns the objects that jobs have left."""
        found = [(kind, obj["metadata"]) for kind in CHILDREN for obj in self.api.peek_all(kind, namespace)]
        return [f"{kind} {meta['name']}" for kind, meta in found if JOB_NAME_LABEL in meta.get("labels", {})]

    def delete(self, namespace: str) -> None:
        """Delete the job and wait until nothing of it is left."""
        self.threaded.call(self.api.delete(JOBS, "job", namespace))
        self.until(lambda: not self.leftovers(namespace), 60, lambda: f"left over: {self.leftovers(namespace)}")

    def until(self, check: Callable[[], bool], seconds: float, what: Callable[[], object]) -> None:
        deadline = time.monotonic() + seconds
        while not check():
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {what()}"
            time.sleep(0.02)


@contextmanager
def faked_cluster(folder: Path, *, nodes: int = 2, timings: Timings | None = None) -> Iterator[FakedCluster]:
    """Makes a cluster with the custom resource and without an operator."""
    config = ClusterConfig(
        state_dir=folder,
        nodes=tuple(
            NodeConfig(name=f"node-{n}", cpu="512", memory="512Gi", pods=1000, fake=True) for n in range(nodes)
        ),
        kubelet=KubeletTimings(backoff_scale=0.02),
        node_timings=NodeTimings(
            lease_seconds=0.5, monitor_grace_seconds=2.0, monitor_seconds=0.25, orphan_seconds=1.0
        ),
        authorizer=operator_account.authorizer,
    )
    with ThreadedCluster(configure(config)) as threaded:
        workers = FakedWorkers(threaded.cluster, timings=timings or Timings())
        threaded.call(workers.start())
        for definition in yaml.safe_load_all(crd_yaml()):
            threaded.call(threaded.cluster.api.create("customresourcedefinitions.apiextensions.k8s.io", definition))
        made = FakedCluster(threaded, workers, folder / "operator.log")
        try:
            yield made
        finally:
            threaded.cluster.faults.clear()
            made.stop_operators()
            threaded.call(workers.stop())
            # Shown by pytest when the test fails.
            print(made.log.read_text()[-20_000:] if made.log.exists() else "no operator was started")

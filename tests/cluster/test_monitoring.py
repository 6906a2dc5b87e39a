"""A real Prometheus watches a real operator and real agents: each query of a dashboard and each rule gets an answer.

Debian's Prometheus doesn't support Kubernetes. So the pods are read here, and passed to it with the labels that it
would read itself elsewhere; it does the PodMonitor's relabelling. The operator runs outside the cluster. One job trains
and has been restarted, one has failed, one hung, one waits, one makes no progress. The thresholds are seconds.
"""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from tests.cluster.operator_under_test import running_operator, training_job
from tests.processes.agent.agents import free_port
from tests.prometheus import CHART, monitoring, program
from trainmaster_local.testing.clusters import Cluster, SharedCluster, new_namespace

pytestmark = [pytest.mark.usefixtures("pods_run"), pytest.mark.timeout(400)]

# For a machine that does ten other things; a healthy test never waits this long.
SECONDS = 120
HOME = "trainmaster-system"
META = "__meta_kubernetes"
DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))
THRESHOLDS = {
    **{"jobFailedSeconds": 3600, "jobHungSeconds": 3600, "jobRestarts": 1, "jobRestartsSeconds": 60},
    **{"jobPendingSeconds": 1, "goodputRatio": 1, "goodputSeconds": 8, "stalledSeconds": 8},
    **{"stragglerSeconds": 2, "gradientsSeconds": 2, "operatorQueueSeconds": 0, "operatorBehindSeconds": 1},
}
# Alerts that nothing in this situation causes.
SILENT = {
    "TrainmasterWorkerSilent": "all agents of running jobs answer",
    "TrainmasterOperatorWithoutLeader": "the operator leads",
    "TrainmasterOperatorBug": "it has no mistake",
}
# Queries of dashboards without an answer in this situation.
UNANSWERED = {
    "trainmaster_unreadable_objects_total": "every object can be read",
    "trainmaster_warm_process_private_bytes": "the jobs start cold",
    "trainmaster_gpu_": "the machine has no GPU",
}

FIGURES = {"step": 1, "gradNorm": 1.5, "learningRate": 0.1, "computeSeconds": 0.1}
TRAINS = """
import json, os, pathlib, sys, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["TRAINMASTER_ATTEMPT"])
progress = pathlib.Path(os.environ["TRAINMASTER_PROGRESS_FILE"])
for step in range(1, 10_000):
    seconds = 0.4 if rank == 1 else 0.1
    figures = {"step": step, "totalSteps": 10_000, "loss": 1 / step, "samplesPerSecond": 8.0, "stepSeconds": seconds}
    figures |= {"dataSeconds": step * 0.05}
    figures |= {"computeSeconds": seconds, "learningRate": 0.001, "gradNorm": 0.0 if rank == 1 else 1.5}
    progress.write_text(json.dumps(figures))
    time.sleep(0.1)
    if attempt == 1 and rank == 1 and os.path.exists(fault):
        sys.exit("a fault")
"""
STANDS_STILL = """
import os, pathlib, time
pathlib.Path(os.environ["TRAINMASTER_PROGRESS_FILE"]).write_text('{"step": 1, "totalSteps": 10}')
time.sleep(600)
"""
HANG = {"progressSeconds": 2, "action": "Fail"}
COLD = {"warmStart": {"enabled": False}}


@dataclass(frozen=True)
class Watched:
    """Asks Prometheus over its HTTP API; `cluster` is the namespace of the jobs."""

    cluster: Cluster
    url: str

    def ask(self, path: str, **parameters: str) -> Any:
        """Returns an answer's `data`; raises AssertionError if there is none."""
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urlencode(parameters)}", timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        except OSError as error:
            raise AssertionError(f"Prometheus doesn't answer: {error}") from error

    def query(self, expression: str, dashboard: str = "job") -> list[dict[str, Any]]:
        """Returns the series of a dashboard's query, if possible for the job that trains."""
        return list(self.ask("query", query=self.filled(expression, dashboard))["result"])

    def filled(self, expression: str, dashboard: str) -> str:
        """Returns a query with the values of the dashboard's variables and of Grafana's own."""
        values = {"__rate_interval": "8s", "__range_s": "600", "__range": "600s", "job": "trains"}
        values["namespace"] = HOME if dashboard == "operator" else self.cluster.namespace
        return re.sub(r"\$(\w+)", lambda found: values[found[1]], expression)


def snake(monitor: Any) -> Any:
    """Returns a PodMonitor's relabelling with the names of Prometheus' own configuration."""
    if isinstance(monitor, list):
        return [snake(one) for one in monitor]
    return {re.sub(r"[A-Z]", lambda found: "_" + found[0].lower(), key): value for key, value in monitor.items()}


def agents_scraped(monitor: dict[str, Any], targets: Path) -> dict[str, Any]:
    """Returns the scrape configuration that the Prometheus Operator makes from the agents' PodMonitor."""
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    selected = [
        {"source_labels": [f"{META}_pod_labelpresent_{plain(one['key'])}"], "regex": "true", "action": "keep"}
        for one in monitor["spec"]["selector"]["matchExpressions"]
    ]
    own = [
        {"source_labels": [f"{META}_pod_phase"], "regex": "(Failed|Succeeded)", "action": "drop"},
        {"source_labels": [f"{META}_namespace"], "target_label": "namespace"},
        {"source_labels": [f"{META}_pod_container_name"], "target_label": "container"},
        {"source_labels": [f"{META}_pod_name"], "target_label": "pod"},
        {"target_label": "job", "replacement": f"{HOME}/{monitor['metadata']['name']}"},
    ]
    return {
        "job_name": "agents",
        "honor_labels": endpoint.get("honorLabels", False),
        "sample_limit": monitor["spec"]["sampleLimit"],
        "metrics_path": endpoint["path"],
        "file_sd_configs": [{"files": [str(targets)]}],
        "relabel_configs": selected + own + snake(endpoint["relabelings"]),
        "metric_relabel_configs": snake(endpoint["metricRelabelings"]),
    }


def plain(label: str) -> str:
    """Returns a label's name as Prometheus writes it in one of its own labels."""
    return re.sub(r"\W", "_", label)


def discovered(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the targets that Prometheus finds in a pod: each port of each container, with the pod's labels.

    https://prometheus.io/docs/prometheus/latest/configuration/configuration/#pod
    """
    known = {"namespace": pod["metadata"]["namespace"], "pod_name": pod["metadata"]["name"]}
    known |= {"pod_phase": pod["status"]["phase"], "pod_node_name": pod["spec"]["nodeName"]}
    for label, value in pod["metadata"]["labels"].items():
        known |= {f"pod_label_{plain(label)}": value, f"pod_labelpresent_{plain(label)}": "true"}
    return [
        {
            "targets": [f"{pod['status']['podIP']}:{port['containerPort']}"],
            "labels": {
                **{f"{META}_{name}": value for name, value in known.items()},
                f"{META}_pod_container_name": container["name"],
                f"{META}_pod_container_port_number": str(port["containerPort"]),
            },
        }
        for container in pod["spec"]["containers"]
        for port in container["ports"]
    ]


@contextmanager
def prometheus(folder: Path, configuration: dict[str, Any], rules: dict[str, Any]) -> Iterator[str]:
    """Runs Prometheus; yields its address."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    command = [program("prometheus"), f"--config.file={folder / 'prometheus.yaml'}", f"--web.listen-address={address}"]
    command += [f"--storage.tsdb.path={folder / 'data'}", "--log.level=warn"]
    with (folder / "prometheus.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield f"http://{address}"
        finally:
            process.terminate()
    print((folder / "prometheus.log").read_text())


def addressed(cluster: Cluster) -> list[dict[str, Any]]:
    """Returns the pods of the training jobs, once each has an address."""
    pods = cluster.items("pods", labels="trainmaster.dev/job-name in (trains, stands)")
    return pods if len(pods) == 3 and all(pod["status"].get("podIP") for pod in pods) else []


@pytest.fixture(scope="module")
def watched(shared_cluster: SharedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Watches jobs of all kinds for a while."""
    shared_cluster.needs_embedded("the agents' addresses are only reached on the cluster's own machine")
    folder = tmp_path_factory.mktemp("monitoring")
    objects = {one["metadata"]["name"]: one for one in monitoring(thresholds=THRESHOLDS)}
    with new_namespace(shared_cluster) as cluster, running_operator(cluster, folder) as operator:
        port = re.findall(r"Metrics on port (\d+)", operator.text())[-1]
        static = {"targets": [f"127.0.0.1:{port}"], "labels": {"namespace": HOME, "pod": "operator-1"}}
        configuration = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(folder / "rules.yaml")],
            "scrape_configs": [
                {"job_name": "operator", "honor_labels": True, "static_configs": [static]},
                agents_scraped(objects["trainmaster-agents"], folder / "targets.json"),
            ],
        }
        with prometheus(folder, configuration, objects["trainmaster"]["spec"]) as url:
            fault = folder / "fault"
            cluster.apply(
                training_job("trains", f"fault = {str(fault)!r}\n{TRAINS}", **COLD),
                training_job("fails", "raise SystemExit(3)", workers=1, failurePolicy={"maxRestarts": 0}, **COLD),
                training_job("waits", "", workers=1, resources={"gpus": 64}, **COLD),
                training_job("hangs", STANDS_STILL, workers=1, failurePolicy={"hang": HANG}, **COLD),
                training_job("stands", STANDS_STILL, workers=1, **COLD),
            )
            pods = cluster.eventually(lambda: addressed(cluster), SECONDS, "addresses of the workers")
            (folder / "targets.new").write_text(json.dumps([target for pod in pods for target in discovered(pod)]))
            (folder / "targets.new").rename(folder / "targets.json")
            made = Watched(cluster, url)
            # A restart is seen only if the counter was seen before it.
            steps = 'trainmaster_job_step{job_name="trains"}'
            cluster.eventually(lambda: made.query(steps), SECONDS, "the first steps")
            fault.touch()
            yield made


def test_workers_are_found_and_their_series_say_whose_they_are(watched: Watched) -> None:
    def found() -> list[dict[str, Any]]:
        return watched.query('trainmaster_step{job_name="trains", rank="1"}')

    (series,) = watched.cluster.eventually(found, SECONDS, "the steps of a rank")
    labels = series["metric"]
    expected = {"namespace": watched.cluster.namespace, "pod": "trains-1", "worker": "1", "container": "worker"}
    assert expected.items() <= labels.items()
    assert labels["node"]
    assert not [name for name in labels if name.startswith("exported")]


def test_every_rule_is_evaluated_and_fires_for_the_job_that_is_a_reason(watched: Watched) -> None:
    def firing() -> dict[str, dict[str, Any]]:
        groups = watched.ask("rules")["groups"]
        rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
        assert rules
        assert {name: rule["lastError"] for name, rule in rules.items() if rule["health"] == "err"} == {}
        fires = {name for name, rule in rules.items() if rule["state"] == "firing"}
        assert fires == set(rules) - set(SILENT), fires ^ (set(rules) - set(SILENT))
        return rules

    rules = watched.cluster.eventually(firing, SECONDS, "all alerts that have a reason")
    told = {
        (name, alert["labels"].get("job_name", "")): alert["annotations"]["description"]
        for name, rule in rules.items()
        for alert in rule["alerts"]
        if alert["state"] == "firing"
    }
    space = watched.cluster.namespace
    assert told["TrainmasterJobFailed", "fails"].startswith(f"Job {space}/fails has failed: ")
    assert re.search(r"hung .+ ago; look at rank 0 on node \w+", told["TrainmasterJobHung", "hangs"])
    assert "was restarted 1 times" in told["TrainmasterJobRestarting", "trains"]
    assert "it is Pending (Unschedulable)" in told["TrainmasterJobPending", "waits"]
    assert ("TrainmasterJobStalled", "stands") in told and ("TrainmasterJobStalled", "trains") not in told
    assert told["TrainmasterJobStraggler", "trains"].startswith(f"Rank 1 of job {space}/trains (worker 1 on node ")
    assert not [text for text in told.values() if "error" in text or "no value" in text]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_query_of_a_dashboard_has_an_answer(watched: Watched, path: Path) -> None:
    dashboard = json.loads(path.read_text())
    asked = [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [(one["name"], one["expr"]) for one in dashboard["annotations"]["list"]]
    assert asked
    may_be_empty = [one for one in asked if any(metric in one[1] for metric in UNANSWERED)]

    def unanswered() -> bool:
        empty = [one for one in asked if not watched.query(one[1], path.stem)]
        assert empty == may_be_empty
        return True

    watched.cluster.eventually(unanswered, SECONDS, "answers to all queries")


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_variable_of_a_dashboard_has_values(watched: Watched, path: Path) -> None:
    for variable in json.loads(path.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"])
            assert match is not None
            series = watched.filled(match[1], path.stem)
            assert watched.ask(f"label/{match[2]}/values", **{"match[]": series}), variable["name"]

"""Trainmaster is installed as its users do it: by Helm's own engine, and from plain manifests with kubectl.

The operator runs as the chart's Deployment with the chart's roles, so a missing permission shows here.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Config

from tests.cluster.operator_under_test import training_job
from tests.processes.agent.agents import free_port
from trainmaster_local.testing.clusters import Cluster

# Operators start and stop in each test, on a machine that may be busy.
pytestmark = [pytest.mark.usefixtures("pods_run"), pytest.mark.timeout(400), pytest.mark.alone]

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "trainmaster"
CRD = "distributedtrainingjobs.trainmaster.dev"
OPERATOR = "deployment/trainmaster"

SHORT = "print('trained', flush=True)"
# Ends on a signal of the test: a file that it can write from outside on any kind of cluster, the rank's progress.
PATIENT = """
import os, pathlib, time
progress = pathlib.Path(os.environ["TRAINMASTER_PROGRESS_FILE"])
for step in range(100):
    progress.write_text('{"step": %d, "totalSteps": 100}' % (step + 1))
    time.sleep(0.1)
"""


@pytest.fixture
def helm(cluster: Cluster) -> Iterator[Config]:
    """Runs Helm in the test's namespace; removes whatever a failed test left installed.

    The CRD outlives its release. Another release adopts it as Helm requires: by its annotations and label.
    """
    if cluster.kubectl("get", "crd", CRD, check=False).returncode == 0:
        owner = (f"meta.helm.sh/release-namespace={cluster.namespace}", "meta.helm.sh/release-name=trainmaster")
        cluster.kubectl("annotate", "--overwrite", "crd", CRD, *owner)
        cluster.kubectl("label", "--overwrite", "crd", CRD, "app.kubernetes.io/managed-by=Helm")
    with Config(kubeconfig_path=cluster.kubeconfig, namespace=cluster.namespace) as config:
        yield config
        config.uninstall("trainmaster", ignore_not_found=True, timeout=60)


def values(cluster: Cluster, **others: Any) -> dict[str, Any]:
    """Returns the values of an operator for one namespace, with all protections."""
    policy = {"networkPolicy": {"enabled": True}, "metrics": {"namespaces": ["monitoring"]}}
    return {"namespaces": [cluster.namespace], "replicas": 1, **policy, **others}


def leave_crd_to_helm(cluster: Cluster) -> None:
    """Lets an earlier `kubectl apply --server-side` give up the CRD's fields, as docs/operating.md describes.

    Helm 4 also applies on the server, so it couldn't change fields that another manager owns.
    https://kubernetes.io/docs/reference/using-api/server-side-apply/#transferring-ownership
    """
    nothing = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": CRD}}
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(nothing))


def phase(cluster: Cluster, name: str) -> str:
    return str((cluster.get("dtj", name).get("status") or {}).get("phase"))


def until_phase(cluster: Cluster, name: str, wanted: str, seconds: float = 120) -> None:
    try:
        cluster.eventually(lambda: phase(cluster, name) == wanted, seconds, f"{name} is {wanted}")
    except pytest.fail.Exception:
        # Shown by pytest.
        for arguments in (("get", "dtj", name, "-o", "yaml"), ("get", "pods", "-o", "wide"), ("logs", OPERATOR)):
            print(cluster.kubectl(*arguments, check=False).stdout)
        raise


def test_a_fresh_install_runs_a_job_with_the_chart_s_own_permissions(helm: Config, cluster: Cluster) -> None:
    # On the embedded cluster, a program that listens on all of a pod's addresses has all of the machine's.
    recorded, seen = free_port(""), free_port("")
    history = {"enabled": True, "port": recorded, "persistence": {"size": "100Mi"}, "maxBytes": "50Mi"}
    everything = values(cluster, history=history, dashboard={"enabled": True, "port": seen})
    release = helm.install(CHART, "trainmaster", everything, timeout=180, wait="watcher")
    assert release["status"] == "deployed"
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=60s")
    cluster.apply(training_job("short", SHORT))
    until_phase(cluster, "short", "Succeeded")
    log = cluster.kubectl("logs", OPERATOR).stdout
    assert "orbidden" not in log, log
    kept = cluster.eventually(lambda: cluster.get("configmap", "short-logs")["data"], what="the logs are kept")
    assert kept["worker-0.log"].endswith("trained\n")
    applied = cluster.get("networkpolicy", "trainmaster")["spec"]
    ports = [[port["port"] for port in rule["ports"]] for rule in applied["egress"]]
    assert ports == [[443, 6443], [53, 53], [8472], [recorded]]
    # History and dashboard have no rights, and ask the API server for a viewer's.
    [page] = cluster.items("pods", labels="app.kubernetes.io/component=dashboard")
    for pod, path in (
        (f"trainmaster-history-0:{recorded}", "/v1/jobs"),
        (f"{page['metadata']['name']}:{seen}", "/api/viewer"),
    ):
        status, answer = cluster.request("GET", f"/api/v1/namespaces/{cluster.namespace}/pods/{pod}/proxy{path}")
        assert status == 401, f"who asks has to show a token: {answer}"
    # The policy permits two Secrets: those that the operator makes.
    secrets = {item["metadata"]["name"]: item["type"] for item in cluster.items("secrets")}
    assert secrets["trainmaster-signing-keys"] == "Opaque"
    assert [secrets[name] for name in secrets if name.startswith("trainmaster-agents-")] == ["trainmaster.dev/agents"]
    # The policy refuses something that the operator's roles alone would permit.
    operator = f"--as=system:serviceaccount:{cluster.namespace}:trainmaster"
    attack = cluster.kubectl(operator, "create", "configmap", "mine", check=False)
    assert "ValidatingAdmissionPolicy" in attack.stderr, attack


def test_an_upgrade_changes_the_crd_and_loses_no_running_job(helm: Config, cluster: Cluster, tmp_path: Path) -> None:
    helm.install(CHART, "trainmaster", values(cluster), timeout=180, wait="watcher")
    leave_crd_to_helm(cluster)
    cluster.apply(training_job("patient", PATIENT))
    until_phase(cluster, "patient", "Running")
    pods = {pod["metadata"]["uid"] for pod in cluster.items("pods", labels="trainmaster.dev/job-name=patient")}

    newer = tmp_path / "trainmaster"
    shutil.copytree(CHART, newer)
    crd = yaml.safe_load((newer / "files" / "crd.yaml").read_text())
    crd["spec"]["versions"][0]["additionalPrinterColumns"].append(
        {"name": "Image", "type": "string", "jsonPath": ".spec.image"}
    )
    (newer / "files" / "crd.yaml").write_text(yaml.safe_dump(crd))
    upgraded = values(cluster, operator={"workers": 4})
    assert helm.upgrade(newer, "trainmaster", upgraded, timeout=180, wait="watcher")["status"] == "deployed"

    columns = cluster.get("crd", CRD)["spec"]["versions"][0]["additionalPrinterColumns"]
    assert columns[-1]["name"] == "Image"
    until_phase(cluster, "patient", "Succeeded")
    status = cluster.get("dtj", "patient")["status"]
    assert (status["attempt"], status.get("restarts", 0), status.get("disruptions", 0)) == (1, 0, 0)
    assert len(pods) == 2


def test_uninstalling_leaves_the_jobs_and_nothing_that_is_stuck(helm: Config, cluster: Cluster) -> None:
    helm.install(CHART, "trainmaster", values(cluster), timeout=180, wait="watcher")
    cluster.apply(training_job("kept", PATIENT))
    until_phase(cluster, "kept", "Running")
    helm.uninstall("trainmaster", timeout=60, wait="watcher")
    assert cluster.items("deployments") == []
    assert cluster.items("rolebindings") == []
    assert cluster.get("crd", CRD)["metadata"]["name"] == CRD
    # Without an operator a job can still be deleted, with everything that belongs to it: no finalizer blocks that.
    cluster.kubectl("delete", "dtj", "kept", "--timeout=60s")
    cluster.eventually(lambda: not cluster.items("statefulsets") and not cluster.items("services"), 60, "children gone")
    cluster.eventually(lambda: not cluster.items("pods"), 60, "pods gone")


def test_plain_manifests_install_the_same_operator_for_all_namespaces(cluster: Cluster) -> None:
    try:
        cluster.kubectl(
            "-n", "trainmaster-system", "apply", "--server-side", "--force-conflicts", "-k", str(ROOT / "manifests")
        )
        cluster.kubectl("-n", "trainmaster-system", "rollout", "status", OPERATOR, "--timeout=180s", timeout=190)
        lease = (
            "-n",
            "trainmaster-system",
            "get",
            "lease",
            "trainmaster-operator",
            "-o",
            "jsonpath={.spec.holderIdentity}",
        )
        cluster.eventually(lambda: cluster.kubectl(*lease, check=False).stdout, 60, "a leader")
        cluster.apply(training_job("short", SHORT))
        until_phase(cluster, "short", "Succeeded")
        # The admission policy keeps jobs out of the operator's own namespace, and explains it to anyone who creates
        # one.
        mine = ("-n", "trainmaster-system", "get", "dtj", "mine", "-o", "jsonpath={.status.conditions}")
        job = yaml.safe_dump(training_job("mine", SHORT))
        cluster.kubectl("-n", "trainmaster-system", "apply", "-f", "-", stdin=job)
        cluster.eventually(lambda: "not in its own namespace" in cluster.kubectl(*mine).stdout, 60, "a refusal")
        for pod in cluster.kubectl("-n", "trainmaster-system", "get", "pods", "-o", "name").stdout.split():
            log = cluster.kubectl("-n", "trainmaster-system", "logs", pod).stdout
            # A missing right; the admission policy's refusal above reads differently.
            assert "cannot" not in log, log
    finally:
        everything = yaml.safe_load((ROOT / "manifests" / "kustomization.yaml").read_text())["resources"]
        # Except the CRD, because other tests' jobs would be deleted with it.
        for name in reversed([name for name in everything if name != "crd.yaml"]):
            cluster.kubectl(
                "-n",
                "trainmaster-system",
                "delete",
                "--ignore-not-found",
                "-f",
                str(ROOT / "manifests" / name),
                timeout=120,
            )

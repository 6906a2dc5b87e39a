"""Helm's own engine (helm-python-sdk) runs a small chart's whole life on the cluster.

Helm keeps each revision of a release in a Secret, applies manifests, runs hooks as pods and waits for the objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helm_python import Config
from helm_python.errors import HelmError, HelmNotFoundError

from trainmaster_local.testing.clusters import Cluster

pytestmark = pytest.mark.usefixtures("pods_run")

CHART = Path(__file__).parents[1] / "data" / "charts" / "echo"


@pytest.fixture
def helm(cluster: Cluster) -> Iterator[Config]:
    with Config(kubeconfig_path=cluster.kubeconfig, namespace=cluster.namespace) as config:
        yield config


def install(helm: Config, cluster: Cluster, values: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    return helm.install(CHART, "demo", values, namespace=cluster.namespace, timeout=120, **options)


def revisions(helm: Config) -> list[str]:
    return [entry["status"] for entry in helm.history("demo")]


def test_install_waits_for_the_pods(helm: Config, cluster: Cluster) -> None:
    assert install(helm, cluster, {"replicas": 2}, wait="watcher")["status"] == "deployed"
    assert cluster.get("statefulset", "demo")["status"]["readyReplicas"] == 2
    cluster.eventually(lambda: cluster.log("demo-0") == "hello\n", what="its log")
    assert [(entry["name"], entry["namespace"]) for entry in helm.list()] == [("demo", cluster.namespace)]
    secret = cluster.get("secret", "sh.helm.release.v1.demo.v1")
    assert secret["type"] == "helm.sh/release.v1"
    assert secret["metadata"]["labels"]["owner"] == "helm"


def test_upgrade_and_rollback(helm: Config, cluster: Cluster) -> None:
    install(helm, cluster, wait="watcher")
    upgraded = {"greeting": "good day"}
    helm.upgrade(CHART, "demo", upgraded, namespace=cluster.namespace, timeout=120, wait="watcher")
    assert cluster.get("configmap", "demo-greeting")["data"] == {"greeting": "good day"}
    cluster.eventually(lambda: cluster.log("demo-0") == "good day\n", what="new pod")
    assert cluster.items("pods", labels="app notin (demo)") == []
    helm.rollback("demo", version=1, timeout=120, wait="watcher")
    assert cluster.get("configmap", "demo-greeting")["data"] == {"greeting": "hello"}
    assert revisions(helm) == ["superseded", "superseded", "deployed"]


def test_upgrade_keeps_what_others_changed_elsewhere(helm: Config, cluster: Cluster) -> None:
    install(helm, cluster)
    cluster.kubectl("annotate", "configmap", "demo-greeting", "theirs=kept")
    helm.upgrade(CHART, "demo", {"greeting": "hi"}, namespace=cluster.namespace, timeout=120)
    changed = cluster.get("configmap", "demo-greeting")
    assert changed["data"] == {"greeting": "hi"}
    assert changed["metadata"]["annotations"]["theirs"] == "kept"


def test_uninstall_leaves_nothing(helm: Config, cluster: Cluster) -> None:
    install(helm, cluster)
    helm.uninstall("demo", wait="watcher", timeout=120)
    assert helm.list() == []
    for resource in ("configmap", "service", "statefulset", "secret"):
        names = [item["metadata"]["name"] for item in cluster.items(resource)]
        assert [name for name in names if "demo" in name] == []
    with pytest.raises(HelmNotFoundError):
        helm.status("demo")


def test_server_dry_run_makes_nothing(helm: Config, cluster: Cluster) -> None:
    assert "kind: StatefulSet" in install(helm, cluster, dry_run="server")["manifest"]
    assert cluster.kubectl("get", "statefulset", "demo", check=False).returncode == 1


def test_refused_manifest_fails_the_release(helm: Config, cluster: Cluster) -> None:
    with pytest.raises(HelmError, match=r"spec\.replicas: Invalid value: -1: must be greater than or equal to 0"):
        install(helm, cluster, {"replicas": -1})
    assert revisions(helm) == ["failed"]
    assert json.dumps(cluster.items("statefulsets")) == "[]"

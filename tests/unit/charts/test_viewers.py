"""The chart's history and dashboard are pods without rights, and the operator needs neither."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
import yaml
from helm_python import Chart

from tests.unit.charts.test_chart import CHART, VERSIONS, of_kind, render
from trainmaster.client.history.finding import ANNOTATION, ROLE

BOTH = {"history": {"enabled": True}, "dashboard": {"enabled": True}}
EVERYTHING = {
    "history": {"enabled": True, "persistence": {"storageClassName": "fast"}},
    "dashboard": {
        "enabled": True,
        "tlsSecret": "page-tls",
        "ingress": {"enabled": True, "host": "jobs.example.com", "className": "nginx", "tlsSecret": "jobs-tls"},
    },
    "networkPolicy": {"enabled": True},
}


@pytest.fixture(scope="module")
def chart() -> Iterator[Chart]:
    with Chart.load(str(CHART)) as loaded:
        yield loaded


def named(documents: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    [found] = [document for document in of_kind(documents, kind) if document["metadata"]["name"] == name]
    return found


def pod_of(documents: list[dict[str, Any]], name: str) -> dict[str, Any]:
    [found] = [each for each in workloads(documents) if each["metadata"]["name"] == name]
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def workloads(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return of_kind(documents, "Deployment") + of_kind(documents, "StatefulSet")


@pytest.mark.parametrize("version", VERSIONS)
def test_everything_rendered_fits_the_official_schemas(chart: Chart, version: str) -> None:
    for document in render(chart, EVERYTHING):
        kubernetes_validate.validate(document, version, strict=True)


def test_neither_is_there_by_default_and_both_need_no_right(chart: Chart) -> None:
    without, both = render(chart), render(chart, BOTH)
    assert not any("history" in str(document) or "dashboard" in document["metadata"]["name"] for document in without)
    for kind in ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "ServiceAccount"):
        announced = [each for each in of_kind(both, kind) if each["metadata"]["name"] == "trainmaster-history"]
        assert [each for each in of_kind(both, kind) if each not in announced] == of_kind(without, kind)
        assert len(announced) == int(kind.startswith("ClusterRole"))


def test_the_history_is_announced_where_only_administrators_write(chart: Chart) -> None:
    """Tokens used to go to any service with the usual name in the usual namespace."""
    files = chart.render(BOTH, name="mine", namespace="ops")
    documents = list(
        yaml.load_all(next(text for name, text in files.items() if name.endswith("/history.yaml")), yaml.CSafeLoader)
    )
    role = named(documents, "ClusterRole", ROLE)
    place = role["metadata"]["annotations"][ANNOTATION]
    assert place == "ops/mine-trainmaster-history:http"
    service = named(documents, "Service", "mine-trainmaster-history")
    assert service["metadata"]["namespace"] == "ops" and service["spec"]["ports"][0]["name"] == "http"
    # The role allows only to read itself.
    [rule] = role["rules"]
    assert (rule["resources"], rule["resourceNames"], rule["verbs"]) == (["clusterroles"], [ROLE], ["get"])
    binding = named(documents, "ClusterRoleBinding", ROLE)
    assert binding["roleRef"]["name"] == ROLE and [each["name"] for each in binding["subjects"]] == [
        "system:authenticated"
    ]
    second = render(chart, {"history": {"enabled": True, "announce": False}})
    assert not [each for each in of_kind(second, "ClusterRole") if each["metadata"]["name"] == ROLE]


@pytest.mark.parametrize("name", ["trainmaster-history", "trainmaster-dashboard"])
def test_their_pods_have_no_token_and_meet_the_restricted_standard(chart: Chart, name: str) -> None:
    pod = pod_of(render(chart, EVERYTHING), name)
    assert pod["automountServiceAccountToken"] is False
    [authority] = [volume for volume in pod["volumes"] if volume["name"] == "api-server"]
    assert authority["configMap"] == {"name": "kube-root-ca.crt"}
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_no_service_or_policy_of_one_selects_another_s_pods(chart: Chart) -> None:
    documents = render(chart, EVERYTHING)
    labels = {each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"] for each in workloads(documents)}
    selectors = [each["spec"]["selector"] for each in of_kind(documents, "Service")]
    selectors += [each["spec"]["podSelector"]["matchLabels"] for each in of_kind(documents, "NetworkPolicy")]
    assert len(selectors) == 6
    for selector in selectors:
        assert sum(selector.items() <= found.items() for found in labels.values()) == 1


def test_the_operator_and_the_history_read_one_secret(chart: Chart) -> None:
    documents = render(chart, BOTH)
    arguments = pod_of(documents, "trainmaster")["containers"][0]["args"]
    assert [text for text in arguments if "history" in text] == [
        "--history-url=http://trainmaster-history.trainmaster-system.svc:8090",
        "--history-token-file=/etc/trainmaster/history/token",
    ]
    secret = named(documents, "Secret", "trainmaster-history-writer")
    assert len(secret["data"]["token"]) >= 40
    for pod in (pod_of(documents, "trainmaster"), pod_of(documents, "trainmaster-history")):
        found = [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
        assert found == ["trainmaster-history-writer"]
    own = {"history": {"enabled": True, "writerSecret": "mine"}}
    assert of_kind(render(chart, own), "Secret") == []
    assert {"secretName": "mine", "optional": True} in [
        volume.get("secret") for volume in pod_of(render(chart, own), "trainmaster")["volumes"]
    ]


def test_the_history_outlives_the_chart_and_is_written_by_one_process(chart: Chart) -> None:
    documents = render(chart, EVERYTHING)
    claim = named(documents, "PersistentVolumeClaim", "trainmaster-history")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert claim["spec"]["storageClassName"] == "fast"
    assert named(documents, "StatefulSet", "trainmaster-history")["spec"]["replicas"] == 1
    mine = {"history": {"enabled": True, "persistence": {"existingClaim": "mine"}}}
    assert of_kind(render(chart, mine), "PersistentVolumeClaim") == []
    assert {"claimName": "mine"} in [
        volume.get("persistentVolumeClaim") for volume in pod_of(render(chart, mine), "trainmaster-history")["volumes"]
    ]


def test_the_dashboard_knows_the_history_where_there_is_one(chart: Chart) -> None:
    def arguments(values: dict[str, Any]) -> list[str]:
        found: list[str] = pod_of(render(chart, values), "trainmaster-dashboard")["containers"][0]["args"]
        return found

    url = "--history=http://trainmaster-history.trainmaster-system.svc:8090"
    assert url in arguments(BOTH)
    assert not any("--history" in text for text in arguments({"dashboard": {"enabled": True}}))


def test_https_is_probed_as_https(chart: Chart) -> None:
    [container] = pod_of(render(chart, EVERYTHING), "trainmaster-dashboard")["containers"]
    assert "--tls-cert=/etc/trainmaster/tls/tls.crt" in container["args"]
    assert {container[probe]["httpGet"]["scheme"] for probe in ("livenessProbe", "readinessProbe")} == {"HTTPS"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dashboard": {"enabled": True, "ingress": {"enabled": True}}}, "dashboard.ingress.host: needed"),
        ({"history": {"maxBytes": "plenty"}}, "maxBytes"),
        ({"history": {"keepDays": 0}}, "keepDays"),
        ({"dashboard": {"port": 80}}, "port"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_by_name(chart: Chart, values: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words):
        render(chart, values)

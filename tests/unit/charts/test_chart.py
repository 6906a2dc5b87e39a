"""Helm's own engine renders the chart, and a wrong value is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml
from helm_python import Chart

CHART = Path(__file__).resolve().parents[3] / "charts" / "trainmaster"
# The oldest version that both the chart's kubeVersion and kubernetes-validate support, and a new one.
VERSIONS = ("1.28", "1.36")


@pytest.fixture(scope="module")
def chart() -> Iterator[Chart]:
    with Chart.load(str(CHART)) as loaded:
        yield loaded


# The rendered documents by the values' JSON, because most tests render the same few values.
_rendered: dict[str, list[dict[str, Any]]] = {}


def render(chart: Chart, values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    key = json.dumps(values or {})
    if key not in _rendered:
        _rendered[key] = _render(chart, values or {})
    return copy.deepcopy(_rendered[key])


def _render(chart: Chart, values: dict[str, Any]) -> list[dict[str, Any]]:
    files = chart.render(values, name="trainmaster", namespace="trainmaster-system")
    texts = (text for name, text in files.items() if name.endswith(".yaml"))
    return [document for text in texts for document in yaml.load_all(text, yaml.CSafeLoader) if document]


def of_kind(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] == kind]


def test_lint_finds_nothing() -> None:
    # Severity 1 is information (the chart has no icon).
    assert [
        message for message in helm_python.lint(str(CHART), strict=True)["messages"] if message["severity"] > 1
    ] == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"namespaces": ["team-a"]},
        {"metrics": {"service": False, "requireToken": True}},
        {"monitoring": {"dashboards": {"enabled": True}}},
    ],
    ids=str,
)
def test_everything_rendered_fits_the_official_schemas(chart: Chart, values: dict[str, Any], version: str) -> None:
    documents = render(chart, values)
    assert len(documents) >= 6
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)


def test_the_pods_meet_the_restricted_pod_security_standard(chart: Chart) -> None:
    # https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
    pod = of_kind(render(chart), "Deployment")[0]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert {next(iter(set(volume) - {"name"})) for volume in pod["volumes"]} <= {"emptyDir", "configMap", "secret"}
    for container in pod["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_a_list_of_namespaces_needs_no_cluster_wide_rights_over_jobs(chart: Chart) -> None:
    documents = render(chart, {"namespaces": ["team-a", "team-b"], "rbac": {"aggregate": False}})
    assert of_kind(documents, "ClusterRole") == []
    roles = [(role["metadata"]["namespace"], role["metadata"]["name"]) for role in of_kind(documents, "Role")]
    assert roles == [
        ("trainmaster-system", "trainmaster-leader"),
        ("trainmaster-system", "trainmaster-seen"),
        ("team-a", "trainmaster"),
        ("team-b", "trainmaster"),
    ]
    arguments = of_kind(documents, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert [text for text in arguments if "namespace" in text] == ["--namespace=team-a", "--namespace=team-b"]


def test_no_role_has_a_wildcard_or_reads_other_secrets_than_the_operators_own_keys(chart: Chart) -> None:
    for role in of_kind(render(chart), "ClusterRole") + of_kind(render(chart), "Role"):
        for rule in role["rules"]:
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
            if "secrets" in rule["resources"]:
                own = (rule.get("resourceNames"), rule["verbs"]) == (["trainmaster-signing-keys"], ["get"])
                assert own or rule["verbs"] == ["create"]


def test_the_crd_is_upgraded_with_the_chart_and_kept_at_uninstall(chart: Chart) -> None:
    # Helm installs a chart's crds/ folder once and never upgrades it, so ours is a template.
    crd = of_kind(render(chart), "CustomResourceDefinition")[0]
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert not (CHART / "crds").exists()
    assert of_kind(render(chart, {"crds": {"install": False}}), "CustomResourceDefinition") == []


def test_a_digest_wins_over_the_tag(chart: Chart) -> None:
    digest = "sha256:" + "a" * 64
    image = of_kind(render(chart, {"image": {"tag": "9", "digest": digest}}), "Deployment")[0]["spec"]["template"][
        "spec"
    ]
    assert image["containers"][0]["image"] == f"ghcr.io/trainmaster/operator@{digest}"


def operator_arguments(chart: Chart, values: dict[str, Any]) -> list[str]:
    pod = of_kind(render(chart, values), "Deployment")[0]["spec"]["template"]["spec"]
    arguments: list[str] = pod["containers"][0]["args"]
    return arguments


def test_the_operator_keeps_no_logs_where_the_chart_says_so(chart: Chart) -> None:
    assert "--no-keep-logs" not in operator_arguments(chart, {})
    assert "--no-keep-logs" in operator_arguments(chart, {"operator": {"keepLogs": False}})


def test_the_operator_gives_jobs_network_policies_and_may_write_them_only_where_the_chart_says_so(chart: Chart) -> None:
    values = {"jobNetworkPolicies": {"enabled": True}, "metrics": {"namespaces": ["monitoring"]}}

    def rules(values: dict[str, Any]) -> list[dict[str, Any]]:
        role = next(
            role for role in of_kind(render(chart, values), "ClusterRole") if role["metadata"]["name"] == "trainmaster"
        )
        return [rule for rule in role["rules"] if "networkpolicies" in rule["resources"]]

    assert rules({}) == []
    assert not [text for text in operator_arguments(chart, {}) if "network" in text]
    (rule,) = rules(values)
    assert rule["verbs"] == ["get", "list", "watch", "create", "patch"]
    arguments = operator_arguments(chart, values)
    assert {"--job-network-policies", "--metrics-namespace=monitoring"} <= {*arguments}
    pod = of_kind(render(chart, values), "Deployment")[0]["spec"]["template"]
    named = dict(text.partition("=")[2].split("=") for text in arguments if text.startswith("--operator-label="))
    assert named
    assert named.items() <= pod["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"replica": 2}, "replica"),
        ({"replicas": -1}, "replicas"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"image": {"digest": "sha256:beef"}}, "digest"),
        ({"agentImage": {"tag": "9"}}, "agentImage"),
        ({"namespaces": ["Team_A"]}, "namespaces"),
        ({"operator": {"workers": 0}}, "workers"),
        ({"metrics": {"port": 80}}, "port"),
        ({"jobNetworkPolicies": {"enabled": "yes"}}, "jobNetworkPolicies"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_by_name(chart: Chart, values: dict[str, Any], words: str) -> None:
    with pytest.raises(helm_python.HelmError, match=words):
        chart.validate_schema(values)


def test_every_value_is_in_the_schema_and_has_a_comment() -> None:
    text = (CHART / "values.yaml").read_text()
    values = yaml.load(text, yaml.CSafeLoader)
    schema = yaml.load((CHART / "values.schema.json").read_text(), yaml.CSafeLoader)
    assert set(values) | {"global"} == set(schema["properties"])
    lines = text.splitlines()
    for number, line in enumerate(lines):
        key = line.strip().split(":")[0]
        is_leaf = (
            line.strip().endswith(("}", "]", '""', "true", "false")) or line.strip().split(":")[-1].strip().isalnum()
        )
        if ":" in line and is_leaf and not line.strip().startswith(("#", "requests", "limits")):
            assert lines[number - 1].strip().startswith("#"), f"{key} has no comment"


def test_rights_to_gang_schedulers_are_those_that_were_asked_for(chart: Chart) -> None:
    def groups(values: dict[str, Any]) -> set[str]:
        role = next(
            one for one in of_kind(render(chart, values), "ClusterRole") if one["metadata"]["name"] == "trainmaster"
        )
        return {group for rule in role["rules"] for group in rule["apiGroups"]}

    gangs = {"scheduling.volcano.sh", "scheduling.x-k8s.io", "scheduling.k8s.io", "kueue.x-k8s.io"}
    assert gangs <= groups({})
    assert gangs & groups({"gangSchedulers": []}) == set()
    assert gangs & groups({"gangSchedulers": ["volcano"]}) == {"scheduling.volcano.sh"}


def test_the_admission_policy_is_for_the_operator_s_own_service_account(chart: Chart) -> None:
    documents = render(chart, {"admissionPolicy": {"enabled": True}, "serviceAccount": {"name": "ours"}})
    (policy,), (binding,) = (
        of_kind(documents, "ValidatingAdmissionPolicy"),
        of_kind(documents, "ValidatingAdmissionPolicyBinding"),
    )
    for document in (policy, binding):
        kubernetes_validate.validate(document, "1.36", strict=True)
    account = "system:serviceaccount:trainmaster-system:ours"
    conditions = [one["expression"] for one in policy["spec"]["matchConditions"]]
    assert conditions == [f"request.userInfo.username == '{account}'"]
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}


def test_the_admission_policy_can_be_left_out(chart: Chart) -> None:
    # tests/cluster/test_install.py tests that the cluster decides (auto).
    documents = render(chart, {"admissionPolicy": {"enabled": False}})
    assert [one["kind"] for one in documents if "AdmissionPolicy" in one["kind"]] == []


def test_the_proxy_to_pods_is_a_right_of_its_own(chart: Chart) -> None:
    def rules(values: dict[str, Any]) -> list[dict[str, Any]]:
        role = next(
            one for one in of_kind(render(chart, values), "ClusterRole") if one["metadata"]["name"] == "trainmaster"
        )
        return [rule for rule in role["rules"] if "pods/proxy" in rule["resources"]]

    def arguments(values: dict[str, Any]) -> list[str]:
        pod = of_kind(render(chart, values), "Deployment")[0]["spec"]["template"]["spec"]
        return [one for one in pod["containers"][0]["args"] if one.startswith("--reach")]

    proxied = {"operator": {"reach": "proxy"}}
    assert (rules({}), arguments({})) == ([], ["--reach=direct"])
    assert [rule["verbs"] for rule in rules(proxied)] == [["get", "create"]]
    assert arguments(proxied) == ["--reach=proxy"]

"""By default the chart adds nothing for Prometheus and Grafana; its switches and thresholds add rules and dashboards.

promtool (tests/processes/charts) and a real Prometheus (tests/cluster/test_monitoring.py) check that the rules and
dashboards are right.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml
from helm_python import Chart

from tests.prometheus import CHART, alerts, monitoring
from trainmaster_operator.agent.network.metrics import render_metrics
from trainmaster_operator.wire.names import AGENT_PORT, JOB_NAME_LABEL, JOB_UID_LABEL
from trainmaster_operator.wire.ranks import RankProgress
from trainmaster_operator.wire.system import WORKER_FIELDS, GpuSample, SystemSample

ROOT = Path(__file__).resolve().parents[3]
RUNBOOKS = ROOT / "docs" / "runbooks"
THRESHOLDS: dict[str, float] = yaml.load((CHART / "values.yaml").read_text(), yaml.CSafeLoader)["monitoring"][
    "thresholds"
]


def monitor(name: str, **values: Any) -> dict[str, Any]:
    with Chart.load(str(CHART)) as chart:
        given = {"monitoring": {"podMonitors": {"operator": True, "agents": True}}, **values}
        text = chart.render(given, name="trainmaster", namespace="trainmaster-system")
    documents = list(yaml.load_all(text["trainmaster/templates/monitoring.yaml"], yaml.CSafeLoader))
    return next(one for one in documents if one and one["metadata"]["name"] == f"trainmaster-{name}")


def test_there_is_nothing_unless_it_is_asked_for() -> None:
    with Chart.load(str(CHART)) as chart:
        files = chart.render({}, name="trainmaster", namespace="trainmaster-system")
    assert not any(yaml.load_all(files["trainmaster/templates/monitoring.yaml"], yaml.CSafeLoader))


@pytest.mark.parametrize(
    ("switch", "kinds"),
    [
        ({"podMonitors": {"operator": True}}, ["PodMonitor"]),
        ({"podMonitors": {"agents": True}}, ["PodMonitor"]),
        ({"prometheusRule": {"enabled": True}}, ["PrometheusRule"]),
        ({"dashboards": {"enabled": True}}, ["ConfigMap"] * 3),
    ],
    ids=str,
)
def test_each_has_a_switch_of_its_own(switch: dict[str, Any], kinds: list[str]) -> None:
    with Chart.load(str(CHART)) as chart:
        files = chart.render({"monitoring": switch}, name="trainmaster", namespace="trainmaster-system")
    documents = yaml.load_all(files["trainmaster/templates/monitoring.yaml"], yaml.CSafeLoader)
    assert [one["kind"] for one in documents if one] == kinds


def test_workers_of_all_served_namespaces_are_scraped_and_whose_they_are_is_said_by_the_pods_labels() -> None:
    spec = monitor("agents")["spec"]
    assert spec["namespaceSelector"] == {"any": True}
    keys = [one["key"] for one in spec["selector"]["matchExpressions"]]
    assert keys == [JOB_NAME_LABEL, JOB_UID_LABEL]
    (endpoint,) = spec["podMetricsEndpoints"]
    assert "honorLabels" not in endpoint
    assert {"targetLabel": "job_name", "sourceLabels": [f"__meta_kubernetes_pod_label_{_label(JOB_NAME_LABEL)}"]} in (
        endpoint["relabelings"]
    )
    assert [one["regex"] for one in endpoint["relabelings"] if one.get("action") == "keep"] == [str(AGENT_PORT)]
    assert monitor("agents", namespaces=["a", "b"])["spec"]["namespaceSelector"] == {"matchNames": ["a", "b"]}


def _label(name: str) -> str:
    return re.sub(r"\W", "_", name)


def test_all_metrics_of_agents_are_taken_and_no_others() -> None:
    keep = monitor("agents")["spec"]["podMetricsEndpoints"][0]["metricRelabelings"][0]
    assert keep["action"] == "keep"
    figures = dict.fromkeys(RankProgress._fields, 1)
    progress = RankProgress(**{**figures, "message": "", "section": None, "result": (), "metrics": (("f1", 0.5),)})
    system = SystemSample(*[1.0] * len(WORKER_FIELDS), gpus={0: GpuSample(1.0, 1.0, 1.0)})  # type: ignore[misc]
    page = render_metrics("bert", 0, None, {0: progress}, 1, 0, system)
    names = set(re.findall(r"^(\w+)\{", page, re.MULTILINE))
    assert names
    assert {name for name in names if not re.fullmatch(keep["regex"], name)} == set()
    assert not re.fullmatch(keep["regex"], "trainmaster_leader")


def test_the_operators_labels_are_honoured_and_its_own_pods_selected() -> None:
    spec = monitor("operator")["spec"]
    assert spec["podMetricsEndpoints"][0]["honorLabels"] is True
    with Chart.load(str(CHART)) as chart:
        files = chart.render({}, name="trainmaster", namespace="trainmaster-system")
    pod = next(yaml.load_all(files["trainmaster/templates/operator.yaml"], yaml.CSafeLoader))["spec"]["template"]
    assert spec["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert spec["podMetricsEndpoints"][0]["port"] in [one["name"] for one in pod["spec"]["containers"][0]["ports"]]


def test_a_token_for_the_metrics_is_required_by_one_value() -> None:
    def objects(**values: Any) -> dict[tuple[str, str], dict[str, Any]]:
        given = {"monitoring": {"podMonitors": {"operator": True}}, **values}
        with Chart.load(str(CHART)) as chart:
            files = chart.render(given, name="trainmaster", namespace="trainmaster-system")
        texts = [text for name, text in files.items() if name.endswith(".yaml")]
        documents = [one for text in texts for one in yaml.load_all(text, yaml.CSafeLoader) if one]
        return {(one["kind"], one["metadata"]["name"]): one for one in documents}

    reader, reviews = "trainmaster-metrics-reader", "trainmaster-metrics-reviews"
    before, after = objects(), objects(metrics={"requireToken": True})
    added = {("ServiceAccount", reader), ("Secret", reader)}
    added |= {(kind, name) for kind in ("ClusterRole", "ClusterRoleBinding") for name in (reader, reviews)}
    assert after.keys() - before.keys() == added and before.keys() <= after.keys()
    assert after["ClusterRole", reader]["rules"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    assert {
        (*rule["apiGroups"], *rule["resources"], *rule["verbs"]) for rule in after["ClusterRole", reviews]["rules"]
    } == {
        ("authentication.k8s.io", "tokenreviews", "create"),
        ("authorization.k8s.io", "subjectaccessreviews", "create"),
    }
    for name, account in ((reader, reader), (reviews, "trainmaster")):
        assert [one["name"] for one in after["ClusterRoleBinding", name]["subjects"]] == [account]
    assert after["Secret", reader]["type"] == "kubernetes.io/service-account-token"
    assert after["Secret", reader]["metadata"]["annotations"] == {"kubernetes.io/service-account.name": reader}

    def endpoint(found: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
        [one] = found["PodMonitor", "trainmaster-operator"]["spec"]["podMetricsEndpoints"]
        return dict(one)

    credentials = {"credentials": {"name": reader, "key": "token"}}
    assert endpoint(after) == {**endpoint(before), "authorization": credentials}

    def arguments(found: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
        return list(found["Deployment", "trainmaster"]["spec"]["template"]["spec"]["containers"][0]["args"])

    assert set(arguments(after)) - set(arguments(before)) == {"--metrics-require-token"}
    alone = objects(metrics={"requireToken": True}, monitoring={})
    assert alone.keys() & added == {(kind, name) for kind, name in added if name == reviews} | {("ClusterRole", reader)}


def test_the_kubelet_probes_another_port_than_prometheus_reads() -> None:
    with Chart.load(str(CHART)) as chart:
        files = chart.render({}, name="trainmaster", namespace="trainmaster-system")
    pod = next(yaml.load_all(files["trainmaster/templates/operator.yaml"], yaml.CSafeLoader))["spec"]["template"]
    [container] = pod["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports == {"health": 8081, "metrics": 8080}
    assert {"--health-port=8081", "--metrics-port=8080"} <= set(container["args"])
    assert {container[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")} == {"health"}


def test_the_history_is_scraped_where_there_is_one() -> None:
    switch = {"podMonitors": {"history": True}}
    with Chart.load(str(CHART)) as chart:
        without = chart.render({"monitoring": switch}, name="trainmaster", namespace="trainmaster-system")
        values = {"monitoring": switch, "history": {"enabled": True}}
        files = chart.render(values, name="trainmaster", namespace="trainmaster-system")
    assert not any(yaml.load_all(without["trainmaster/templates/monitoring.yaml"], yaml.CSafeLoader))
    [found] = [one for one in yaml.load_all(files["trainmaster/templates/monitoring.yaml"], yaml.CSafeLoader) if one]
    pod = [
        one
        for one in yaml.load_all(files["trainmaster/templates/history.yaml"], yaml.CSafeLoader)
        if one["kind"] == "StatefulSet"
    ]
    template = pod[0]["spec"]["template"]
    assert found["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert found["spec"]["podMetricsEndpoints"][0]["port"] == template["spec"]["containers"][0]["ports"][0]["name"]


def test_a_prometheus_that_network_policies_keep_out_is_told_of() -> None:
    watched = {"monitoring": {"podMonitors": {"agents": True}}, "jobNetworkPolicies": {"enabled": True}}

    def notes(values: dict[str, Any]) -> str:
        with Chart.load(str(CHART)) as chart:
            files = chart.render(values, name="trainmaster", namespace="trainmaster-system")
        return files["trainmaster/templates/NOTES.txt"]

    assert "metrics.namespaces" in notes(watched)
    assert "metrics.namespaces" not in notes({**watched, "metrics": {"namespaces": ["monitoring"]}})
    assert "metrics.namespaces" not in notes({**watched, "jobNetworkPolicies": {"enabled": False}})
    assert "reviews\n\n`helm uninstall`" in notes({})


def test_thresholds_labels_and_left_out_alerts_are_values() -> None:
    rule = alerts(thresholds={"jobPendingSeconds": 42})["TrainmasterJobPending"]
    assert rule["expr"].rstrip().endswith("> 42")
    given = {"enabled": True, "alertLabels": {"team": "ml", "severity": "page"}, "disabled": ["TrainmasterJobPending"]}
    found = alerts(prometheusRule={**given, "runbookURL": "https://wiki.example.com/trainmaster/"})
    assert set(alerts()) - set(found) == {"TrainmasterJobPending"}
    assert {json.dumps(one["labels"]) for one in found.values()} >= {'{"severity": "page", "team": "ml"}'}
    assert all(one["labels"]["severity"] == "page" for one in found.values())
    url = found["TrainmasterJobFailed"]["annotations"]["runbook_url"]
    assert url == "https://wiki.example.com/trainmaster/job-failed.md"


def test_every_threshold_is_used_and_none_is_missing() -> None:
    text = (CHART / "files" / "alerts.yaml").read_text()
    names = set(re.findall(r"\$\{(\w+)\}", text)) - {"namespace", "runbookURL"}
    assert names == set(THRESHOLDS)
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["monitoring"]["properties"]
    assert set(schema["thresholds"]["properties"]) == names


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"thresholds": {"jobPendingSeconds": "10m"}}, "jobPendingSeconds"),
        ({"thresholds": {"goodputRatio": 50}}, "goodputRatio"),
        ({"thresholds": {"pendingSeconds": 1}}, "pendingSeconds"),
        ({"podMonitors": {"interval": "often"}}, "interval"),
        ({"prometheusRule": {"disabled": ["job pending"]}}, "disabled"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_by_name(values: dict[str, Any], words: str) -> None:
    with Chart.load(str(CHART)) as chart, pytest.raises(helm_python.HelmError, match=words):
        chart.validate_schema({"monitoring": values})


@pytest.mark.parametrize("name", alerts())
def test_each_alert_has_its_sentence_its_severity_and_its_page(name: str) -> None:
    rule = alerts()[name]
    assert rule["labels"]["severity"] in ("warning", "critical")
    notes = rule["annotations"]
    assert notes["summary"].endswith(".") and notes["description"].endswith(".")
    if "Operator" not in name:
        assert "{{ $labels.namespace }}/{{ $labels.job_name }}" in notes["description"]
    page = (RUNBOOKS / notes["runbook_url"].rpartition("/")[2]).read_text()
    assert page.startswith(f"# {name}\n")


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("[!R]*.md")), ids=lambda page: page.name)
def test_each_page_says_its_alerts_thresholds_and_is_in_the_index(page: Path) -> None:
    text = page.read_text()
    name = text.partition("\n")[0].removeprefix("# ")
    source = (CHART / "files" / "alerts.yaml").read_text().partition(f"alert: {name}\n")[2].partition("- alert:")[0]
    used = set(re.findall(r"\$\{(\w+)\}", source)) - {"namespace", "runbookURL"}
    assert source, f"{name} is no alert"
    shown = dict(re.findall(r"^\| `monitoring\.thresholds\.(\w+)` \| (\S+) \|", text, re.MULTILINE))
    assert shown == {threshold: f"{THRESHOLDS[threshold]:g}" for threshold in used}
    assert f"[{name}]({page.name})" in (RUNBOOKS / "README.md").read_text()


def test_grafanas_sidecar_finds_the_dashboards() -> None:
    made = [one for one in monitoring() if one["kind"] == "ConfigMap"]
    assert len(made) == 3
    for one in made:
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        (data,) = one["data"].values()
        assert json.loads(data)["uid"].startswith("trainmaster-")
    given = {"enabled": True, "namespace": "grafana", "annotations": {"grafana_folder": "ML"}}
    placed = [one["metadata"] for one in monitoring(dashboards=given) if one["kind"] == "ConfigMap"]
    assert {(one["namespace"], one["annotations"]["grafana_folder"]) for one in placed} == {("grafana", "ML")}


@pytest.mark.parametrize("path", sorted((CHART / "dashboards").glob("*.json")), ids=lambda path: path.stem)
def test_a_dashboard_needs_nothing_but_grafana_and_its_panels_dont_overlap(path: Path) -> None:
    dashboard = json.loads(path.read_text())
    kinds = {"timeseries", "stat", "bargauge", "table", "heatmap", "state-timeline"}
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        assert panel["type"] in kinds
        assert panel["title"] and panel["description"].endswith(".") and panel["fieldConfig"]["defaults"]["unit"]
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24
        taken |= cells
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
    assert dashboard["templating"]["list"][0]["type"] == "datasource"

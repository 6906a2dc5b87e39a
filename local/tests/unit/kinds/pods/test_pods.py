"""Pods get defaults and admission's additions, and are refused in Kubernetes' words (`pkg/apis/core/validation`)."""

from __future__ import annotations

from typing import Any

import pytest

from local.tests.unit.kinds.api import pod, refusal, started
from trainmaster_local.apiserver.api import ApiError
from trainmaster_local.kinds.pods.qos import qos_class


def container(**fields: Any) -> dict[str, Any]:
    return {"name": "c", "image": "i:1", **fields}


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("i", "Always"),
        ("i:latest", "Always"),
        ("i:1", "IfNotPresent"),
        ("h:5000/i", "Always"),
        ("i@sha256:0", "IfNotPresent"),
    ],
)
async def test_pull_policy_follows_the_tag(image: str, policy: str) -> None:
    api = await started()
    made = await api.create("pods", pod(containers=[container(image=image)]), "default")
    assert made["spec"]["containers"][0]["imagePullPolicy"] == policy


async def test_probes_ports_and_volumes_get_their_defaults() -> None:
    api = await started()
    body = pod(
        containers=[
            container(
                ports=[{"containerPort": 80}],
                readinessProbe={"httpGet": {"port": 80}},
                env=[{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            )
        ],
        volumes=[
            {"name": "a"},
            {"name": "b", "configMap": {"name": "x"}},
            {"name": "c", "image": {"reference": "registry/agent"}},
            {"name": "d", "image": {"reference": "registry/agent:1"}},
        ],
        automountServiceAccountToken=False,
    )
    spec = (await api.create("pods", body, "default"))["spec"]
    made = spec["containers"][0]
    assert made["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert made["readinessProbe"] == {
        "httpGet": {"path": "/", "port": 80, "scheme": "HTTP"},
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }
    assert made["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] == "v1"
    assert spec["volumes"] == [
        {"name": "a", "emptyDir": {}},
        {"name": "b", "configMap": {"name": "x", "defaultMode": 420}},
        # kubernetes: pkg/apis/core/v1/defaults.go, SetDefaults_Volume.
        {"name": "c", "image": {"reference": "registry/agent", "pullPolicy": "Always"}},
        {"name": "d", "image": {"reference": "registry/agent:1", "pullPolicy": "IfNotPresent"}},
    ]
    assert "volumeMounts" not in made


async def test_tolerations_that_are_there_stay_alone() -> None:
    api = await started()
    own = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
    tolerations = (await api.create("pods", pod(tolerations=[own]), "default"))["spec"]["tolerations"]
    assert [(t["key"], t["tolerationSeconds"]) for t in tolerations] == [
        ("node.kubernetes.io/unreachable", 5),
        ("node.kubernetes.io/not-ready", 300),
    ]


async def test_priority_comes_from_the_class() -> None:
    api = await started()
    await api.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": "high"}, "value": 1000})
    assert (await api.create("pods", pod(priorityClassName="high"), "default"))["spec"]["priority"] == 1000
    assert await refusal(api, "pods", pod("q", priorityClassName="none")) == (
        'pods "q" is forbidden: no PriorityClass with name none was found'
    )


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"containers": []}, "spec.containers: Required value"),
        ({"containers": [{"image": "i"}]}, "spec.containers[0].name: Required value"),
        ({"containers": [{"name": "c"}]}, "spec.containers[0].image: Required value"),
        ({"containers": [container(env=[{"name": "a=b", "value": "x"}])]}, "printable ASCII characters other than '='"),
        (
            {
                "containers": [
                    container(
                        env=[{"name": "A", "value": "x", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
                    )
                ]
            },
            'spec.containers[0].env[0].valueFrom: Invalid value: "": may not be specified when `value` is not empty',
        ),
        (
            {"containers": [container(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nope"}}}])]},
            'fieldPath: Invalid value: "spec.nope": error converting fieldPath: field label not supported: spec.nope',
        ),
        (
            {"containers": [container(ports=[{"containerPort": 99999}])]},
            "spec.containers[0].ports[0].containerPort: Invalid value: 99999: must be between 1 and 65535, inclusive",
        ),
        (
            {"containers": [container(livenessProbe={"periodSeconds": 3})]},
            "spec.containers[0].livenessProbe: Required value: must specify a handler type",
        ),
        (
            {"containers": [container(livenessProbe={"tcpSocket": {"port": 1}})]},
            "spec.containers[0].livenessProbe.tcpSocket: Forbidden: the local cluster doesn't have it",
        ),
        (
            {"containers": [container(lifecycle={"preStop": {"httpGet": {"port": 1}}})]},
            "spec.containers[0].lifecycle.preStop.httpGet: Forbidden: the local cluster doesn't have it",
        ),
        (
            {"containers": [container(resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1"}})]},
            'requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
        ),
        (
            {"containers": [container(resources={"limits": {"gpu": "1"}})]},
            'limits[gpu]: Invalid value: "gpu": must be a standard resource type or fully qualified',
        ),
        (
            {"containers": [container(resources={"limits": {"memory": "-1"}})]},
            'limits[memory]: Invalid value: "-1": must be greater than or equal to 0',
        ),
        (
            {"containers": [container(volumeMounts=[{"name": "v", "mountPath": "/v"}])]},
            'spec.containers[0].volumeMounts[0].name: Not found: "v"',
        ),
        ({"volumes": [{"name": "v"}, {"name": "v"}]}, 'spec.volumes[1].name: Duplicate value: "v"'),
        (
            {"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/x"}}]},
            "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type",
        ),
        ({"volumes": [{"name": "v", "configMap": {}}]}, "spec.volumes[0].configMap.name: Required value"),
        (
            {"tolerations": [{"operator": "Equal", "value": "x"}]},
            "operator must be Exists when `key` is empty",
        ),
        (
            {"activeDeadlineSeconds": 0},
            "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647",
        ),
        ({"nodeSelector": {"a b": "c"}}, 'spec.nodeSelector: Invalid value: "a b": name part must consist of'),
        ({"hostname": "Not_A_Label"}, 'spec.hostname: Invalid value: "Not_A_Label": a lowercase RFC 1123 label'),
    ],
)
async def test_bad_spec_is_refused(spec: dict[str, Any], sentence: str) -> None:
    message = await refusal(await started(), "pods", pod(**spec))
    assert message.startswith('Pod "p" is invalid: ')
    assert sentence in message


@pytest.mark.parametrize(
    ("resources", "klass"),
    [
        ([{}], "BestEffort"),
        ([{"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}], "BestEffort"),
        ([{"requests": {"cpu": "1"}}], "Burstable"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}], "Guaranteed"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}, {}], "Burstable"),
    ],
)
def test_quality_of_service(resources: list[dict[str, Any]], klass: str) -> None:
    assert qos_class({"containers": [{"name": "c", "resources": each} for each in resources]}) == klass


async def test_image_may_change_and_containers_may_not() -> None:
    api = await started()
    await api.create("pods", pod(), "default")
    made = await api.modify("pods", "p", "default", lambda p: p["spec"]["containers"][0].update(image="i:2"))
    assert made["spec"]["containers"][0]["image"] == "i:2"
    with pytest.raises(ApiError, match="pod updates may not add or remove containers"):
        await api.modify("pods", "p", "default", lambda p: p["spec"]["containers"].append(container(name="d")))


async def test_binding_happens_once() -> None:
    api = await started()
    await api.create("pods", pod(), "default")
    binding = {"target": {"kind": "Node", "name": "n"}}
    await api.create("pods", binding, "default", name="p", subresource="binding")
    bound = await api.get("pods", "p", "default")
    assert bound["spec"]["nodeName"] == "n"
    assert [(c["type"], c["status"]) for c in bound["status"]["conditions"]] == [("PodScheduled", "True")]
    with pytest.raises(ApiError, match='pod p is already assigned to node "n"'):
        await api.create("pods", binding, "default", name="p", subresource="binding")


async def test_an_evicted_pod_says_so_until_it_is_gone() -> None:
    api = await started()
    await api.create("pods", pod(), "default")
    await api.create("pods", {"target": {"name": "n"}}, "default", name="p", subresource="binding")
    await api.modify("pods", "p", "default", lambda p: p["status"].update(phase="Running"), subresource="status")
    await api.create("pods", {}, "default", name="p", subresource="eviction")
    evicted = await api.get("pods", "p", "default")
    [condition] = [one for one in evicted["status"]["conditions"] if one["type"] == "DisruptionTarget"]
    assert (condition["status"], condition["reason"]) == ("True", "EvictionByEvictionAPI")
    assert evicted["metadata"]["deletionTimestamp"]

"""Workloads, Services, ConfigMaps, Secrets, claims, quotas and namespaces have defaults, refusals and columns."""

from __future__ import annotations

import json
from typing import Any

import pytest

from local.tests.unit.kinds.api import NOW, refusal, started
from trainmaster_local.apiserver.api import Api, ApiError
from trainmaster_local.apiserver.resources import ResourceType
from trainmaster_local.apiserver.schema.official import DEFINITION
from trainmaster_local.kinds import BUILTIN_TYPES

Object = dict[str, Any]


def workload(name: str = "w", labels: Object | None = None, **spec: Object | str | int) -> Object:
    template = {"metadata": {"labels": labels or {"app": "w"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}
    return {
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": "w"}}, "template": template, **spec},
    }


def service(**spec: Any) -> Object:
    return {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], **spec}}


@pytest.mark.parametrize("type_", BUILTIN_TYPES, ids=lambda type_: type_.qualified)
def test_every_type_has_its_official_schema(type_: ResourceType) -> None:
    assert type_.schema[DEFINITION].endswith(f".{type_.version}.{type_.kind}")
    assert type_.schema["type"] == "object"
    assert "metadata" in type_.schema["properties"]


@pytest.mark.parametrize(
    ("resource", "body", "sentence"),
    [
        ("statefulsets.apps", workload(podManagementPolicy="Some"), "must be 'OrderedReady' or 'Parallel'"),
        ("statefulsets.apps", workload(replicas=-1), "spec.replicas: Invalid value: -1: must be greater than or equal"),
        (
            "statefulsets.apps",
            workload(updateStrategy={"type": "OnDelete", "rollingUpdate": {"partition": 1}}),
            "spec.updateStrategy.rollingUpdate: Invalid value: "
            "{\"partition\":1}: only allowed for updateStrategy 'RollingUpdate'",
        ),
        ("statefulsets.apps", workload(selector={}), "spec.selector: Invalid value: {}: empty selector is invalid for"),
        (
            "statefulsets.apps",
            workload(persistentVolumeClaimRetentionPolicy={"whenDeleted": "Keep"}),
            'whenDeleted: Unsupported value: "Keep": supported values: "Retain", "Delete"',
        ),
        (
            "deployments.apps",
            workload(strategy={"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}),
            "maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0",
        ),
        ("deployments.apps", workload(labels={"app": "x"}), "`selector` does not match template `labels`"),
        (
            "deployments.apps",
            workload(strategy={"type": "Recreate"}),
            "spec.strategy.type: Forbidden: the local cluster",
        ),
        ("services", service(ports=[]), "spec.ports: Required value"),
        ("services", service(ports=[{"port": 0}]), "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535"),
        ("services", service(ports=[{"port": 1}, {"port": 2}]), "spec.ports[0].name: Required value"),
        ("services", service(type="Odd"), 'spec.type: Unsupported value: "Odd"'),
        ("services", service(type="NodePort"), "spec.type: Forbidden: the local cluster doesn't have it"),
        ("services", service(sessionAffinity="ClientIP"), "spec.sessionAffinity: Forbidden: the local cluster doesn't"),
        (
            "statefulsets.apps",
            workload(volumeClaimTemplates=[{"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]),
            "spec.volumeClaimTemplates: Forbidden: the local cluster doesn't have it",
        ),
        ("services", service(clusterIP="10.0.0.1"), "the provided network does not match the current range"),
        (
            "configmaps",
            {"metadata": {"name": "c"}, "data": {"a b": ""}},
            'data[a b]: Invalid value: "a b": a valid config',
        ),
        (
            "secrets",
            {"metadata": {"name": "s"}, "type": "kubernetes.io/tls"},
            "[data[tls.crt]: Required value, data[tls.key]: Required value]",
        ),
        ("secrets", {"metadata": {"name": "s"}, "data": {"k": "%%%"}}, "illegal base64 data at input byte 0"),
        (
            "persistentvolumeclaims",
            {"metadata": {"name": "p"}, "spec": {}},
            "spec.accessModes: Required value: at least 1 access mode is required, "
            "spec.resources[storage]: Required value",
        ),
        (
            "roles.rbac.authorization.k8s.io",
            {"metadata": {"name": "r"}, "rules": [{"verbs": ["get"], "apiGroups": [""]}]},
            "rules[0].resources: Required value: resource rules must supply at least one resource",
        ),
        (
            "leases.coordination.k8s.io",
            {"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 0}},
            "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
        ),
    ],
)
async def test_what_is_wrong_is_refused(resource: str, body: Object, sentence: str) -> None:
    assert sentence in await refusal(await started(), resource, body)


async def test_deployment_defaults() -> None:
    spec = (await (await started()).create("deployments.apps", workload(), "default"))["spec"]
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}}
    assert (spec["replicas"], spec["revisionHistoryLimit"], spec["progressDeadlineSeconds"]) == (1, 10, 600)


@pytest.mark.parametrize("resource", ["deployments.apps", "replicasets.apps"])
async def test_selector_stays(resource: str) -> None:
    api = await started()
    await api.create(resource, workload(), "default")

    def other(obj: Object) -> None:
        obj["spec"]["selector"] = {"matchLabels": {"app": "x"}}
        obj["spec"]["template"]["metadata"]["labels"] = {"app": "x"}

    with pytest.raises(ApiError, match=r"spec\.selector: Invalid value: .*: field is immutable"):
        await api.modify(resource, "w", "default", other)


async def test_services_get_addresses_of_their_own_and_keep_them() -> None:
    api = await started()
    made = [await api.create("services", {**service(), "metadata": {"name": name}}, "default") for name in "ab"]
    addresses = [each["spec"]["clusterIP"] for each in made]
    assert len(set(addresses)) == 2
    taken = await refusal(api, "services", service(clusterIP=addresses[0]))
    assert "provided IP is already allocated" in taken
    patched = await api.modify("services", "a", "default", lambda s: s["spec"].pop("clusterIP"))
    assert patched["spec"]["clusterIP"] == addresses[0]
    with pytest.raises(ApiError, match="may not change once set"):
        await api.modify("services", "a", "default", lambda s: s["spec"].update(clusterIP="None", clusterIPs=["None"]))


async def test_secret_takes_plain_strings() -> None:
    api = await started()
    made = await api.create("secrets", {"metadata": {"name": "s"}, "stringData": {"k": "v"}}, "default")
    assert (made["type"], made["data"]) == ("Opaque", {"k": "dg=="})
    assert "stringData" not in made


async def test_immutable_config_map_stays() -> None:
    api = await started()
    await api.create("configmaps", {"metadata": {"name": "c"}, "data": {"a": "1"}, "immutable": True}, "default")
    with pytest.raises(ApiError, match="data: Forbidden: field is immutable when `immutable` is set"):
        await api.modify("configmaps", "c", "default", lambda c: c["data"].update(a="2"))
    await api.modify("configmaps", "c", "default", lambda c: c["metadata"].update(labels={"a": "b"}))


async def test_claim_without_a_class_gets_the_default_one() -> None:
    api = await started()
    metadata = {"name": "quick", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    await api.create("storageclasses.storage.k8s.io", {"metadata": metadata, "provisioner": "local"})
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1024Mi"}}}
    made = await api.create("persistentvolumeclaims", {"metadata": {"name": "p"}, "spec": spec}, "default")
    assert made["spec"]["storageClassName"] == "quick"
    assert made["spec"]["resources"]["requests"]["storage"] == "1Gi"


async def _quota(api: Api, hard: Object) -> None:
    await api.create("resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": hard}}, "default")


def _asking(name: str, **requests: str) -> Object:
    container = {"name": "c", "image": "i:1", "resources": {"requests": requests, "limits": requests}}
    return {"metadata": {"name": name}, "spec": {"containers": [container]}}


async def test_quota_counts_pods_and_what_they_ask_for() -> None:
    api = await started()
    await _quota(api, {"pods": "2", "requests.cpu": "3"})
    await api.create("pods", _asking("a", cpu="2"), "default")
    assert await refusal(api, "pods", _asking("b", cpu="1500m")) == (
        'pods "b" is forbidden: exceeded quota: q, requested: requests.cpu=1500m, used: requests.cpu=2, '
        "limited: requests.cpu=3"
    )
    await api.create("pods", _asking("b", cpu="1"), "default")
    assert "exceeded quota: q, requested: pods=1" in await refusal(api, "pods", _asking("c", cpu="0"))


async def test_ended_pods_are_not_counted() -> None:
    api = await started()
    await _quota(api, {"pods": "1"})
    await api.create("pods", _asking("a"), "default")
    await api.modify("pods", "a", "default", lambda p: p["status"].update(phase="Succeeded"), subresource="status")
    await api.create("pods", _asking("b"), "default")


async def test_quota_of_cpu_wants_it_said() -> None:
    api = await started()
    await _quota(api, {"requests.cpu": "3"})
    assert await refusal(api, "pods", _asking("a")) == (
        'pods "a" is forbidden: failed quota: q: must specify requests.cpu for: c'
    )


async def test_rows_have_a_cell_for_every_column() -> None:
    api = await started()
    await api.create("statefulsets.apps", workload(replicas=2), "default")
    await api.create("deployments.apps", workload(), "default")
    await api.create("replicasets.apps", workload(), "default")
    await api.create("pods", _asking("a"), "default")
    for type_ in BUILTIN_TYPES:
        if type_.row is None:
            continue
        for obj in api.peek_all(type_.qualified):
            assert len(type_.row(obj, NOW)) == len(type_.columns), type_.qualified
            assert json.dumps(type_.row(obj, NOW))
    stateful = api.registry.by_name("statefulsets.apps")
    assert stateful.row is not None
    assert stateful.row(api.peek_all("statefulsets.apps")[0], NOW) == ["w", "0/2", "0s", "c", "i:1"]


async def test_namespace_ends_when_its_finalizer_goes() -> None:
    api = await started()
    made = await api.create("namespaces", {"metadata": {"name": "n"}})
    assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": "n"}
    assert (await api.delete("namespaces", "n"))["status"] == {"phase": "Terminating"}
    await api.update("namespaces", {"metadata": {"name": "n"}, "spec": {}}, name="n", subresource="finalize")
    assert api.peek("namespaces", "n") is None
    with pytest.raises(ApiError, match="this namespace may not be deleted"):
        await api.delete("namespaces", "kube-system")

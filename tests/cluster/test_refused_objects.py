"""An API server refuses objects that don't fit their type, and answers text of every kind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from tests.cluster.operator_under_test import install_crd
from trainmaster.client import JobClient
from trainmaster_local.testing.clusters import Cluster
from trainmaster_operator.controller.apiserver.client import KubernetesCluster
from trainmaster_operator.controller.apiserver.cluster import STATEFUL_SETS, whole
from trainmaster_operator.controller.apiserver.connection import connect
from trainmaster_operator.controller.apiserver.errors import INVALID, Invalid

EMOJI = "\U0001f600 \u2028 \x85 \ufeff é"
MISTAKES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "env": ({"env": [{"name": "A", "value": 4}]}, {}),
    "enviroment": ({"enviroment": []}, {}),
    "nodeselector": ({}, {"nodeselector": {"a": "b"}}),
    "nodeSelector": ({}, {"nodeSelector": {"a": 3}}),
    "tolerations": ({}, {"tolerations": {"key": "x"}}),
    "quantity": ({}, {"volumes": [{"name": "d", "emptyDir": {"sizeLimit": "10GB"}}]}),
}


def stateful_set(
    container: Mapping[str, Any] | None = None, pod: Mapping[str, Any] | None = None, **metadata: Any
) -> dict[str, Any]:
    worker = {"name": "worker", "image": "example.com/x:1", **(container or {})}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [worker], **(pod or {})}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "set", **metadata},
        "spec": {"replicas": 0, "serviceName": "set", "selector": {"matchLabels": {"a": "b"}}, "template": template},
    }


def connected(cluster: Cluster, work: Callable[[KubernetesCluster], Awaitable[None]]) -> None:
    async def main() -> None:
        api = KubernetesCluster(await connect(str(cluster.kubeconfig), None))
        try:
            await work(api)
        finally:
            await api.close()

    asyncio.run(main())


@pytest.mark.parametrize("name", MISTAKES)
def test_an_object_that_doesnt_fit_its_type_is_refused_and_not_tried_again(cluster: Cluster, name: str) -> None:
    mistake = stateful_set(*MISTAKES[name])

    async def work(api: KubernetesCluster) -> None:
        with pytest.raises(Invalid) as refused:
            await api.create(STATEFUL_SETS, cluster.namespace, mistake)
        check(refused.value)
        made = await api.create(STATEFUL_SETS, cluster.namespace, stateful_set())
        with pytest.raises(Invalid) as refused:
            await api.apply(STATEFUL_SETS, cluster.namespace, "set", mistake)
        check(refused.value)
        live = await api.get(STATEFUL_SETS, cluster.namespace, "set")
        assert live["metadata"]["uid"] == made["metadata"]["uid"]

    def check(error: Invalid) -> None:
        assert error.reason == INVALID
        assert ("a quantity in it" if name == "quantity" else name) in error.message
        assert not any(of_go in error.message for of_go in ("Go struct", "valueUnstructured", "typed patch", "regular"))

    connected(cluster, work)


def test_text_of_every_kind_arrives_as_it_was_written(cluster: Cluster) -> None:
    annotations = {"text": EMOJI}
    wanted = stateful_set({"args": [EMOJI], "env": [{"name": "A", "value": EMOJI}]}, annotations=annotations)

    async def work(api: KubernetesCluster) -> None:
        made = await api.create(STATEFUL_SETS, cluster.namespace, stateful_set())
        written = await api.apply(STATEFUL_SETS, cluster.namespace, "set", wanted)
        assert written["metadata"]["uid"] == made["metadata"]["uid"]
        read = await api.get(whole(STATEFUL_SETS), cluster.namespace, "set")
        container = read["spec"]["template"]["spec"]["containers"][0]
        assert (container["args"], container["env"][0]["value"]) == ([EMOJI], EMOJI)
        assert read["metadata"]["annotations"]["text"] == EMOJI

    connected(cluster, work)


def test_text_of_every_kind_arrives_from_the_client_as_it_was_written(cluster: Cluster) -> None:
    install_crd(cluster)
    client = JobClient(namespace=cluster.namespace, kubeconfig=str(cluster.kubeconfig))
    spec = {"workers": 1, "training": {"text": EMOJI}, "args": [EMOJI], "runPolicy": {"suspend": True}}
    for replace in (False, True):
        client.submit({"metadata": {"name": "text"}, "spec": spec}, replace=replace)
        stored = cluster.get("dtj", "text")["spec"]
        assert (stored["training"], stored["args"]) == ({"text": EMOJI}, [EMOJI])

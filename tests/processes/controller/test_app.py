"""`app`, `wiring`, `watching`: the whole operator runs against a scripted API server, and makes up for what watches
lose.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.processes.controller.fake_http import FakeHttp, kubeconfig, serving
from tests.processes.controller.hostile_server import answering, hostile
from tests.unit.controller import builders as b
from tests.unit.controller.fake_cluster import FakeCluster
from tests.unit.controller.polling import until
from trainmaster_operator.controller.apiserver.client import KubernetesCluster
from trainmaster_operator.controller.apiserver.cluster import JOBS, LEASES, PODS, STATEFUL_SETS, RawObject
from trainmaster_operator.controller.apiserver.connection import ConnectionSettingsError, connect
from trainmaster_operator.controller.apiserver.errors import Deposed, Forbidden
from trainmaster_operator.controller.app import Operator, OperatorError
from trainmaster_operator.controller.settings import OperatorSettings

ALONE = OperatorSettings(leader_elect=False, health_port=0, health_host="127.0.0.1")
# The lease is renewed often, and lasts longer than a loaded machine ever delays a renewal.
LED = replace(ALONE, leader_elect=True, lease_seconds=60.0, renew_seconds=50.0, retry_seconds=0.05)


class World:
    def __init__(self, http: FakeHttp, operator: Operator, task: asyncio.Task[None], stop: asyncio.Event) -> None:
        self.http, self.operator, self.task, self.stop = http, operator, task, stop
        self.cluster = http.cluster

    def has(self, plural: str, name: str = "bert", namespace: str = b.NAMESPACE) -> bool:
        return (plural, namespace, name) in self.cluster.objects

    def phase(self) -> str | None:
        found = self.cluster.objects.get((JOBS.plural, b.NAMESPACE, "bert"))
        return str(found["status"].get("phase")) if found else None

    async def watched(self) -> None:
        """Waits until kopf's watches are open; the lists find what happens before."""
        await until(lambda: len(self.http.watches) >= 5)


@asynccontextmanager
async def running(
    folder: Path, cluster: FakeCluster | None = None, settings: OperatorSettings = ALONE
) -> AsyncIterator[World]:
    async with serving(cluster or FakeCluster()) as http:
        settings = replace(settings, kubeconfig=kubeconfig(folder, http.url))
        operator, stop = Operator(settings, b.children_decider), asyncio.Event()
        task = asyncio.create_task(operator.run(stop))
        ready = asyncio.create_task(operator.ready.wait())
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED, timeout=30)
        ready.cancel()
        try:
            yield World(http, operator, task, stop)
        finally:
            stop.set()
            await asyncio.wait_for(task, 30)


def take_lease(cluster: FakeCluster) -> None:
    """Takes the lease as another operator would: with its own version, so that a concurrent renewal doesn't undo it."""
    lease = copy.deepcopy(cluster.objects["leases", "trainmaster-system", "trainmaster-operator"])
    lease["spec"]["holderIdentity"] = "another"
    cluster.put(LEASES, lease)


async def test_a_job_becomes_its_children_and_its_pods_are_seen(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        await world.watched()
        world.cluster.put(JOBS, b.job())
        await until(lambda: world.has("statefulsets") and world.has("services"))
        world.cluster.put(PODS, b.pod(0))
        world.cluster.put(PODS, b.pod(1))
        await until(lambda: world.phase() == "Running")
        job = world.cluster.objects[JOBS.plural, b.NAMESPACE, "bert"]
        assert "finalizers" not in job["metadata"]
        assert "annotations" not in job["metadata"]


async def test_a_user_without_a_name_watches_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's image may have no such user in /etc/passwd."""

    def nobody(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    async with running(tmp_path) as world:
        await world.watched()


async def test_jobs_from_before_the_operator_started_are_found(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.put(JOBS, b.job())
    async with running(tmp_path, cluster) as world:
        await until(lambda: world.has("statefulsets"))


async def test_large_jobs_are_read_one_by_one_and_become_their_children(tmp_path: Path) -> None:
    """Lists and watches leave out their specs, because 100 of the largest would take up to 3 GB of Python objects."""
    cluster = FakeCluster()
    training = {"data": [{"a": n} for n in range(1000)]}
    for n in range(20):
        cluster.put(JOBS, b.job(f"large-{n}", uid=f"uid-{n}", training=training))
    async with running(tmp_path, cluster) as world:
        await world.watched()
        await until(lambda: all(world.has("statefulsets", f"large-{n}") for n in range(20)))


async def test_an_expired_watch_is_listed_anew_and_a_deletion_that_it_lost_is_found(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        await world.watched()
        world.cluster.put(JOBS, b.job())
        await until(lambda: world.has("statefulsets"))
        world.cluster.remove(STATEFUL_SETS, b.NAMESPACE, "bert", publish=False)
        world.http.expire()
        await until(lambda: world.has("statefulsets"))


async def test_an_error_in_a_watch_starts_watching_again_and_keeps_what_is_known(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        await world.watched()
        world.cluster.put(JOBS, b.job())
        await until(lambda: world.has("statefulsets"))
        applied = world.cluster.calls["create", "StatefulSet"]
        world.http.watches.clear()
        world.http.break_watches()
        await world.watched()
        world.cluster.put(PODS, b.pod(0))
        world.cluster.put(PODS, b.pod(1))
        await until(lambda: world.phase() == "Running")
        assert world.cluster.calls["create", "StatefulSet"] == applied


async def test_a_custom_resource_that_was_deleted_and_installed_again_is_watched_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with running(tmp_path) as world:
        await world.watched()
        world.http.crd_installed = False
        world.http.break_watches()
        await until(lambda: "aren't served; install it: trainmaster crd" in caplog.text, 30)
        world.http.watches.clear()
        world.http.crd_installed = True
        await until(lambda: world.http.watches.get(JOBS.plural, 0) >= 1, 30)
        world.cluster.put(JOBS, b.job())
        await until(lambda: world.has("statefulsets"))


async def test_a_custom_resource_that_was_gone_just_when_kopf_looked_is_watched_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kopf looks only once for the served types, and would wait forever."""
    monkeypatch.setattr("trainmaster_operator.controller.watching.watcher.LIST_SECONDS", 0.5)
    async with serving(FakeCluster()) as http:
        http.crd_discovered = False
        settings = replace(ALONE, kubeconfig=kubeconfig(tmp_path, http.url))
        operator, stop = Operator(settings, b.children_decider), asyncio.Event()
        task = asyncio.create_task(operator.run(stop))
        # By the start, and by the check whether the type is served before kopf begins.
        await until(lambda: http.lists.get(JOBS.plural, 0) >= 2)
        await asyncio.sleep(0.5)
        assert http.watches == {}
        http.crd_discovered = True
        await until(lambda: http.watches.get(JOBS.plural, 0) >= 1, 30)
        stop.set()
        await asyncio.wait_for(task, 30)


async def test_dropped_connections_lose_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        await world.watched()
        for _ in range(3):
            world.http.drop_connections()
            await asyncio.sleep(0.05)
        world.cluster.put(JOBS, b.job())
        await until(lambda: world.has("statefulsets"))


async def test_a_namespace_that_appears_later_is_served_and_others_are_not(tmp_path: Path) -> None:
    async with running(tmp_path, settings=replace(ALONE, namespaces=("team-a", "not-yet"))) as world:
        await until(lambda: world.http.watches.get("pods", 0) >= 2)
        foreign = b.job()
        foreign["metadata"]["namespace"] = "team-b"
        world.cluster.put(JOBS, foreign)
        later = b.job(uid="22222222-2222-2222-2222-222222222222")
        later["metadata"]["namespace"] = "not-yet"
        world.cluster.put(JOBS, later)
        await until(lambda: world.has("services", namespace="not-yet"))
        assert not world.has("services", namespace="team-b")


async def test_outside_of_a_cluster_the_metrics_take_a_free_port_on_loopback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running(tmp_path) as world:
        port = world.operator.port
        assert port not in (0, 8080) and f"Metrics on port {port} of 127.0.0.1." in caplog.text
        settings = replace(world.operator.settings, metrics_port=port)
        with pytest.raises(OperatorError) as raised:
            await asyncio.wait_for(Operator(settings, b.children_decider).run(asyncio.Event()), 30)
        assert str(raised.value) == (
            f"--metrics-port: {port} can't be listened on (Address already in use); choose another, or 0 for a free one"
        )


async def test_a_missing_custom_resource_is_waited_for_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainmaster_operator.controller.app.START_RETRY", 0.05)
    caplog.set_level(logging.WARNING)
    async with serving(FakeCluster()) as http:
        http.crd_installed = False
        settings = OperatorSettings(kubeconfig=kubeconfig(tmp_path, http.url), leader_elect=False)
        operator, stop = Operator(settings, b.children_decider), asyncio.Event()
        task = asyncio.create_task(operator.run(stop))
        await until(lambda: "The custom resource isn't installed; waiting for it." in caplog.text)
        http.crd_installed = True
        await asyncio.wait_for(operator.ready.wait(), 30)
        stop.set()
        await asyncio.wait_for(task, 30)


async def test_a_missing_permission_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainmaster_operator.controller.app.START_RETRY", 0.05)
    cluster = FakeCluster()
    message = 'pods is forbidden: User "op" cannot list resource "pods" in API group "" at the cluster scope'
    cluster.fail("list", "pods", Forbidden("list", message, status=403, reason="Forbidden"))
    async with running(tmp_path, cluster):
        assert f"A permission is missing; waiting for it: {message}" in caplog.text


async def test_a_cluster_that_is_not_there_is_reported_in_one_sentence(tmp_path: Path) -> None:
    settings = OperatorSettings(kubeconfig=kubeconfig(tmp_path, "http://127.0.0.1:1"), leader_elect=False)
    for leader_elect in (False, True):
        operator = Operator(replace(settings, leader_elect=leader_elect), b.children_decider)
        with pytest.raises(OperatorError, match=r"the cluster at http://127\.0\.0\.1:1 can't be used"):
            await asyncio.wait_for(operator.run(asyncio.Event()), 30)
    with pytest.raises(
        ConnectionSettingsError, match=r"doesn't exist; name a kubeconfig with --kubeconfig or KUBECONFIG"
    ):
        await Operator(replace(settings, kubeconfig="/nowhere"), b.children_decider).run(asyncio.Event())


async def test_probes_and_metrics_are_served(tmp_path: Path) -> None:
    async with running(tmp_path) as world, aiohttp.ClientSession() as session:
        probes, metrics = (f"http://127.0.0.1:{port}" for port in (world.operator.health_port, world.operator.port))
        await world.watched()
        world.cluster.put(JOBS, b.job())
        await until(lambda: world.has("statefulsets"))
        assert (await session.get(f"{probes}/healthz")).status == 200
        assert (await session.get(f"{probes}/readyz")).status == 200
        assert (await session.get(f"{probes}/metrics")).status == 404
        assert (await session.get(f"{metrics}/healthz")).status == 404
        text = await (await session.get(f"{metrics}/metrics")).text()
        assert 'trainmaster_jobs{phase="Starting"} 1.0' in text
        assert 'trainmaster_api_writes_total{kind="StatefulSet",verb="create"} 1.0' in text
        assert 'trainmaster_reconciles_total{result="ok"}' in text


async def test_metrics_that_require_a_token_are_shown_to_those_who_may_get_them(tmp_path: Path) -> None:
    def review_token(spec: dict[str, Any]) -> dict[str, Any]:
        known = spec["token"] in ("prometheus", "tenant")
        return {"authenticated": known, **({"user": {"username": spec["token"], "groups": ["g"]}} if known else {})}

    def review_access(spec: dict[str, Any]) -> dict[str, Any]:
        assert spec["nonResourceAttributes"] == {"path": "/metrics", "verb": "get"} and spec["groups"] == ["g"]
        return {"allowed": spec["user"] == "prometheus"}

    settings = replace(ALONE, metrics_require_token=True)
    async with running(tmp_path, settings=settings) as world, aiohttp.ClientSession() as session:
        page = f"http://127.0.0.1:{world.operator.port}/metrics"

        async def ask(token: str | None) -> tuple[int, str]:
            answer = await session.get(page, headers={"Authorization": f"Bearer {token}"} if token else {})
            return answer.status, await answer.text()

        status, text = await ask("prometheus")
        assert status == 503 and "The API server can't be asked" in text
        world.http.reviews |= {"tokenreviews": review_token, "subjectaccessreviews": review_access}
        assert "trainmaster_leader 1.0" in (await ask("prometheus"))[1]
        status, text = await ask(None)
        assert status == 401 and text.startswith("Send a token of Kubernetes")
        assert await ask("invented") == (401, "The API server doesn't know this token.\n")
        status, text = await ask("tenant")
        assert status == 403 and text.startswith("tenant may not get /metrics: a ClusterRole")
        assert (await session.get(f"http://127.0.0.1:{world.operator.health_port}/healthz")).status == 200


async def test_a_history_that_never_answers_holds_up_nothing(tmp_path: Path) -> None:
    async with hostile(answering()) as history:
        settings = replace(ALONE, history_url=history.url, history_seconds=0.5)
        async with running(tmp_path, settings=settings) as world:
            await world.watched()
            world.cluster.put(JOBS, b.job())
            await until(lambda: world.has("statefulsets") and bool(history.heads))
            world.cluster.put(PODS, b.pod(0))
            world.cluster.put(PODS, b.pod(1))
            await until(lambda: world.phase() == "Running")
            stopped = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - stopped < 15.0
        assert history.heads[0].startswith("POST /v1/records ")


async def test_of_two_operators_one_works_and_the_other_takes_over(tmp_path: Path) -> None:
    cluster = FakeCluster()
    async with running(tmp_path, cluster, LED) as first:
        settings = replace(first.operator.settings)
        second, stop = Operator(settings, b.children_decider), asyncio.Event()
        task = asyncio.create_task(second.run(stop))
        await asyncio.sleep(0.3)
        assert not second.ready.is_set()
        first.stop.set()
        await asyncio.wait_for(second.ready.wait(), 30)
        cluster.put(JOBS, b.job())
        await until(lambda: first.has("statefulsets"))
        stop.set()
        await asyncio.wait_for(task, 30)


async def test_a_leader_keeps_its_lease_while_it_waits_for_the_custom_resource(tmp_path: Path) -> None:
    """Otherwise another operator would lead as well, once the resource is installed."""
    async with serving(FakeCluster()) as http:
        http.crd_installed = False
        settings = replace(LED, kubeconfig=kubeconfig(tmp_path, http.url))
        operator, stop = Operator(settings, b.children_decider), asyncio.Event()
        task = asyncio.create_task(operator.run(stop))
        place = ("leases", "trainmaster-system", "trainmaster-operator")
        await until(lambda: place in http.cluster.objects)
        first = http.cluster.objects[place]["spec"]["renewTime"]
        await until(lambda: bool(http.cluster.objects[place]["spec"]["renewTime"] > first))
        assert not operator.ready.is_set()
        take_lease(http.cluster)
        with pytest.raises(OperatorError, match="the lease was lost"):
            await asyncio.wait_for(task, 30)


async def test_a_lost_lease_ends_a_write_that_is_under_way_and_nothing_is_written_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers get no time to finish their pass then, because it would run beside another leader's."""
    monkeypatch.setattr("trainmaster_operator.controller.app.STOP_SECONDS", 3600.0)
    cluster = FakeCluster()
    begun, ended, patch = asyncio.Event(), asyncio.Event(), cluster.patch

    async def never(*arguments: Any, **options: Any) -> RawObject:
        begun.set()
        try:
            await asyncio.Event().wait()
            return await patch(*arguments, **options)
        finally:
            ended.set()

    monkeypatch.setattr(cluster, "patch", never)
    with pytest.raises(OperatorError, match="the lease was lost"):
        async with running(tmp_path, cluster, LED) as world:
            cluster.put(JOBS, b.job())
            await asyncio.wait_for(begun.wait(), 30)
            take_lease(cluster)
            await asyncio.wait({world.task}, timeout=30)
            assert world.task.done()
            # The connection is closed, so the server drops the request as well.
            await asyncio.wait_for(ended.wait(), 30)
    created = [name for verb, _, name in cluster.order if verb == "create"]
    assert created == ["trainmaster-operator", "trainmaster-signing-keys"], "as it began to lead, and nothing since"


async def test_a_write_is_not_sent_once_the_lease_is_over(tmp_path: Path) -> None:
    async with serving(FakeCluster()) as http:
        cluster = KubernetesCluster(await connect(kubeconfig(tmp_path, http.url), None), may_write=lambda: False)
        job = http.cluster.put(JOBS, b.job())
        where, name = (b.NAMESPACE, "bert")
        assert (await cluster.get(JOBS, where, name))["metadata"]["uid"] == b.JOB_UID
        writes = (
            cluster.create(JOBS, where, job),
            cluster.replace(JOBS, where, name, job),
            cluster.apply(JOBS, where, name, job),
            cluster.patch(JOBS, where, name, {"status": {}}, status=True),
            cluster.delete(JOBS, where, name, uid=b.JOB_UID),
        )
        for write in writes:
            with pytest.raises(Deposed, match="the lease is over: another operator may lead"):
                await write
        with pytest.raises(Deposed):
            async with cluster.pod_proxy("POST", where, "bert-0", 8472, "/v1/assignment", headers={}, body=b"{}"):
                pytest.fail("sent")
        await cluster.close()
        assert [verb for verb, _, _ in http.cluster.order] == ["get"]


async def test_an_operator_that_loses_its_lease_ends(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="the lease was lost"):
        async with running(tmp_path, settings=LED) as world:
            take_lease(world.cluster)
            await asyncio.wait({world.task}, timeout=30)

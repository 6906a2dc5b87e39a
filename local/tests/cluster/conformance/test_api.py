"""102 requests that a Kubernetes 1.36 answered are replayed in order against the cluster under test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from local.tests.cluster.conformance.cluster_under_test import skip_unless_recorded, target
from local.tests.cluster.conformance.replay import Case, Replay, compare, load

pytestmark = pytest.mark.asyncio(loop_scope="module")

CASES = load()

# The answer depends on controllers and the scheduler, which a kube-apiserver alone lacks.
CONTROLLERS = frozenset(
    (
        "pod: the scheduler's condition without nodes",
        "StatefulSet's pod with ordinals.start: labels, hostname, subdomain, owner",
        "table of pods",
        "table of StatefulSets",
        "StatefulSet: status",
        "StatefulSet: template patched",
        "StatefulSet: status after a template patch under OnDelete",
        "it is collected within seconds",
        "delete in the foreground",
    )
)

# True only a moment later; the kube-apiserver's own controllers establish a definition.
EVENTUAL = CONTROLLERS | {"the CRD once established"}

# Here the ServiceAccount admission plugin adds to the pod; a kube-apiserver alone is started without it.
ADMITTED = frozenset(("pod: created with defaults",))
# The recorder's scheduler wrote this about a pod; other clusters have nodes that the pod doesn't fit.
NO_NODES = "no nodes available to schedule pods"

# Seconds; controllers react a moment after a change.
PATIENCE = 30.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replay(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Replay]:
    async with (
        target(request, tmp_path_factory.mktemp("conformance")) as cluster,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=cluster.tls)) as session,
    ):
        replay = Replay(cluster.server, cluster.headers, session, cluster.controllers)
        skip_unless_recorded((await replay.request("GET", "/version")).body)
        yield replay


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
async def test_answers_as_kubernetes(replay: Replay, case: Case) -> None:
    if case.title in CONTROLLERS and not replay.controllers:
        pytest.skip("a kube-apiserver alone runs no controllers")
    differences = await _differences(replay, case)
    if case.title in ADMITTED and not replay.controllers:
        # Requested all the same, because others come after it.
        pytest.skip("a kube-apiserver alone knows no service accounts")
    deadline = time.monotonic() + PATIENCE
    while differences and case.title in EVENTUAL and case.method == "GET" and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
        differences = await _differences(replay, case)
    assert differences == []


async def _differences(replay: Replay, case: Case) -> list[str]:
    found = compare(case, await replay.play(case))
    if not any(NO_NODES in difference for difference in found):
        return found
    nodes = (await replay.request("GET", "/api/v1/nodes?limit=1")).body["items"]
    return [difference for difference in found if not (nodes and NO_NODES in difference)]

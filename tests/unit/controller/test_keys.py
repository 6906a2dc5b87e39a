"""`keys` creates the operator's keys once and rotates them in two steps; forged annotations on pods are ignored."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.signer import FOREIGN, KEYS
from tests.unit.controller import builders as b
from tests.unit.controller.fake_cluster import FakeCluster
from tests.unit.controller.leaders.recorded_events import RecordedEvents
from tests.unit.controller.polling import until
from tests.unit.controller.world import KEY, snapshot_of
from trainmaster_operator.api.signing import SigningKeys
from trainmaster_operator.controller.apiserver.cluster import JOBS, PODS, SECRETS, STATEFUL_SETS
from trainmaster_operator.controller.apiserver.errors import AlreadyExists, Forbidden, NotFound, Unauthorized
from trainmaster_operator.controller.cache.store import Store
from trainmaster_operator.controller.keys import (
    MAX_KEYS,
    SECRET_NAME,
    AgentsSecrets,
    KeysError,
    agents_secret,
    keys_secret,
    knows_newest,
    load_keys,
    new_keys,
    parse_keys,
    pruned,
    rotated,
)
from trainmaster_operator.controller.leaders.streams import LeaderStreams
from trainmaster_operator.controller.leaders.targets import AgentAddress, StreamTarget
from trainmaster_operator.reconciling.observed.snapshot import PodView
from trainmaster_operator.wire.assignment import Assignment
from trainmaster_operator.wire.names import ASSIGNMENT_ANNOTATION, JOB_UID_LABEL
from trainmaster_operator.wire.signing import canonical
from trainmaster_operator.wire.values import ProtocolError

FORGED = 999


async def test_keys_are_made_at_the_first_start_and_read_at_the_next() -> None:
    cluster = FakeCluster()
    first = await load_keys(cluster, "sys", make_namespace=False)
    assert await load_keys(cluster, "sys", make_namespace=False) == first
    assert cluster.calls["create", "Secret"] == 1
    assert first != await load_keys(FakeCluster(), "sys", make_namespace=False), "each installation has its own"


async def test_of_two_that_start_at_once_both_have_the_same_keys() -> None:
    cluster = FakeCluster()
    others = keys_secret("sys", new_keys())
    create = cluster.create

    async def slower(*arguments: Any) -> Any:
        if ("secrets", "sys", SECRET_NAME) not in cluster.objects:
            cluster.put(SECRETS, others)
        return await create(*arguments)

    cluster.create = slower  # type: ignore[method-assign]
    assert await load_keys(cluster, "sys", make_namespace=False) == parse_keys(others)


async def test_a_missing_namespace_is_made_only_for_a_person_who_runs_the_operator_alone() -> None:
    cluster = FakeCluster()
    cluster.fail("create", "secrets", NotFound("post", 'namespaces "sys" not found'), times=1)
    with pytest.raises(KeysError, match="kubectl create namespace sys"):
        await load_keys(cluster, "sys", make_namespace=False)
    cluster.fail("create", "secrets", NotFound("post", 'namespaces "sys" not found'), times=1)
    cluster.fail("create", "namespaces", AlreadyExists("post", "there"), times=1)
    assert await load_keys(cluster, "sys", make_namespace=True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda data: data.pop("private-keys"), "data.private-keys: it is missing"),
        (lambda data: data.pop("agents-seed"), "data.agents-seed: it is missing"),
        (lambda data: data.update({"private-keys": "%%%"}), "data.private-keys: it is not text in base64"),
        (lambda data: data.update({"private-keys": ""}), "data.private-keys: 0 lines are not 1 to 4"),
        (
            lambda data: data.update({"private-keys": base64.b64encode(b"c2hvcnQ=\n").decode()}),
            "data.private-keys: a line is not 32 bytes in base64",
        ),
        (
            lambda data: data.update({"agents-seed": base64.b64encode(b"a b").decode()}),
            "data.agents-seed: 2 lines are not 1",
        ),
    ],
)
def test_a_damaged_secret_is_reported_in_one_sentence_without_what_it_holds(
    change: Callable[[dict[str, str]], None], sentence: str
) -> None:
    secret = keys_secret("sys", KEYS)
    change(secret["data"])
    with pytest.raises(KeysError) as damaged:
        parse_keys(secret)
    assert sentence in str(damaged.value) and "start the operator again" in str(damaged.value)
    assert "c2hvcnQ" not in str(damaged.value)


@given(st.dictionaries(st.sampled_from(["private-keys", "agents-seed"]), st.text() | st.none() | st.integers()))
def test_whatever_the_secret_holds_is_keys_or_damage(data: dict[str, Any]) -> None:
    try:
        parse_keys({"data": data})
    except KeysError as damaged:
        assert len(str(damaged)) < 400


def test_keys_are_in_no_repr() -> None:
    shown = repr(KEYS) + repr(KEYS.agents_secret("team"))
    for secret in (*KEYS.private, KEYS.agents_seed, KEYS.agents_secret("team").value.encode()):
        assert secret.decode() not in shown


def test_a_rotation_signs_with_both_keys_and_then_with_the_new_one() -> None:
    both = rotated(KEYS)
    new = pruned(both)
    text = both.sign(b.assignment())
    for keys in (KEYS, both, new):
        assert keys.read(text) == b.assignment()
    with pytest.raises(ProtocolError):
        KEYS.read(new.sign(b.assignment()))
    assert both.job_token("team", "uid") == KEYS.job_token("team", "uid"), "pods that run keep their token"
    while len(both.private) < MAX_KEYS:
        both = rotated(both)
    with pytest.raises(KeysError, match="prune them first"):
        rotated(both)


def test_a_pod_of_before_the_rotation_is_known_by_its_environment() -> None:
    def pod(keys: str | None) -> dict[str, Any]:
        env = [] if keys is None else [{"name": "TRAINMASTER_PUBLIC_KEYS", "value": keys}]
        return {"spec": {"containers": [{"name": "sidecar"}, {"name": "worker", "env": env}]}}

    both = rotated(KEYS)
    assert not knows_newest(pod(KEYS.public_keys), both)
    assert knows_newest(pod(both.public_keys), both)
    assert knows_newest(pod(None), both)


@pytest.mark.parametrize("keys", [KEYS, FOREIGN, None])
def test_only_what_these_keys_have_signed_is_read(keys: SigningKeys | None) -> None:
    assignment = b.assignment(3)
    text = canonical(assignment.to_wire()) if keys is None else keys.sign(assignment)
    if keys is KEYS:
        assert KEYS.read(text) == assignment
        assert KEYS.read(text) is KEYS.read(text), "the pods of a job share it"
        edited = {**json.loads(text), "attempt": 4}
        text = json.dumps(edited)
    with pytest.raises(ProtocolError):
        KEYS.read(text)


@given(st.binary(max_size=60) | st.text(max_size=60) | st.recursive(st.none(), lambda inner: st.lists(inner)))
def test_no_annotation_raises_anything_else(value: object) -> None:
    for text in (value, json.dumps({"signatures": str(value)}), json.dumps({"signatures": {"x": str(value)}})):
        with pytest.raises(ProtocolError):
            KEYS.read(text)


def stored(annotation: str, *, template: str | None = None, **labels: str) -> Store:
    """Returns a store with a job at attempt 1. Somebody has put these annotations on its pod and StatefulSet."""
    store = Store(lambda _: None, KEYS)
    for resource, raw in ((JOBS, b.job()), (STATEFUL_SETS, b.child("StatefulSet")), (PODS, b.pod(0))):
        raw = copy.deepcopy(raw)
        raw["metadata"]["resourceVersion"] = "1"
        if resource == PODS:
            raw["metadata"]["annotations"] = {ASSIGNMENT_ANNOTATION: annotation}
            raw["metadata"]["labels"].update(labels)
        elif resource == STATEFUL_SETS:
            raw["metadata"].setdefault("uid", "set-bert")
            raw["spec"]["template"] = {"metadata": {"annotations": {ASSIGNMENT_ANNOTATION: template or annotation}}}
        store.upsert(resource, raw)
    return store


def seen(store: Store) -> list[Assignment | None]:
    found = snapshot_of(store)
    pods: tuple[PodView, ...] = found.observed.pods
    return [*(pod.assignment for pod in pods), *(child.assignment for child in found.observed.children)]


def test_an_annotation_that_the_operator_has_signed_counts() -> None:
    assert seen(stored(KEYS.sign(b.assignment(7)))) == [b.assignment(7), b.assignment(7)]


@pytest.mark.parametrize(
    "forged",
    [
        canonical(b.assignment(FORGED).to_wire()),
        FOREIGN.sign(b.assignment(FORGED)),
        json.dumps({**json.loads(KEYS.sign(b.assignment(7))), "attempt": FORGED}),
        json.dumps({**json.loads(KEYS.sign(b.assignment(7))), "attempt": 2**53}),
    ],
)
def test_a_forged_annotation_locks_no_job_at_an_attempt_that_nobody_counted(forged: str) -> None:
    """If a status was lost, the operator holds the highest attempt in the annotations and opens the next one."""
    assert seen(stored(forged)) == [None, None]


def test_what_was_signed_for_another_job_counts_for_that_job_only() -> None:
    other = KEYS.sign(b.assignment(FORGED, uid="another-uid"))
    assert seen(stored(other)) == [None, None]
    assert seen(stored(other, **{JOB_UID_LABEL: "another-uid"})) == [None, None], "labels say nothing"


async def test_a_namespace_gets_its_secret_once_and_by_create_alone() -> None:
    cluster = FakeCluster()
    secrets = AgentsSecrets(cluster, KEYS)
    for namespace in ("a", "a", "b"):
        await secrets.make(namespace)
    await AgentsSecrets(cluster, KEYS).make("a")
    assert cluster.calls["create", "Secret"] == 3, "a restart tries once more, and finds it there"
    assert [call for call in cluster.calls if call[1] == "Secret"] == [("create", "Secret")]
    made = agents_secret("a", KEYS)
    assert (made["immutable"], made["type"]) == (True, "trainmaster.dev/agents")
    assert made["metadata"]["name"] != agents_secret("b", KEYS)["metadata"]["name"]
    assert made["data"] != agents_secret("b", KEYS)["data"]


async def test_a_secret_that_is_refused_costs_the_fast_way_only(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster()
    cluster.fail("create", "secrets", Forbidden("create", "no right", status=403), times=2)
    secrets = AgentsSecrets(cluster, KEYS)
    for _ in range(3):
        await secrets.make("a")
    assert caplog.text.count("until their Secret can be made") == 1
    assert ("secrets", "a", KEYS.agents_secret("a").name) in cluster.objects


async def test_a_secret_that_is_gone_is_made_again_once_an_agent_knows_no_token() -> None:
    """The namespace was deleted with its contents, and created again, while the operator ran."""
    cluster = FakeCluster()
    store = Store(lambda _: None, KEYS)
    secrets = AgentsSecrets(cluster, KEYS)
    await secrets.make(b.NAMESPACE)
    place = ("secrets", b.NAMESPACE, KEYS.agents_secret(b.NAMESPACE).name)
    del cluster.objects[place]
    await secrets.make(b.NAMESPACE)
    assert place not in cluster.objects
    asked: list[str] = []

    class Reach:
        @asynccontextmanager
        async def open(self, *_: Any) -> AsyncIterator[None]:
            asked.append("")
            raise Unauthorized("GET /v1/stream", "the header Trainmaster-Token is missing or wrong", status=401)
            yield

        async def close(self) -> None:
            return None

    streams = LeaderStreams(Reach(), store, KEYS, RecordedEvents(on_unauthorized=secrets.doubt))  # type: ignore[arg-type]
    agent = AgentAddress(b.NAMESPACE, "bert-0", "u", 0, "127.0.0.1")
    streams.watch(KEY, StreamTarget(KEY, b.JOB_UID, 1, (agent,), {0: 1}))
    await until(lambda: len(asked) > 1)
    await streams.close()
    await secrets.make(b.NAMESPACE)
    assert place in cluster.objects


def test_tokens_differ_by_namespace_and_job() -> None:
    tokens = {KEYS.job_token(namespace, uid) for namespace in "ab" for uid in "12"}
    assert len(tokens) == 4

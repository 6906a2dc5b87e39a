"""An operator counts as silent if its Lease is old and doesn't change, and if nothing newer is in a job's status."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.client.fakes import FakeTransport, job
from trainmaster.client import operator_sign as module
from trainmaster.client.blocking import Blocking, run
from trainmaster.client.errors import JobNotFound, NotAllowed
from trainmaster.client.operator_sign import OperatorSign, Silence, clock
from trainmaster_operator.api.times import to_micro_text

LEASE = "GET /apis/coordination.k8s.io/v1/namespaces/{}/leases/trainmaster-operator"
DEPLOYMENTS = "GET /apis/apps/v1/deployments"


def lease(age: float) -> dict[str, Any]:
    return {"kind": "Lease", "spec": {"renewTime": to_micro_text(time.time() - age)}}


def looked(answers: dict[str, Any], raw: dict[str, Any] | None = None) -> Silence | None:
    given = {LEASE.format("trainmaster-system"): JobNotFound("no"), LEASE.format("default"): JobNotFound("no")}
    transport = FakeTransport({**given, DEPLOYMENTS: NotAllowed("no"), **answers})
    return run(OperatorSign(Blocking(transport)).look_twice([raw or job(phase="Running")]))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONFIRM_SECONDS", 0.01)


def test_an_operator_whose_lease_stays_old_is_silent_since_then() -> None:
    for place in ("trainmaster-system", "default"):
        found = looked({LEASE.format(place): lease(720)})
        assert found is not None and timedelta(seconds=719) < datetime.now(UTC) - found.since < timedelta(seconds=730)
    assert looked({LEASE.format("trainmaster-system"): lease(5)}) is None


def test_the_operator_is_found_where_its_deployment_is() -> None:
    deployments = {"items": [{"metadata": {"namespace": "ml"}}]}
    assert looked({DEPLOYMENTS: deployments, LEASE.format("ml"): lease(720)}) is not None
    assert looked({DEPLOYMENTS: deployments, LEASE.format("ml"): lease(1)}) is None


@pytest.mark.parametrize("answer", [NotAllowed("no"), JobNotFound("no"), {"spec": {}}, {"spec": {"renewTime": 7}}])
def test_nothing_is_claimed_where_no_lease_can_be_read(answer: Any) -> None:
    assert looked({LEASE.format("trainmaster-system"): answer}) is None


def test_a_lease_that_changes_is_alive_whatever_the_viewers_clock_says() -> None:
    assert looked({LEASE.format("trainmaster-system"): [lease(720), lease(718)]}) is None


def test_a_status_that_was_written_later_is_a_sign_of_life() -> None:
    raw = job(phase="Running", progress={"reportedAt": to_micro_text(time.time())})
    assert looked({LEASE.format("trainmaster-system"): lease(720)}, raw) is None


def test_a_finished_job_needs_no_operator() -> None:
    assert looked({LEASE.format("trainmaster-system"): lease(720)}, job(phase="Succeeded")) is None


def test_the_sentence_has_the_local_time_and_the_age() -> None:
    now = datetime.now().astimezone().replace(hour=22, minute=13, second=0, microsecond=0)
    since = now - timedelta(minutes=12)
    assert Silence(since).sentence(now) == (
        f"The operator hasn't been seen since 22:01:00 {now:%Z} (12m ago): phases, steps and figures are as of then."
    )
    assert clock(now - timedelta(days=2), now).endswith(f" 22:13 {now:%Z} (2d ago)")

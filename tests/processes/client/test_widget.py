"""The live display follows a job in a thread of its own until it ends; without anywidget one sentence says so."""

from __future__ import annotations

import sys

import pytest

from tests.unit.client.fakes import FakeTransport, event, job
from trainmaster.client import ClientError, JobClient, JobHandle, NoCluster, watching

JOBS = "/apis/trainmaster.dev/v1alpha1/namespaces/default/distributedtrainingjobs"


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "REOPEN_SECONDS", 0.0)


def shown(*answers: object) -> str:
    """The page when the display has ended."""
    transport = FakeTransport({f"GET {JOBS}/reviews": [job(phase="Starting"), *answers]})
    transport.streams[JOBS] = [[event("MODIFIED", job(phase="Running", version="2"))]]
    widget = JobHandle(JobClient("default", transport=transport), "reviews").live()
    widget.thread.join(20)
    assert not widget.thread.is_alive()
    assert "model.get" in widget._esm
    return widget.html


def test_it_ends_with_the_job() -> None:
    assert "Succeeded" in shown(job(phase="Starting"), job(phase="Succeeded"))


def test_it_says_what_ended_it_otherwise() -> None:
    assert "<div>gone &lt;away&gt;</div>" in shown(job(phase="Starting"), NoCluster("gone <away>"))


def test_without_anywidget_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "trainmaster.client.notebook.widget", raising=False)
    handle = JobHandle(JobClient("default", transport=FakeTransport()), "reviews")
    with pytest.raises(
        ClientError, match=r"^The live display needs anywidget: pip install 'trainmaster\[notebook\]'\.$"
    ):
        handle.live()

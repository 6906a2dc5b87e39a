"""A request on behalf of a viewer carries the viewer's token and no other credentials."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainmaster.client import NoCluster, NotAllowed, NotKnown
from trainmaster.client import server as servers
from trainmaster.client.permission import REVIEWS, Access, Gate, is_allowed
from trainmaster.client.server import address_of, for_viewer

ADMIN = {"token": "the-administrator's", "client-certificate-data": "bm9uZQ==", "client-key-data": "bm9uZQ=="}


def _kubeconfig(folder: Path) -> str:
    path = folder / "config"
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "here", "user": "admin", "namespace": "team"}}],
                "clusters": [{"name": "here", "cluster": {"server": "http://127.0.0.1:8080/"}}],
                "users": [{"name": "admin", "user": ADMIN}],
            }
        ),
        encoding="utf-8",
    )
    return str(path)


def test_an_address_has_none_of_the_kubeconfigs_credentials(tmp_path: Path) -> None:
    server = address_of(_kubeconfig(tmp_path))
    assert (server.address, server.namespace, server.authorization()) == ("http://127.0.0.1:8080", "team", None)
    assert for_viewer(server, "a-viewer's").authorization() == "Bearer a-viewer's"
    assert server.authorization() is None


def test_a_pod_without_a_token_knows_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(servers, "SERVICE_ACCOUNT", tmp_path)
    with pytest.raises(NoCluster, match="No cluster is configured"):
        address_of()
    import certifi

    (tmp_path / "ca.crt").write_bytes(Path(certifi.where()).read_bytes())
    server = address_of()
    assert (server.address, server.authorization()) == ("https://10.0.0.1:443", None)
    (tmp_path / "ca.crt").rename(tmp_path / "authority.pem")
    monkeypatch.setenv("TRAINMASTER_API_SERVER_CA", str(tmp_path / "authority.pem"))
    assert address_of().address == server.address


class _ApiServer:
    def __init__(self, allowed: object) -> None:
        self.allowed = allowed
        self.asked: dict[str, Any] = {}

    async def request(self, method: str, path: str, *, body: Any, **_: Any) -> dict[str, Any]:
        assert (method, path) == ("POST", REVIEWS)
        self.asked = body
        return {**body, "status": {"allowed": self.allowed}}


@pytest.mark.parametrize(("answer", "may"), [(True, True), (False, False), (None, False), ("true", False)])
def test_only_what_is_allowed_is(answer: object, may: bool) -> None:
    server = _ApiServer(answer)
    asked = Access("get", "pods", "", namespace="team", subresource="log")
    assert asyncio.run(is_allowed(server, asked)) is may  # type: ignore[arg-type]
    attributes = {"verb": "get", "resource": "pods", "subresource": "log", "namespace": "team"}
    assert server.asked["spec"] == {"resourceAttributes": attributes}


class Reviewer:
    """Fakes an API server that allows everything or nothing."""

    def __init__(self) -> None:
        self.asked, self.allowed = 0, True

    async def request(self, *_: object, **__: object) -> dict[str, Any]:
        self.asked += 1
        return {"status": {"allowed": self.allowed}}


async def test_a_gate_remembers_an_answer_for_its_time_and_only_so_many() -> None:
    now, server, listing = [0.0], Reviewer(), Access("list")
    transport: Any = server
    gate = Gate(transport, allowed_seconds=30.0, refused_seconds=5.0, most=2, clock=lambda: now[0])
    assert await gate.allows(listing) and await gate.allows(listing)
    server.allowed = False
    assert server.asked == 1 and await gate.allows(listing)
    now[0] += 30.0
    assert not await gate.allows(listing) and not await gate.allows(listing) and server.asked == 2
    server.allowed = True
    assert await gate.allows(listing, fresh=True)
    server.allowed = False
    assert not await gate.allows(listing, fresh=True)
    server.allowed, now[0] = True, now[0] + 5.0
    assert await gate.allows(listing)
    for name in "abc":
        await gate.allows(Access("get", name=name))
    assert len(gate._answers) == 2
    server.allowed = False
    with pytest.raises(NotAllowed, match=r"^You may not get pods/log in namespace team\.$"):
        await gate.require(Access("get", "pods", "", namespace="team", subresource="log"))


async def test_a_gate_forgets_all_answers_about_a_user_who_isnt_known_any_more() -> None:
    server: Any = Reviewer()
    gate = Gate(server)
    assert await gate.allows(Access("list"))

    async def unknown(*_: object, **__: object) -> None:
        raise NotKnown("401")

    server.request, server.asked = unknown, 0
    with pytest.raises(NotKnown):
        await gate.allows(Access("watch"))
    with pytest.raises(NotKnown):
        await gate.allows(Access("list"))

"""Who asks in the name of a viewer sends the viewer's token and no credentials of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainmaster.client import NoCluster
from trainmaster.client import server as servers
from trainmaster.client.permission import REVIEWS, Access, is_allowed
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

"""The client uses the environment's proxy for the same addresses as kubectl."""

from __future__ import annotations

import pytest

from trainmaster.client.server import environment_proxy


@pytest.fixture(autouse=True)
def proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "proxy.corp:3128")


def test_the_proxy_is_the_one_of_the_addresss_scheme() -> None:
    assert environment_proxy("https://east:6443") == "http://proxy.corp:3128"
    assert environment_proxy("http://east:6443") is None
    assert environment_proxy("https://localhost:6443") is None
    assert environment_proxy("https://127.0.0.1:6443") is None


@pytest.mark.parametrize(
    ("rules", "address", "excepted"),
    [
        ("*", "https://east", True),
        ("corp", "https://api.corp", True),
        ("corp", "https://corp", True),
        ("corp", "https://anticorp", False),
        (".corp", "https://api.corp", True),
        (".corp", "https://corp", False),
        ("*.corp", "https://api.corp", True),
        ("api.corp:6443", "https://api.corp:6443", True),
        ("api.corp:6443", "https://api.corp", False),
        ("other, 10.0.0.0/8", "https://10.1.2.3:6443", True),
        ("10.0.0.0/8", "https://11.1.2.3", False),
        ("10.0.0.0/99,10.0.0.1", "https://10.0.0.1", True),
        ("fd00::/8", "https://[fd00::1]:6443", True),
        ("[fd00::1]:6443", "https://[fd00::1]:6443", True),
    ],
)
def test_no_proxy_is_read_as_kubectl_reads_it(
    monkeypatch: pytest.MonkeyPatch, rules: str, address: str, excepted: bool
) -> None:
    monkeypatch.setenv("NO_PROXY", rules)
    assert (environment_proxy(address) is None) == excepted

"""The client looks for the history in a fixed order, and sends the token that identifies the viewer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from trainmaster.client import InvalidRequest, NoCluster, NotAllowed, find_server
from trainmaster.client.history import FoundHistory, find_history, finding
from trainmaster.client.server import for_viewer
from trainmaster.client.transport import JSON, PASSED_ON, request_headers

HERE: dict[str, Any] = {"server": "http://127.0.0.1:8080"}
URL = "https://history.example.com/"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRAINMASTER_HISTORY", finding.ACCOUNT_VARIABLE, "KUBECONFIG", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)


def found(
    folder: Path, given: str | None = None, *, cluster: Any = HERE, user: Any = None, **options: Any
) -> FoundHistory:
    """Returns the history that the client finds with such a kubeconfig."""
    path = folder / "config"
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "ann", "namespace": "team"}}],
        "clusters": [{"name": "here", "cluster": cluster}],
        "users": [{"name": "ann", "user": {"token": "ann's"} if user is None else user}],
    }
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return find_history(given, find_server(str(path)), **options)


def extended(extension: Any) -> dict[str, Any]:
    """Returns a kubeconfig's cluster with our extension after another program's, as minikube writes it."""
    other = {"name": "cluster_info", "extension": {"provider": "minikube.sigs.k8s.io"}}
    return {**HERE, "extensions": [other, {"name": "trainmaster.dev/history", "extension": extension}]}


def headers(history: FoundHistory) -> tuple[str | None, str | None]:
    """Returns the Authorization header, and the header that the API server's proxy passes on."""
    sent = request_headers(history.server, JSON)
    return sent.get("Authorization"), sent.get(PASSED_ON)


def test_what_is_named_counts_then_the_environment_then_the_kubeconfig_then_the_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_kubeconfig = extended({"url": "http://of-kubeconfig"})
    assert (found(tmp_path).is_announced, found(tmp_path).server.address) == (True, "http://127.0.0.1:8080")
    assert found(tmp_path, cluster=of_kubeconfig).server.address == "http://of-kubeconfig"
    monkeypatch.setenv("TRAINMASTER_HISTORY", "http://of-environment/")
    assert found(tmp_path, cluster=of_kubeconfig).server.address == "http://of-environment"
    history = found(tmp_path, URL, cluster=of_kubeconfig)
    assert (history.server.address, history.is_announced) == ("https://history.example.com", False)
    assert history.server.namespace == "team"


def test_an_extension_survives_the_merging_of_kubeconfigs(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    clusters = [{"name": "here", "cluster": extended({"url": "http://kept"})}]
    first.write_text(yaml.safe_dump({"clusters": clusters, "users": [{"name": "ann", "user": {"token": "t"}}]}))
    context = {"name": "here", "context": {"cluster": "here", "user": "ann"}}
    later = [{"name": "here", "cluster": HERE}]
    second.write_text(yaml.safe_dump({"contexts": [context], "clusters": later, "current-context": "here"}))
    server = find_server(f"{first}:{second}")
    assert find_history(None, server).server.address == "http://kept"


@pytest.mark.parametrize("extension", [None, {}, {"url": ""}, {"url": 7}, {"url": "history:80"}, {"url": "file:///x"}])
def test_an_extension_without_an_address_is_refused(tmp_path: Path, extension: Any) -> None:
    with pytest.raises(NoCluster, match=r"extensions\[trainmaster.dev/history\]\.url: .*; give https://HOST\.$"):
        found(tmp_path, cluster=extended(extension))


@pytest.mark.parametrize("extensions", [7, [1], [{"name": "other"}], {"trainmaster.dev/history": 1}])
def test_strange_extensions_are_none_of_ours(tmp_path: Path, extensions: Any) -> None:
    assert found(tmp_path, cluster={**HERE, "extensions": extensions}).is_announced


@pytest.mark.parametrize("named", ["https://", "ftp://host", "http://a b", "http://h\x1b[2J"])
def test_what_is_no_address_is_refused(tmp_path: Path, named: str) -> None:
    with pytest.raises(NoCluster, match=r"^--history: .* is no address; give https://HOST"):
        found(tmp_path, named)


def test_a_file_is_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoCluster, match=r"^--history: '~/history\.db' is no address; give https://HOST"):
        found(tmp_path, "~/history.db")
    monkeypatch.setenv("TRAINMASTER_HISTORY", "/backup/history.db")
    with pytest.raises(NoCluster, match=r"^TRAINMASTER_HISTORY: '/backup/history\.db' is no address"):
        found(tmp_path)


def test_the_kubeconfigs_token_is_sent_and_passed_on(tmp_path: Path) -> None:
    for given in (None, URL):
        assert headers(found(tmp_path, given)) == ("Bearer ann's", "Bearer ann's")


def test_a_token_of_its_own_goes_to_the_history_alone(tmp_path: Path) -> None:
    assert headers(found(tmp_path, token="other\n")) == ("Bearer ann's", "Bearer other")
    assert headers(found(tmp_path, URL, token="other")) == ("Bearer other", "Bearer other")
    for token in ("", " ", "a\nb", "é"):
        with pytest.raises(InvalidRequest, match="token: is empty, or holds characters"):
            found(tmp_path, token=token)


@pytest.mark.parametrize("user", [{}, {"username": "ann", "password": "secret"}], ids=["nobody", "basic"])
@pytest.mark.parametrize("given", [None, URL])
def test_who_has_no_token_is_said_so(tmp_path: Path, user: Any, given: str | None) -> None:
    history = found(tmp_path, given, user=user)
    with pytest.raises(NotAllowed, match=r"and the kubeconfig's user has none .*: --service-account NAME"):
        headers(history)
    assert headers(found(tmp_path, given, user=user, token="t"))[1] == "Bearer t"


def test_a_token_that_is_renewed_in_its_file_is_followed(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n", encoding="utf-8")
    history = found(tmp_path, URL, user={"tokenFile": str(file)})
    file.write_text("second\n", encoding="utf-8")
    assert headers(history)[0] == "Bearer second"


def test_a_viewers_token_takes_the_place_of_the_servers(tmp_path: Path) -> None:
    history = find_history(None, for_viewer(found(tmp_path).server, "viewer's"))
    assert headers(history) == ("Bearer viewer's", "Bearer viewer's")


def test_nobody_reads_a_history_on_behalf_of_another(tmp_path: Path) -> None:
    from dataclasses import replace

    server = replace(found(tmp_path).server, acting_as="bob")
    with pytest.raises(InvalidRequest, match="can't be asked on behalf of others"):
        find_history(None, server)


def test_an_authority_is_a_file_with_a_certificate(tmp_path: Path) -> None:
    import certifi

    assert found(tmp_path, URL, authority=certifi.where()).server.tls is not None
    assert found(tmp_path, "http://plain").server.tls is None
    broken = tmp_path / "broken"
    broken.write_text("no certificate", encoding="utf-8")
    for authority, problem in ((str(broken), "certificate"), (str(tmp_path / "missing"), "is no file")):
        with pytest.raises(NoCluster, match=f"^--history-ca: .*{problem}"):
            found(tmp_path, URL, authority=authority)

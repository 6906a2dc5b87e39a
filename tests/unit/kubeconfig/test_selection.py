"""Any kubeconfig is read as kubectl reads it, or refused with a sentence that names the file and the field.

`kubeconfig.selection` writes these sentences. The official client's loader gets only files that passed.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kubernetes.client import Configuration
from kubernetes.config import load_kube_config_from_dict

from trainmaster_operator.kubeconfig import KubeconfigError, read_kubeconfig


def kubeconfig(**changed: Any) -> dict[str, Any]:
    """Returns a good kubeconfig with parts replaced."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "preferences": {},
        "current-context": "prod",
        "contexts": [{"name": "prod", "context": {"cluster": "east", "user": "ann", "namespace": "team"}}],
        "clusters": [{"name": "east", "cluster": {"server": "https://east:6443"}}],
        "users": [{"name": "ann", "user": {"token": "secret"}}],
        **changed,
    }


def with_cluster(**fields: Any) -> dict[str, Any]:
    return kubeconfig(clusters=[{"name": "east", "cluster": {"server": "https://east:6443", **fields}}])


def with_user(**fields: Any) -> dict[str, Any]:
    return kubeconfig(users=[{"name": "ann", "user": fields}])


def written(folder: Path, document: Any, name: str = "config") -> str:
    path = folder / name
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document), encoding="utf-8")
    return str(path)


def refusal(folder: Path, document: Any, context: str | None = None) -> str:
    """Returns the sentence, without the file at its beginning."""
    path = written(folder, document)
    with pytest.raises(KubeconfigError) as caught:
        read_kubeconfig(path, context)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.startswith(f"kubeconfig {path}: ")
    return sentence.removeprefix(f"kubeconfig {path}: ")


WRONG: dict[str, tuple[Any, str]] = {
    "broken YAML": ("a: [1\nb: 2", "not YAML at line 2, column 2: expected ',' or ']', but got ':'"),
    "a tab": ("a:\n\tb: 2", "not YAML at line 2, column 1: found character '\\t' that cannot start any token"),
    "a file of users": (
        "root:x:0:0:root:/root:/bin/bash\n",
        "holds no clusters, contexts and users; name a kubeconfig",
    ),
    "empty": ("", "is empty; name a kubeconfig with --kubeconfig or KUBECONFIG"),
    "nothing but a head": ({"apiVersion": "v1", "kind": "Config"}, "is empty; name a kubeconfig"),
    "another kind": ({"kind": "Pod"}, "kind: 'Pod' is no kubeconfig, whose kind is Config"),
    "contexts as a mapping": (kubeconfig(contexts={"prod": {}}), "contexts: is no list; give items with name and"),
    "a context without a name": (kubeconfig(contexts=[{"context": {}}]), "contexts[0]: has no name"),
    "a cluster that is text": (kubeconfig(clusters=[{"name": "a", "cluster": "b"}]), "clusters[a].cluster: is no map"),
    "no current context": (
        kubeconfig(**{"current-context": ""}),
        "current-context: is missing; give --context, or kubectl config use-context NAME (contexts: 'prod')",
    ),
    "a current context that is gone": (
        kubeconfig(**{"current-context": "old"}),
        "current-context: 'old' is not among its contexts: 'prod'",
    ),
    "a context without a cluster": (
        kubeconfig(contexts=[{"name": "prod", "context": {}}]),
        "contexts[prod].context.cluster: is missing; name a cluster for context 'prod'",
    ),
    "a cluster that is gone": (
        kubeconfig(clusters=None),
        "contexts[prod].context.cluster: 'east' is not among the clu",
    ),
    "a user that is gone": (kubeconfig(users=[]), "contexts[prod].context.user: 'ann' is not among the users: none"),
    "no server": (
        kubeconfig(clusters=[{"name": "east", "cluster": {}}]),
        "clusters[east].cluster.server: is missing; give https://HOST:PORT",
    ),
    "a server without a scheme": (with_cluster(server="east:6443"), "clusters[east].cluster.server: 'east:6443' is no"),
    "a port that is none": (
        with_cluster(server="https://east:99999"),
        "clusters[east].cluster.server: 'https://east:99",
    ),
    "a host that is none": (with_cluster(server="https://a..b"), "clusters[east].cluster.server: 'https://a..b' is no"),
    "a server with a space": (with_cluster(server="https://a b"), "clusters[east].cluster.server: 'https://a b' is no"),
    "a proxy without a scheme": (
        with_cluster(**{"proxy-url": "p:1"}),
        "clusters[east].cluster.proxy-url: 'p:1' is no a",
    ),
    "an authority that is no base64": (
        with_cluster(**{"certificate-authority-data": "LS0tLS1C%%"}),
        "clusters[east].cluster.certificate-authority-data: is not base64; copy it whole",
    ),
    "an authority cut off": (
        with_cluster(**{"certificate-authority-data": "LS0tLS1CR"}),
        "clusters[east].cluster.certif",
    ),
    "an authority that isn't there": (
        with_cluster(**{"certificate-authority": "/none/ca.crt"}),
        "clusters[east].cluster.certificate-authority: /none/ca.crt can't be read (No such file or directory)",
    ),
    "TLS neither on nor off": (
        with_cluster(**{"insecure-skip-tls-verify": "maybe"}),
        "clusters[east].cluster.insecure",
    ),
    "a certificate without a key": (
        with_user(**{"client-certificate-data": "QUFB"}),
        "users[ann].user: client-certificate and client-key belong together; give both",
    ),
    "a token with a line in it": (with_user(token="a\nb"), "users[ann].user.token: holds characters that no header"),
    "a token as a list": (with_user(token=["a"]), "users[ann].user.token: is no text; put it in quotes"),
    "a file of a token that isn't there": (
        with_user(tokenFile="/none"),
        "users[ann].user.tokenFile: /none can't be read",
    ),
    "a provider of before 1.26": (
        with_user(**{"auth-provider": {"name": "gcp"}}),
        "users[ann].user.auth-provider: 'gcp' is known no more (Kubernetes 1.26); use the exec plugin of your provider",
    ),
    "a plugin without a command": (
        with_user(exec={"apiVersion": "client.authentication.k8s.io/v1"}),
        "users[ann].user.exec.command: is missing; name the program that gives the credentials",
    ),
    "a plugin of no version": (with_user(exec={"command": "x"}), "users[ann].user.exec.apiVersion: None can't be used"),
    "arguments as text": (
        with_user(exec={"command": "x", "apiVersion": "client.authentication.k8s.io/v1", "args": "get-token"}),
        "users[ann].user.exec.args: is no list of texts; give the program's arguments one by one",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_thing_that_is_wrong_has_its_sentence(tmp_path: Path, name: str) -> None:
    document, sentence = WRONG[name]
    assert refusal(tmp_path, document).startswith(sentence)


def test_a_token_is_never_quoted(tmp_path: Path) -> None:
    for user in ({"token": "hush\nhush"}, {"client-key-data": "hush%"}, {"password": "hush\x01", "username": "ann"}):
        assert "hush" not in refusal(tmp_path, with_user(**user))


def test_a_context_that_is_named_and_not_there_comes_with_those_that_are(tmp_path: Path) -> None:
    assert refusal(tmp_path, kubeconfig(), "dev") == "--context: 'dev' is not among its contexts: 'prod'"


def test_what_cant_be_opened_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KubeconfigError, match=r"can't be read \(Is a directory\); name a kubeconfig"):
        read_kubeconfig(str(tmp_path), None)
    monkeypatch.setenv("KUBECONFIG", "/none:/nowhere")
    with pytest.raises(KubeconfigError, match=r"^kubeconfig /none:/nowhere \(KUBECONFIG\): doesn't exist"):
        read_kubeconfig(None, None)


def test_of_several_files_the_first_counts_and_missing_and_empty_ones_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = written(tmp_path, with_user(token="first"), "first")
    second = written(tmp_path, {**with_user(token="second"), "current-context": "other"}, "second")
    empty = written(tmp_path, "", "empty")
    monkeypatch.setenv("KUBECONFIG", f"/none:{empty}:{first}:{second}")
    found = read_kubeconfig(None, None)
    assert found is not None
    assert (found.context, found.namespace, found.user["token"]) == ("prod", "team", "first")


def test_paths_in_a_file_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from the file\n")
    found = read_kubeconfig(written(tmp_path, with_user(tokenFile="token")), None)
    assert found is not None
    assert found.document()["users"][0]["user"]["token"] == "from the file"


def test_no_kubeconfig_is_none_and_an_empty_one_in_a_pod_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_kubeconfig(None, None) is None
    monkeypatch.setenv("KUBECONFIG", written(tmp_path, ""))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert read_kubeconfig(None, None) is None


KEYS = (
    *("apiVersion", "kind", "current-context", "contexts", "clusters", "users", "name", "context", "cluster", "user"),
    *("namespace", "server", "certificate-authority", "certificate-authority-data", "insecure-skip-tls-verify"),
    *("proxy-url", "tls-server-name", "client-certificate", "client-certificate-data", "client-key", "client-key-data"),
    *("token", "tokenFile", "username", "password", "exec", "auth-provider", "command", "args", "env", "value"),
)
DATA = base64.b64encode(b"data").decode()
WORDS = st.sampled_from(
    ["", "prod", "east", "ann", "https://east:1", "http://[::1", "/dev/null", DATA, "a\0b", "\ud800", "é", "1", "~x/y"]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    """Draws a good kubeconfig with a few values replaced at random places."""
    document: Any = json.loads(json.dumps(with_cluster(**{"certificate-authority-data": DATA})))
    document["users"] = [{"name": "ann", "user": draw(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))}]
    for _ in range(draw(st.integers(0, 3))):
        at = document
        while isinstance(at, dict | list) and at:
            places = sorted(at) if isinstance(at, dict) else list(range(len(at)))
            place = draw(st.sampled_from(places))
            if draw(st.integers(0, 2)) == 0 or not isinstance(at[place], dict | list):
                at[place] = draw(VALUES)
                break
            at = at[place]
    return document


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(document=damaged() | VALUES)
def test_any_document_is_read_or_refused_and_the_loader_takes_what_was_read(tmp_path: Path, document: Any) -> None:
    path = tmp_path / "config"
    path.write_bytes(json.dumps(document).encode("utf-8", "surrogatepass"))
    try:
        found = read_kubeconfig(str(path), None)
    except KubeconfigError as error:
        assert "\n" not in str(error)
        return
    assert found is not None
    if not found.has_provider:
        load_kube_config_from_dict(found.document(), client_configuration=Configuration(), persist_config=False)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=60) | st.text(alphabet="{}[]:,&*!|>-#%@`'\"\\ \n\tab", max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "config"
    path.write_bytes(raw)
    with pytest.raises(KubeconfigError):
        read_kubeconfig(str(path), None)
    path.write_bytes(b"users: " + raw)
    with pytest.raises(KubeconfigError):
        read_kubeconfig(str(path), None)


def test_nesting_without_end_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, "[" * 5_000).startswith("not YAML")
    assert refusal(tmp_path, "users: &a [*a]\n").startswith("not YAML")

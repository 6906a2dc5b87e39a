"""An exec plugin gives credentials, or one sentence says why it didn't; no request is sent without them."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainmaster.client import NoCluster
from trainmaster.client.server import find_server
from trainmaster.client.transport import HttpTransport
from trainmaster_operator.controller.apiserver.connection import connect as connect_operator
from trainmaster_operator.kubeconfig import Credentials, KubeconfigError, plugin, read_kubeconfig

API = "client.authentication.k8s.io/v1"


def answer(**status: Any) -> str:
    return json.dumps({"apiVersion": API, "kind": "ExecCredential", "status": status})


def kubeconfig(folder: Path, *, command: str = "get-token", **fields: Any) -> str:
    document = {
        "current-context": "prod",
        "contexts": [{"name": "prod", "context": {"cluster": "east", "user": "ann"}}],
        "clusters": [{"name": "east", "cluster": {"server": "https://east:6443"}}],
        "users": [{"name": "ann", "user": {"exec": {"command": command, "apiVersion": API, **fields}}}],
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(document))
    return str(path)


@pytest.fixture
def get_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes the plugin on the PATH: a script that a test writes."""
    folder = tmp_path / "bin"
    folder.mkdir()
    path = folder / "get-token"
    path.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return path


def run(path: str) -> Credentials:
    found = read_kubeconfig(path, None)
    assert found is not None and found.plugin is not None
    return found.plugin.run()


def test_a_plugin_gets_its_arguments_variables_and_cluster_and_its_token_is_used(
    tmp_path: Path, get_token: Path
) -> None:
    told = tmp_path / "told"
    get_token.write_text(
        f"#!/bin/sh\necho \"$1 $REGION $KUBERNETES_EXEC_INFO\" > {told}\necho '{answer(token='abc')}'\n"
    )
    path = kubeconfig(
        tmp_path, args=["--now"], env=[{"name": "REGION", "value": "east"}], provideClusterInfo=True, installHint="x"
    )
    assert run(path).token == "abc"
    arguments, region, info = told.read_text().split(" ", 2)
    assert (arguments, region) == ("--now", "east")
    assert json.loads(info)["spec"]["cluster"] == {"server": "https://east:6443"}


def test_a_certificate_is_used_with_its_key(tmp_path: Path, get_token: Path) -> None:
    get_token.write_text(f"#!/bin/sh\necho '{answer(clientCertificateData='CERT', clientKeyData='KEY')}'\n")
    path = kubeconfig(tmp_path)
    found = read_kubeconfig(path, None)
    assert found is not None
    user = found.document(run(path))["users"][0]["user"]
    assert user == {"client-certificate-data": "Q0VSVA==", "client-key-data": "S0VZ"}


def test_a_plugin_beside_the_kubeconfig_is_found_by_its_path(tmp_path: Path, get_token: Path) -> None:
    get_token.write_text(f"#!/bin/sh\necho '{answer(token='abc')}'\n")
    assert run(kubeconfig(tmp_path, command="./bin/get-token")).token == "abc"


def test_credentials_expire_a_minute_early() -> None:
    assert Credentials("t", expires=time.time() + 30).expired
    assert not Credentials("t", expires=time.time() + 90).expired
    assert not Credentials("t").expired


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("exit 3", "the plugin 'get-token' failed with exit code 3"),
        ("echo one >&2; echo no session >&2; exit 1", "the plugin 'get-token' failed with exit code 1: no session"),
        ("kill -9 $$", "the plugin 'get-token' failed with exit code -9"),
        ("echo garbage", "the plugin 'get-token' printed no ExecCredential in JSON; run it by hand"),
        ("echo '{}'", "the plugin 'get-token' printed no ExecCredential in JSON; run it by hand"),
        ("true", "the plugin 'get-token' printed no ExecCredential in JSON; run it by hand"),
        (f"echo '{answer()}'", "the plugin 'get-token' gave neither a token nor a certificate with its key; run it"),
        (f"echo '{answer(token=7)}'", "the plugin 'get-token' gave neither a token nor a certificate with its key"),
        (
            f"printf %s '{answer(token='a' + chr(10) + 'b')}'",
            "the plugin 'get-token' gave a token with characters that no",
        ),
        (
            f"echo '{answer(token='t').replace('/v1', '/v1alpha1')}'",
            "the plugin 'get-token' answers in 'client.authentication.k8s.io/v1alpha1' where the kubeconfig says",
        ),
    ],
)
def test_a_plugin_that_gives_nothing_is_one_sentence(
    tmp_path: Path, get_token: Path, script: str, sentence: str
) -> None:
    get_token.write_text(f"#!/bin/sh\n{script}\n")
    path = kubeconfig(tmp_path)
    with pytest.raises(KubeconfigError) as caught:
        run(path)
    assert str(caught.value).startswith(f"kubeconfig {path}: users[ann].user.exec.command: {sentence}")


def test_a_plugin_that_isnt_installed_is_named_with_the_hint_of_its_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match=r"the plugin 'no-such-plugin' isn't installed; install it, or use anot"):
        run(kubeconfig(tmp_path, command="no-such-plugin"))
    with pytest.raises(KubeconfigError, match=r"the plugin 'no-such-plugin' isn't installed; pip install it\Z"):
        run(kubeconfig(tmp_path, command="no-such-plugin", installHint="pip\n  install it\n"))
    (tmp_path / "notes.txt").touch(mode=0o644)
    with pytest.raises(KubeconfigError, match=r"the plugin './notes.txt' can't be run"):
        run(kubeconfig(tmp_path, command="./notes.txt"))


def test_a_plugin_that_hangs_is_ended_with_what_it_started(
    tmp_path: Path, get_token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "SECONDS", 0.5)
    child = tmp_path / "child"
    get_token.write_text(f"#!/bin/sh\nsleep 600 & echo $! > {child}\nwait\n")
    with pytest.raises(KubeconfigError, match=r"the plugin 'get-token' gave no answer within 0.5 s; run it by hand"):
        run(kubeconfig(tmp_path))
    wait_for_end(int(child.read_text()))


def wait_for_end(pid: int) -> None:
    """Waits until a process has ended: a killed one takes a moment, and one that wasn't killed never ends."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return
        except OSError:
            return
        time.sleep(0.02)
    pytest.fail(f"process {pid} still runs")


def failing(get_token: Path) -> None:
    get_token.write_text("#!/bin/sh\nexit 1\n")


def expiring(get_token: Path, runs: Path) -> None:
    """Makes a plugin that counts its runs in its token, which is about to expire."""
    soon = (datetime.now(UTC) + timedelta(seconds=5)).isoformat()
    printed = answer(token="TOKEN", expirationTimestamp=soon).replace("TOKEN", "'$(wc -l < \"" + str(runs) + "\")'")
    get_token.write_text(f"#!/bin/sh\necho >> {runs}\necho '{printed}'\n")


def test_a_client_asks_the_plugin_again_when_its_credentials_expire(tmp_path: Path, get_token: Path) -> None:
    expiring(get_token, tmp_path / "runs")
    transport = HttpTransport(find_server(str(kubeconfig(tmp_path))))
    assert (tmp_path / "runs").read_text() == "\n"
    assert [transport.server.authorization() for _ in range(2)] == ["Bearer 2", "Bearer 3"]
    failing(get_token)
    with pytest.raises(NoCluster, match="the plugin 'get-token' failed with exit code 1"):
        transport.request("GET", "/version")


async def test_the_operator_asks_again_too_and_keeps_the_old_token_where_the_plugin_fails(
    tmp_path: Path, get_token: Path
) -> None:
    expiring(get_token, tmp_path / "runs")
    configuration = (await connect_operator(kubeconfig(tmp_path), None)).configuration
    assert await configuration.get_api_key_with_prefix("BearerToken") == "Bearer 2"
    failing(get_token)
    assert await configuration.get_api_key_with_prefix("BearerToken") == "Bearer 2"

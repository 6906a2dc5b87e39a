"""Starts a real kube-apiserver and etcd for the tests, from the folder in KUBEBUILDER_ASSETS.

`setup-envtest` installs them there. Nothing else runs: no controllers, no scheduler, no kubelet. The flags are those of
controller-runtime's envtest.
"""

from __future__ import annotations

import base64
import csv
import secrets
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import trustme
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

START_SECONDS = 60.0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ApiServerBinaries:
    """etcd and kube-apiserver run below `folder`, from `start` to `stop`."""

    def __init__(self, assets: Path, folder: Path) -> None:
        self._assets = assets
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []
        self._ca = trustme.CA()
        self.token = secrets.token_urlsafe(32)
        self.server = ""
        self.kubeconfig = folder / "kubeconfig"

    @property
    def authority(self) -> bytes:
        return self._ca.cert_pem.bytes()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _start(self) -> None:
        client, peer, port = _free_port(), _free_port(), _free_port()
        etcd = f"http://127.0.0.1:{client}"
        self._run(
            "etcd",
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            "--unsafe-no-fsync=true",
        )
        certificate, key = self._folder / "tls.crt", self._folder / "tls.key"
        issued = self._ca.issue_cert("127.0.0.1", "localhost", "kubernetes.default.svc")
        issued.cert_chain_pems[0].write_to_path(str(certificate))
        issued.private_key_pem.write_to_path(str(key))
        accounts = self._folder / "service-accounts.key"
        accounts.write_bytes(
            rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        tokens = self._folder / "tokens.csv"
        with tokens.open("w") as file:
            csv.writer(file).writerow([self.token, "kubernetes-admin", "admin", "system:masters"])
        self.server = f"https://127.0.0.1:{port}"
        self._run(
            "kube-apiserver",
            f"--etcd-servers={etcd}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={port}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={accounts}",
            f"--service-account-signing-key-file={accounts}",
        )
        self._write_kubeconfig()
        self._wait()

    def _run(self, name: str, *arguments: str) -> None:
        log = (self._folder / f"{name}.log").open("wb")
        self._logs.append(log)
        command = [str(self._assets / name), *arguments]
        self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL))

    def _wait(self) -> None:
        context = ssl.create_default_context(cadata=self.authority.decode())
        request = urllib.request.Request(f"{self.server}/readyz", headers={"Authorization": f"Bearer {self.token}"})
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if any(process.poll() is not None for process in self._processes):
                break
            try:
                with urllib.request.urlopen(request, timeout=5, context=context) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.2)
        raise RuntimeError(f"kube-apiserver isn't ready: see the logs in {self._folder}")

    def _write_kubeconfig(self) -> None:
        authority = base64.b64encode(self.authority).decode()
        cluster = {"server": self.server, "certificate-authority-data": authority}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
            "current-context": "test",
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def _stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for log in self._logs:
            log.close()

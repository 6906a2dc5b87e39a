"""Runs a user's exec plugin with a timeout. The plugin returns credentials (client.authentication.k8s.io)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainmaster_operator.api.times import to_seconds
from trainmaster_operator.kubeconfig.errors import KubeconfigError, shown
from trainmaster_operator.wire.values import mapping, text

# Timeouts in seconds, without and with a terminal. A user at a terminal may have to log in with a browser.
SECONDS, INTERACTIVE_SECONDS = 60.0, 600.0
MAX_ANSWER = 1024 * 1024
# Credentials are renewed this many seconds before they expire.
EARLY_SECONDS = 60.0
_GROUP = "client.authentication.k8s.io/"


@dataclass(frozen=True)
class Credentials:
    """Holds the credentials that a plugin returned."""

    token: str = ""
    certificate: str = ""
    key: str = ""
    # Seconds since the epoch.
    expires: float | None = None

    @property
    def expired(self) -> bool:
        """Returns whether the plugin must run again."""
        return self.expires is not None and time.time() >= self.expires - EARLY_SECONDS


@dataclass(frozen=True)
class Plugin:
    """Holds the exec section of a user."""

    # The plugin's file and field, for messages.
    place: str
    command: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    api_version: str
    hint: str
    folder: Path
    # Data about the cluster that the plugin receives, if it requests that.
    cluster: Mapping[str, Any] | None

    @classmethod
    def of(cls, place: str, fields: Mapping[str, Any], folder: Path, cluster: Mapping[str, Any]) -> Plugin:
        """Checks an exec section. Raises KubeconfigError."""
        command = fields.get("command")
        if not isinstance(command, str) or not command or "\0" in command:
            raise KubeconfigError(f"{place}.command: is missing; name the program that gives the credentials")
        version = fields.get("apiVersion")
        if not isinstance(version, str) or not version.startswith(_GROUP):
            raise KubeconfigError(f"{place}.apiVersion: {shown(version)} can't be used; give {_GROUP}v1")
        arguments = fields.get("args") or []
        if not isinstance(arguments, list) or not all(isinstance(each, str) and "\0" not in each for each in arguments):
            raise KubeconfigError(f"{place}.args: is no list of texts; give the program's arguments one by one")
        environment = {}
        variables = fields.get("env") or []
        for each in variables if isinstance(variables, list) else [None]:
            name, value = mapping(each).get("name"), mapping(each).get("value")
            if not (isinstance(name, str) and isinstance(value, str) and name) or "=" in name or "\0" in name + value:
                raise KubeconfigError(f"{place}.env: is no list of variables; give items with name and value")
            environment[name] = value
        hint = " ".join(text(fields.get("installHint"), None).split())
        given = cluster if fields.get("provideClusterInfo") is True else None
        return cls(place, command, tuple(arguments), environment, version, hint, folder, given)

    def run(self) -> Credentials:
        """Runs the plugin and returns its credentials. Raises KubeconfigError."""
        environment = {**os.environ, **self.environment}
        # As in kubectl, a name is searched for on the PATH, and a path is relative to the kubeconfig.
        path = str(self.folder / self.command) if os.sep in self.command else self.command
        program = shutil.which(path, path=environment.get("PATH"))
        if program is None:
            missing = "can't be run" if Path(path).exists() else "isn't installed"
            remedy = self.hint or "install it, or use another user or context"
            raise self._problem(f"{missing}; {remedy}")
        interactive = sys.stdin.isatty() and sys.stderr.isatty()
        spec: dict[str, Any] = {"interactive": interactive}
        if self.cluster is not None:
            spec["cluster"] = self.cluster
        asked = {"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec}
        environment["KUBERNETES_EXEC_INFO"] = json.dumps(asked)
        return self._parse(self._output(program, environment, interactive=interactive))

    def _output(self, program: str, environment: Mapping[str, str], *, interactive: bool) -> bytes:
        limit = INTERACTIVE_SECONDS if interactive else SECONDS
        # Use files, not pipes, because a process that the plugin leaves behind may keep a pipe open.
        with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as errors:
            try:
                process = subprocess.Popen(
                    [program, *self.arguments],
                    env=environment,
                    stdin=None if interactive else subprocess.DEVNULL,
                    stdout=answer,
                    stderr=None if interactive else errors,
                    # If the plugin needs no terminal, run it in a separate session, where it can't prompt, and where
                    # its whole process group can be ended.
                    start_new_session=not interactive,
                )
            except OSError as error:
                raise self._problem(f"can't be run ({error.strerror})") from error
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired as error:
                raise self._problem(f"gave no answer within {limit:g} s; run it by hand") from error
            finally:
                if process.poll() is None:
                    if interactive:
                        process.kill()
                    else:
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            if code != 0:
                errors.seek(0)
                lines = errors.read(MAX_ANSWER).decode("utf-8", "replace").strip().splitlines()
                why = f": {lines[-1].strip()[:500]}" if lines else ""
                raise self._problem(f"failed with exit code {code}{why}")
            answer.seek(0)
            return answer.read(MAX_ANSWER)

    def _parse(self, output: bytes) -> Credentials:
        try:
            answer = json.loads(output)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict) or answer.get("kind") != "ExecCredential":
            raise self._useless("printed no ExecCredential in JSON")
        if answer.get("apiVersion") != self.api_version:
            other = shown(answer.get("apiVersion"))
            raise self._useless(f"answers in {other} where the kubeconfig says {self.api_version}")
        fields = mapping(answer.get("status"))
        names = ("token", "clientCertificateData", "clientKeyData", "expirationTimestamp")
        token, certificate, key, expires = (text(fields.get(name), None) for name in names)
        if not (token.strip().isascii() and token.strip().isprintable()):
            raise self._useless("gave a token with characters that no header can have")
        if not token.strip() and not (certificate and key):
            raise self._useless("gave neither a token nor a certificate with its key")
        return Credentials(token.strip(), certificate, key, to_seconds(expires))

    def _useless(self, why: str) -> KubeconfigError:
        return self._problem(f"{why}; run it by hand")

    def _problem(self, why: str) -> KubeconfigError:
        return KubeconfigError(f"{self.place}.command: the plugin {shown(self.command)} {why}")

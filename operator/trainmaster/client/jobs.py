"""`JobClient` submits, watches and steers DistributedTrainingJobs from Python.

from trainmaster.client import JobClient

jobs = JobClient()
jobs.submit(manifest)
status = jobs.wait("bert-mrpc", timeout=3600)
print(status.phase, status.progress)
"""

from __future__ import annotations

import builtins
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from trainmaster.api.decoding import decode
from trainmaster.api.evidence import AttemptEvidence, attempt_of, evidence_name
from trainmaster.api.limits import check_size
from trainmaster.api.v1alpha1 import API_VERSION, GROUP, KIND, PLURAL, TERMINAL_PHASES, VERSION, JobStatus
from trainmaster.api.values import DNS_LABEL_PATTERN, SUBDOMAIN_PATTERN, show
from trainmaster.client.errors import ClientError, InvalidRequest, JobNotFound, NoCluster, WaitTimeout
from trainmaster.client.transport import Transport, connect
from trainmaster.wire.names import JOB_NAME_LABEL, POD_INDEX_LABEL

FIELD_MANAGER = "trainmaster-client"
# Characters of a name (RFC 1123, as Kubernetes has it).
MAX_NAME = 253
# A watch is opened anew after this long without a line: a half-open connection is noticed.
WATCH_SECONDS = 60
REOPEN_SECONDS = 0.5


@dataclass(frozen=True)
class TrainingJob:
    """TrainingJob is a job as the API server holds it: the raw object and its parsed status."""

    raw: Mapping[str, Any]
    status: JobStatus

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> TrainingJob:
        """Parses the status of an object from the API server. Raises ClientError for one of another release."""
        metadata = raw.get("metadata") if isinstance(raw, Mapping) else None
        if not isinstance(metadata, Mapping) or not isinstance(metadata.get("name"), str):
            raise NoCluster("What was answered is no job; is the kubeconfig's server a Kubernetes API server?")
        try:
            return cls(raw, JobStatus.model_validate(raw.get("status") or {}))
        except ValidationError as error:
            places = {".".join(map(str, detail["loc"])) for detail in error.errors(include_url=False)}
            raise ClientError(
                f"The status of job {raw['metadata']['name']} can't be read ({', '.join(sorted(places))}); is the "
                "operator of another release than this program?"
            ) from error

    @property
    def name(self) -> str:
        """Returns metadata.name."""
        return str(self.raw["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Returns metadata.namespace."""
        return str(self.raw["metadata"].get("namespace") or "")

    @property
    def uid(self) -> str:
        """Returns metadata.uid."""
        return str(self.raw["metadata"]["uid"])

    @property
    def version(self) -> str:
        """Returns metadata.resourceVersion, which every change makes another one."""
        return str(self.raw["metadata"].get("resourceVersion") or "")

    @property
    def to_be_suspended(self) -> bool:
        """Returns whether runPolicy.suspend is set, which the operator follows."""
        policy = (self.raw.get("spec") or {}).get("runPolicy")
        return isinstance(policy, Mapping) and policy.get("suspend") is True

    @property
    def phase(self) -> str:
        """Returns the phase; Pending until the operator has seen the job."""
        return self.status.phase or "Pending"

    @property
    def finished(self) -> bool:
        """Returns whether the phase is terminal."""
        return self.phase in TERMINAL_PHASES


class JobClient:
    """JobClient reads and changes the jobs of one namespace.

    It isn't thread-safe. Every method raises a ClientError with one sentence.
    """

    def __init__(
        self,
        namespace: str | None = None,
        *,
        kubeconfig: str | None = None,
        context: str | None = None,
        transport: Transport | None = None,
    ) -> None:
        if transport is None:
            transport, context_namespace = connect(kubeconfig, context)
            namespace = namespace or context_namespace
        self.namespace = namespace or "default"
        if re.fullmatch(DNS_LABEL_PATTERN, self.namespace) is None:
            raise InvalidRequest(
                f"{show(self.namespace)} is no name of a namespace: give small letters, digits and '-'"
            )
        self.transport = transport

    def submit(self, manifest: Mapping[str, Any], *, replace: bool = False) -> TrainingJob:
        """Creates a job; with `replace`, applies it (server-side). Raises JobExists, InvalidRequest."""
        body = {"apiVersion": API_VERSION, "kind": KIND, **manifest}
        problem = check_size(body["spec"]) if isinstance(body.get("spec"), Mapping) else None
        if problem is not None:
            # The API server would accept the job, and the operator refuse it in its status.
            raise InvalidRequest(str(problem))
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        if replace:
            metadata = body.get("metadata")
            path = self._path(str(metadata.get("name", "") if isinstance(metadata, Mapping) else ""))
            return TrainingJob.of(
                self.transport.request(
                    "PATCH",
                    path,
                    query={**query, "force": "true"},
                    body=body,
                    content_type="application/apply-patch+yaml",
                )
            )
        return TrainingJob.of(self.transport.request("POST", self._path(), query=query, body=body))

    def get(self, name: str) -> TrainingJob:
        """Returns one job. Raises JobNotFound."""
        return TrainingJob.of(self.transport.request("GET", self._path(name)))

    def list(self, *, all_namespaces: bool = False) -> list[TrainingJob]:
        """Returns all jobs of the namespace, or of all namespaces, by name."""
        jobs = [
            TrainingJob.of(item) for item in _items(self.transport.request("GET", self._collection(all_namespaces)))
        ]
        return sorted(jobs, key=lambda job: (job.namespace, job.name))

    def delete(self, name: str) -> None:
        """Deletes a job and, through the garbage collector, all that belongs to it."""
        self.transport.request("DELETE", self._path(name), query={"propagationPolicy": "Background"})

    def suspend(self, name: str) -> TrainingJob:
        """Stops a job with a checkpoint and frees its resources. Raises InvalidRequest for one that has ended."""
        return self._set_suspend(name, "suspend", suspend=True)

    def resume(self, name: str) -> TrainingJob:
        """Lets a suspended job go on. Raises InvalidRequest for one that has ended."""
        return self._set_suspend(name, "resume", suspend=False)

    def scale(self, name: str, workers: int) -> TrainingJob:
        """Asks for another number of workers."""
        return self._merge(name, {"spec": {"workers": workers}})

    def watch(self, name: str) -> Iterator[TrainingJob]:
        """Yields the job now and at every change, until it is deleted. A watch that breaks is opened again."""
        while True:
            try:
                job = self.get(name)
            except JobNotFound:
                return
            yield job
            for kind, changed in self._events(self._path(), job.version, name=name):
                if kind == "DELETED":
                    return
                yield changed

    def watch_all(self, *, all_namespaces: bool = False) -> Iterator[tuple[TrainingJob, bool]]:
        """Yields all jobs now, then each one that changes or is deleted, for ever; True stands beside a deleted one."""
        path = self._collection(all_namespaces)
        known: dict[str, TrainingJob] = {}
        while True:
            answer = self.transport.request("GET", path)
            listed = {job.uid: job for job in map(TrainingJob.of, _items(answer))}
            for uid in known.keys() - listed.keys():
                yield known.pop(uid), True
            for uid, job in sorted(listed.items(), key=lambda item: (item[1].namespace, item[1].name)):
                if uid not in known or known[uid].version != job.version:
                    yield job, False
            known = listed
            version = str((answer.get("metadata") or {}).get("resourceVersion") or "")
            for kind, job in self._events(path, version):
                if kind == "DELETED":
                    known.pop(job.uid, None)
                else:
                    known[job.uid] = job
                yield job, kind == "DELETED"

    def wait(
        self,
        name: str,
        *,
        until: Callable[[TrainingJob], bool] = lambda job: job.finished,
        timeout: float | None = None,
    ) -> TrainingJob:
        """Waits until a job has ended, or `until` holds, and returns the job.

        Raises WaitTimeout after `timeout` seconds and JobNotFound when the job is deleted meanwhile.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        job = self.get(name)
        while not until(job):
            left = WATCH_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise WaitTimeout(f"Job {name} is {job.phase} after {timeout:g} s.", job.phase)
            events = self._events(self._path(), job.version, name=name, seconds=min(left, WATCH_SECONDS))
            for kind, job in events:
                if kind == "DELETED":
                    raise JobNotFound(f"Job {name} was deleted while it was waited for.")
                if until(job):
                    return job
            try:
                job = self.get(name)
            except JobNotFound as error:
                raise JobNotFound(f"Job {name} was deleted while it was waited for.") from error
        return job

    def pods(self, name: str) -> builtins.list[Mapping[str, Any]]:
        """Returns the job's pods as raw objects, by worker. Pods with its label but no index are left out."""
        answer = self.transport.request(
            "GET",
            f"/api/v1/namespaces/{self.namespace}/pods",
            query={"labelSelector": f"{JOB_NAME_LABEL}={name}"},
        )
        return sorted(filter(_has_index, _items(answer)), key=worker_index)

    def logs(self, name: str, worker: int, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """Yields a worker's output line by line, from the operator's copy when the pod is gone. Raises JobNotFound."""
        pod = next((pod for pod in self.pods(name) if worker_index(pod) == worker), None)
        if pod is None:
            yield from self._kept(name, worker, tail)
            return
        try:
            yield from self.pod_log(pod["metadata"]["name"], follow=follow, tail=tail)
        except JobNotFound:
            # The job has ended meanwhile: its pods go when their logs are kept.
            yield from self._kept(name, worker, tail)

    def pod_log(
        self, pod: str, *, follow: bool = False, tail: int | None = None, previous: bool = False
    ) -> Iterator[str]:
        """Yields the log of a worker's container line by line, or of the container before. Raises JobNotFound.

        InvalidRequest where the container has not started. A log that is followed ends with its container, or where the
        connection breaks.
        """
        query = {"container": "worker"}
        if follow:
            query["follow"] = "true"
        if previous:
            query["previous"] = "true"
        if tail is not None:
            query["tailLines"] = str(tail)
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log"
        for line in self.transport.lines(path, query=query, read_seconds=None):
            yield line.decode("utf-8", "replace")

    def kept_workers(self, name: str) -> builtins.list[int]:
        """Returns the workers whose output the operator kept when the job ended."""
        names = (key.removeprefix("worker-").removesuffix(".log") for key in self._kept_data(name))
        return sorted(int(text) for text in names if text.isascii() and text.isdigit())

    def evidence(self, name: str) -> builtins.list[AttemptEvidence]:
        """Returns the evidence of the attempts that failed, oldest first; also after the pods are gone."""
        data = self._config_map(evidence_name(name))
        parsed = (AttemptEvidence.parse(text) for key, text in data.items() if attempt_of(key) is not None)
        return sorted((one for one in parsed if one is not None), key=lambda one: one.attempt)

    def _kept(self, name: str, worker: int, tail: int | None) -> Iterator[str]:
        data = self._kept_data(name)
        text = data.get(f"worker-{worker}.log")
        if text is None:
            raise JobNotFound(f"Job {name} has no worker {worker}, and nothing was kept of one.")
        lines = text.splitlines()
        yield from lines if tail is None else lines[-tail:] if tail else []

    def _kept_data(self, name: str) -> dict[str, str]:
        return self._config_map(f"{name}-logs")

    def _config_map(self, name: str) -> dict[str, str]:
        try:
            found = self.transport.request("GET", f"/api/v1/namespaces/{self.namespace}/configmaps/{name}")
        except JobNotFound:
            return {}
        return dict(found.get("data") or {})

    def _set_suspend(self, name: str, verb: str, *, suspend: bool) -> TrainingJob:
        job = self.get(name)
        if job.finished:
            raise InvalidRequest(
                f"Job {name} has ended ({job.phase}): there is nothing to {verb}, and nothing was changed."
            )
        if job.to_be_suspended == suspend:
            return job
        return self._merge(name, {"spec": {"runPolicy": {"suspend": suspend}}})

    def _merge(self, name: str, patch: Mapping[str, Any]) -> TrainingJob:
        return TrainingJob.of(
            self.transport.request(
                "PATCH",
                self._path(name),
                query={"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"},
                body=patch,
                content_type="application/merge-patch+json",
            )
        )

    def _events(
        self, path: str, version: str, *, name: str | None = None, seconds: float = WATCH_SECONDS
    ) -> Iterator[tuple[str, TrainingJob]]:
        """Yields what a watch says until it ends, or says what is no event; the caller then reads the state again."""
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(max(1, round(seconds)))}
        if name is not None:
            query["fieldSelector"] = f"metadata.name={name}"
        began = time.monotonic()
        try:
            for line in self.transport.lines(path, query=query, read_seconds=seconds + 5):
                event = decode(line)
                kind, changed = event["type"], event["object"]
                if kind not in ("ADDED", "MODIFIED", "DELETED") or not isinstance(changed, dict):
                    break
                yield kind, TrainingJob.of(changed)
        except (InvalidRequest, ValueError, TypeError, KeyError):
            # 410: the version is too old. What isn't an event is a proxy's: it is no reason to give up.
            pass
        if time.monotonic() - began < REOPEN_SECONDS:
            # What cuts watches off at once isn't asked again and again.
            time.sleep(REOPEN_SECONDS)

    def _collection(self, all_namespaces: bool) -> str:
        return f"/apis/{GROUP}/{VERSION}/{PLURAL}" if all_namespaces else self._path()

    def _path(self, name: str | None = None) -> str:
        base = f"/apis/{GROUP}/{VERSION}/namespaces/{self.namespace}/{PLURAL}"
        if name is None:
            return base
        require_name(name)
        return f"{base}/{name}"


def require_name(name: str) -> None:
    """Raises InvalidRequest for what no job can be named: it would be part of the path of a request."""
    if len(name) > MAX_NAME or re.fullmatch(SUBDOMAIN_PATTERN, name) is None:
        raise InvalidRequest(
            f"{show(name)} is no name of a job: it has small letters, digits and '-', such as bert-mrpc"
        )


def _items(answer: Any) -> builtins.list[Mapping[str, Any]]:
    # Go writes an empty list as null.
    items = answer.get("items", "") if answer.get("items", "") is not None else []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise NoCluster("What was answered is no list; is the kubeconfig's server a Kubernetes API server?")
    return items


def worker_index(pod: Mapping[str, Any]) -> int:
    """Returns the global index of a raw pod's worker. Raises ClientError for a pod that no StatefulSet of ours made."""
    if not _has_index(pod):
        raise ClientError(f"Pod {pod['metadata']['name']} has no {POD_INDEX_LABEL} label; is it ours?")
    return int(pod["metadata"]["labels"][POD_INDEX_LABEL])


def _has_index(pod: Mapping[str, Any]) -> bool:
    index = str(pod["metadata"].get("labels", {}).get(POD_INDEX_LABEL, ""))
    return index.isascii() and index.isdigit()

"""`TrainingJob` is a job as the API server returns it. The `require` functions refuse wrong arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from pydantic import ValidationError

from trainmaster.client.errors import ClientError, InvalidRequest, NoCluster
from trainmaster.client.objects import at
from trainmaster_operator.api.v1alpha1 import GROUP, PLURAL, TERMINAL_PHASES, VERSION, JobStatus
from trainmaster_operator.api.values import DNS_LABEL_PATTERN, SUBDOMAIN_PATTERN, show
from trainmaster_operator.wire.names import POD_INDEX_LABEL

# The types of an optional argument that is text.
OPTIONAL_TEXT = (str, type(None))
# Maximum length of a name (RFC 1123).
MAX_NAME = 253


@dataclass(frozen=True, repr=False)
class TrainingJob:
    """TrainingJob is a job's state: the raw object and its parsed status. Notebooks show it as a table."""

    raw: Mapping[str, Any]
    status: JobStatus

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> TrainingJob:
        """Parses the API server's object. Raises ClientError if the status, perhaps of another release, is invalid."""
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
        """Returns metadata.resourceVersion, which differs after every change."""
        return str(self.raw["metadata"].get("resourceVersion") or "")

    @property
    def to_be_suspended(self) -> bool:
        """Returns whether runPolicy.suspend is true, so that the operator suspends the job."""
        return at(self.raw, "spec", "runPolicy", "suspend") is True

    @property
    def phase(self) -> str:
        """Returns the phase. It is Pending until the operator has seen the job."""
        return self.status.phase or "Pending"

    @property
    def finished(self) -> bool:
        """Returns whether the phase is terminal."""
        return self.phase in TERMINAL_PHASES

    def __repr__(self) -> str:
        progress = self.status.progress
        step = None if progress is None else progress.step
        return (
            f"TrainingJob({self.name!r}, namespace={self.namespace!r}, phase={self.phase!r}, "
            f"attempt={self.status.attempt}{'' if step is None else f', step={step}'})"
        )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        from trainmaster.client.view import job_html, job_text, view_of

        del include, exclude
        view = view_of(self.raw)
        return {"text/plain": job_text(view), "text/html": job_html(view)}


def collection_path(namespace: str | None) -> str:
    """Returns the path of a namespace's jobs. None means all namespaces."""
    base = f"/apis/{GROUP}/{VERSION}"
    return f"{base}/{PLURAL}" if namespace is None else f"{base}/namespaces/{namespace}/{PLURAL}"


def label_query(selector: str | None) -> dict[str, str]:
    """Returns the query parameter that restricts a list or a watch to jobs with some labels."""
    require("selector", selector, OPTIONAL_TEXT, "labels as text, such as 'team=vision'")
    return {} if selector is None else {"labelSelector": selector}


def require_name(name: str) -> None:
    """Raises InvalidRequest for a name that no job can have. Such a name must not get into a request's path."""
    require_name_text(name)
    if len(name) > MAX_NAME or re.fullmatch(SUBDOMAIN_PATTERN, name) is None:
        raise InvalidRequest(
            f"{show(name)} is no name of a job: it has small letters, digits and '-', such as bert-mrpc"
        )


def require_name_text(name: str) -> None:
    """Raises InvalidRequest for a name that isn't text. Unlike `require_name`, it doesn't check the characters."""
    require("name", name, str, "the name of a job as text, such as 'bert-mrpc'")


def require_namespace(name: str) -> None:
    """Raises InvalidRequest for a name that no namespace can have."""
    require("namespace", name, str, "the name of a namespace as text")
    if re.fullmatch(DNS_LABEL_PATTERN, name) is None:
        raise InvalidRequest(f"{show(name)} is no name of a namespace: give small letters, digits and '-'")


def items_of(answer: Any) -> list[Mapping[str, Any]]:
    """Returns the objects of a list. Raises NoCluster if the answer isn't a list."""
    # Go writes an empty list as null.
    items = answer.get("items", "") if answer.get("items", "") is not None else []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise NoCluster("What was answered is no list; is the kubeconfig's server a Kubernetes API server?")
    return items


def worker_index(pod: Mapping[str, Any]) -> int:
    """Returns the global index of a pod's worker. Raises ClientError if the pod isn't from our StatefulSets."""
    if not has_index(pod):
        raise ClientError(f"Pod {pod['metadata']['name']} has no {POD_INDEX_LABEL} label; is it ours?")
    return int(pod["metadata"]["labels"][POD_INDEX_LABEL])


def has_index(pod: Mapping[str, Any]) -> bool:
    """Returns whether a raw pod has a worker's index."""
    index = str(pod["metadata"].get("labels", {}).get(POD_INDEX_LABEL, ""))
    return index.isascii() and index.isdigit()


def require(argument: str, value: object, kind: type | tuple[type, ...], remedy: str) -> None:
    """Raises InvalidRequest if a value has the wrong type. True and False don't count as numbers."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InvalidRequest(f"{argument} is of type {type(value).__name__}: give {remedy}")


def require_count(argument: str, value: int | None) -> None:
    """Raises InvalidRequest for a value that is neither None nor an integer from 0."""
    if value is not None:
        require(argument, value, Integral, "a whole number")
        if value < 0:
            raise InvalidRequest(f"{argument} is {value}: give a whole number from 0")


def require_seconds(argument: str, value: float | None) -> None:
    """Raises InvalidRequest for a value that is neither None nor a number."""
    if value is not None:
        require(argument, value, Real, "a number of seconds")

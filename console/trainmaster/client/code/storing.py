"""Reads and writes the objects that carry a job's code: ConfigMaps, and pods that copy archives onto volumes."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from trainmaster.client.async_jobs import FIELD_MANAGER
from trainmaster.client.errors import JobNotFound
from trainmaster.client.jobs import JobClient
from trainmaster_operator.wire.values import mapping

# The label of all objects that contain a job's code.
CODE_LABEL = "trainmaster.dev/code-of"


@dataclass(frozen=True)
class Objects:
    """Objects reads and changes one type of objects in a client's namespace. Each method can raise a ClientError."""

    jobs: JobClient
    plural: str

    def get(self, name: str) -> Mapping[str, Any] | None:
        """Returns an object, or None if it doesn't exist."""
        with suppress(JobNotFound):
            return mapping(self._request("GET", name))
        return None

    def create(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Creates an object and returns it. Raises JobExists."""
        return mapping(self._request("POST", "", query={"fieldManager": FIELD_MANAGER}, body=body))

    def merge(self, name: str, patch: Mapping[str, Any]) -> None:
        """Changes an object by a merge patch."""
        query, content_type = {"fieldManager": FIELD_MANAGER}, "application/merge-patch+json"
        self._request("PATCH", name, query=query, body=patch, content_type=content_type)

    def delete(self, name: str, uid: str | None = None, **options: Any) -> None:
        """Deletes an object if it exists; with `uid`, only if the object has this uid."""
        body = {**options, "preconditions": {"uid": uid}} if uid else None
        with suppress(JobNotFound):
            self._request("DELETE", name, body=body)

    def _request(self, method: str, name: str, **options: Any) -> Any:
        place = f"/api/v1/namespaces/{self.jobs.namespace}/{self.plural}"
        return self.jobs.transport.request(method, f"{place}/{name}" if name else place, **options)


def config_map(name: str, job: str, key: str, data: bytes, owners: Sequence[Mapping[str, str]] = ()) -> dict[str, Any]:
    """Returns a ConfigMap that contains a job's code or a piece of it."""
    metadata: dict[str, Any] = {"name": name, "labels": {CODE_LABEL: job}}
    if owners:
        metadata["ownerReferences"] = list(owners)
    binary = {key: b64encode(data).decode()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": binary}

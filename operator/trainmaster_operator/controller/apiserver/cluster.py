"""Defines `Cluster`, the narrow interface to the API server, and the resource types.

The operator reads and writes only through `Cluster`, so tests can replace it by a scripted one, and other modules don't
depend on a client library. Objects are raw dicts, as in JSON. Every method raises `errors.ClusterError`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from trainmaster_operator.api.pod_schema import WORKER_CONTAINER
from trainmaster_operator.api.v1alpha1 import GROUP, KIND, PLURAL, VERSION
from trainmaster_operator.controller.apiserver import kept
from trainmaster_operator.controller.apiserver.pod_http import PodStream
from trainmaster_operator.rendering import GANG_APIS, child_kind

RawObject = dict[str, Any]


@dataclass(frozen=True)
class Resource:
    """Names a resource type by group, version and plural; `kind` is for messages and manifests."""

    group: str
    version: str
    plural: str
    kind: str
    # The fields that are kept of every answer. If None, all fields are kept.
    kept: kept.Fields | None = field(default=None, compare=False)
    # Objects in a page of a list. The API server holds each page in memory: 75 MB if all objects have the maximum size.
    page: int = 50
    # Whether a create with an unknown field is refused. Without this, the API server only warns and drops the field.
    # Types whose fields users write are strict: otherwise their object would be created without the field, and the
    # first apply would be refused.
    strict: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def child_kind(self) -> str:
        """Returns the kind's name among a job's children."""
        return child_kind(self.api_version, self.kind)

    def body(self, **fields: Any) -> RawObject:
        """Returns an object of this type."""
        return {"apiVersion": self.api_version, "kind": self.kind, **fields}

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Returns the URL's path, starting at `/api`."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)


JOBS = Resource(GROUP, VERSION, PLURAL, KIND, kept.job(kept.LARGE_SPEC_BYTES))
LARGE_JOBS = replace(JOBS, kept=kept.LARGE_JOB)
# Used to read jobs that are sent to a history.
RECORDED_JOBS = replace(JOBS, kept=kept.job(kept.MAX_RECORDED_BYTES), page=4)
PODS = Resource("", "v1", "pods", "Pod", kept.POD)
PODS_ENVIRONMENTS = replace(PODS, kept=kept.POD_ENVIRONMENT)
SERVICES = Resource("", "v1", "services", "Service", kept.CHILD)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", kept.CHILD)
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet", kept.STATEFUL_SET, strict=True)
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", kept.CHILD)
EVENTS = Resource("", "v1", "events", "Event", kept.EVENT)
SECRETS = Resource("", "v1", "secrets", "Secret")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
RESOURCE_QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview")
ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview")

NODES = Resource("", "v1", "nodes", "Node", kept.NODE)
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass")
RESOURCE_FLAVORS = Resource("kueue.x-k8s.io", "v1beta2", "resourceflavors", "ResourceFlavor")

# The objects that ask a gang scheduler for a whole job, by the scheduler's name in the spec. A cluster may serve none
# of these types.
GANGS: Mapping[str, Resource] = {
    name: Resource(api.group, api.version, api.plural, api.kind, kept.WORKLOAD if name == "kueue" else kept.CHILD)
    for name, api in GANG_APIS.items()
}
# Later versions of a group and version, which a newer API server may serve instead.
LATER_VERSIONS: Mapping[str, tuple[str, ...]] = {
    f"{api.group}/{api.version}": tuple(f"{api.group}/{version}" for version in api.later)
    for api in GANG_APIS.values()
    if api.later
}
# The types of a job's children, by kind.
CHILDREN: Mapping[str, Resource] = {
    resource.child_kind: resource
    for resource in (SERVICES, CONFIG_MAPS, NETWORK_POLICIES, STATEFUL_SETS, *GANGS.values())
}


def whole(resource: Resource) -> Resource:
    """Returns the same type with all fields kept, for reading one object at a time."""
    return replace(resource, kept=None)


class Cluster(Protocol):
    """`Cluster` represents the API server. No method retries a request, because the queue repeats the whole pass."""

    def served(self, resource: Resource) -> Resource:
        """Returns the resource in the served version, if an earlier request has shown that version."""

    async def discovers(self, resource: Resource) -> bool:
        """Returns whether the API server's discovery names the type.

        The API server serves a type a moment before discovery names the type.
        """

    async def get(self, resource: Resource, namespace: str, name: str) -> RawObject:
        """Read one object, with the fields that the resource keeps. Raises NotFound."""

    def pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
    ) -> AsyncIterator[Sequence[RawObject]]:
        """Yields a consistent list of one namespace or of all, page by page, with one page in memory at a time.

        `metadata_only` requests PartialObjectMetadata. The list fails if reading it takes longer than the API server
        keeps the list's state (5 minutes).
        """

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> RawObject:
        """Create an object. Raises AlreadyExists."""

    async def replace(self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any]) -> RawObject:
        """Replace an object; a resourceVersion in the body is a precondition. Raises Conflict."""

    async def apply(self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any]) -> RawObject:
        """Apply server-side as our field manager, even to fields of other managers.

        `metadata.uid` and `resourceVersion` are preconditions. Raises Conflict if one fails.
        """

    async def patch(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any], *, status: bool = False
    ) -> RawObject:
        """Merge a JSON patch into an object or its status subresource. Raises Conflict.

        `metadata.uid` and `resourceVersion` in the patch are preconditions.
        """

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, version: str = "", force: bool = False
    ) -> None:
        """Delete exactly this object, in this version if one is given. `force` leaves a pod no grace period.

        Raises Conflict if the object was replaced or changed, NotFound if it doesn't exist.
        """

    async def pod_log(
        self,
        namespace: str,
        pod: str,
        *,
        tail_lines: int,
        limit_bytes: int,
        previous: bool = False,
        container: str = WORKER_CONTAINER,
    ) -> str:
        """Read the end of a container's log, in which each line begins with its time (api/kept_logs.py).

        With `previous`, read the log of the container's run before.
        """

    def followed_log(
        self, namespace: str, pod: str, *, tail_lines: int
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Follow a worker's log, with timestamps, from the last `tail_lines` lines until the container ends."""

    def pod_proxy(
        self,
        method: Literal["GET", "POST"],
        namespace: str,
        pod: str,
        port: int,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
    ) -> AbstractAsyncContextManager[PodStream]:
        """Send a request to a pod's port through the API server."""

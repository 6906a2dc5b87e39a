"""A resource type is defined by its names, its schema, and hooks for its special behaviour.

A `ResourceType` consists of data and hooks; `Registry` holds the served types. Built-in types are in
`trainmaster_local.kinds`; `crd` creates those of CustomResourceDefinitions. For a write the API calls, in order (as
kube-apiserver's generic registry does)::

    create  decode, prune -> schema defaults -> default -> admit -> prepare_create -> schema, validate_create -> store
    update  decode, prune -> schema defaults -> default -> admit -> prepare_update -> schema, validate_update -> store

Hooks get plain dicts. `default`, `admit` and `prepare_*` change `obj`/`new` in place; `old` and every object read from
the API are shared and must never be changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from trainmaster_local.apiserver.apimachinery.errors import FieldError, qualified

if TYPE_CHECKING:
    from aiohttp import web

    from trainmaster_local.apiserver.api import Api

Object = dict[str, Any]
"""A Kubernetes object as JSON. What the API returns is shared: copy it before you change it."""

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True)
class User:
    """The user of a request. `groups` lacks `system:authenticated`, which the HTTP layer adds."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


SYSTEM = User("system:apiserver", ("system:masters",))
"""The user of calls in process that name no user."""


@dataclass(frozen=True)
class Column:
    """Describes a column of `kubectl get`. `priority` 0 is always shown, 1 with `-o wide`."""

    name: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0


@dataclass(frozen=True)
class ScalePaths:
    """The scale subresource finds its numbers by these JSON paths with a leading dot (`.spec.replicas`)."""

    spec_replicas: str = ".spec.replicas"
    status_replicas: str = ".status.replicas"
    selector: str = ""  # a *string* in custom resources; built-ins set `ResourceType.scale_selector` instead


@dataclass(frozen=True)
class Admission:
    """The context of `admit`. Reads through the synchronous `api.peek` happen at the same instant as the write."""

    api: Api
    type: ResourceType
    operation: str  # CREATE or UPDATE
    namespace: str
    user: User
    dry_run: bool
    subresource: str = ""


@dataclass(frozen=True)
class SubresourceCall:
    """A request to a subresource that the type handles itself."""

    api: Api
    type: ResourceType
    subresource: str
    verb: str  # create, get, update, ...
    namespace: str
    name: str
    body: Object | None
    query: Mapping[str, str]
    user: User
    dry_run: bool = False


@dataclass(frozen=True)
class Subresource:
    """Describes a subresource other than status and scale.

    `handle` returns an object (binding, eviction, token, approve); `connect` answers the HTTP request itself (log,
    proxy, exec) and isn't reachable in process. `path` is the rest of the URL after the subresource's name (proxy).
    Give exactly one.
    """

    name: str
    kind: str
    group: str = ""
    version: str = ""
    verbs: tuple[str, ...] = ("create",)
    handle: Callable[[SubresourceCall], Awaitable[Object]] | None = None
    connect: Callable[[SubresourceCall, web.BaseRequest, str], Awaitable[web.StreamResponse]] | None = None


def _nothing(obj: Object) -> None:
    return None


def _nothing_unknown(obj: Object) -> list[str]:
    return []


def _nothing_old(new: Object, old: Object) -> None:
    return None


def _nothing_admission(obj: Object, old: Object | None, admission: Admission) -> None:
    return None


def _valid(obj: Object) -> list[FieldError]:
    return []


def _valid_old(new: Object, old: Object) -> list[FieldError]:
    return []


@dataclass(frozen=True)
class ResourceType:
    """Describes one version of one type. Missing hooks do nothing."""

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    list_kind: str = ""  # empty: kind + "List"

    schema: Mapping[str, Any] = field(default_factory=dict)
    """Structural OpenAPI v3 of the whole object, without $ref: `default`, `x-kubernetes-list-type`,
    `x-kubernetes-list-map-keys`, `x-kubernetes-map-type`, `x-kubernetes-patch-merge-key`,
    `x-kubernetes-patch-strategy`, `x-kubernetes-preserve-unknown-fields`, `x-kubernetes-int-or-string`,
    `x-kubernetes-embedded-resource`, `x-kubernetes-validations`. For `metadata`, `{"type": "object"}` is enough. With
    an empty schema everything is kept. For built-ins the API checks names and JSON types of fields (400, as Go's
    decoder does); the `validate_*` hooks check required fields, enums and bounds."""

    zero: Mapping[str, Any] = field(default_factory=lambda: {"metadata": {}})
    """The empty Go struct as JSON (`{"metadata": {}, "spec": {"containers": None}}`): the parts of an object
    that its creator doesn't own as a whole in managedFields. Custom resources keep the default."""

    custom: bool = False
    """True for a CRD's type: errors are worded as for custom resources, and strategic merge patches are refused."""
    has_status: bool = False
    scale: ScalePaths | None = None
    scale_selector: Callable[[Object], str] | None = None
    """The label selector in its string form, for the scale subresource of built-ins."""
    subresources: Mapping[str, Subresource] = field(default_factory=dict)

    prune: Callable[[Object], list[str]] = _nothing_unknown
    """Drops unknown fields that the schema doesn't show, in place; returns their paths."""
    default: Callable[[Object], None] = _nothing
    admit: Callable[[Object, Object | None, Admission], None] = _nothing_admission
    """Admission: `(obj, old or None, admission)`; changes obj, may raise ApiError (quota, service account, ...)."""
    prepare_create: Callable[[Object], None] = _nothing
    prepare_update: Callable[[Object, Object], None] = _nothing_old
    prepare_status: Callable[[Object, Object], None] = _nothing_old
    """Called with `(new, old)` on an update of the status subresource, after spec and metadata were restored."""
    validate_create: Callable[[Object], list[FieldError]] = _valid
    validate_update: Callable[[Object, Object], list[FieldError]] = _valid_old
    validate_status: Callable[[Object, Object], list[FieldError]] = _valid_old
    warnings: Callable[[Object], list[str]] | None = None
    name_rule: Callable[[str], list[str]] | None = None
    """Returns the messages about an invalid name; if it is None, names are DNS subdomains. `names` has other rules."""

    columns: tuple[Column, ...] = ()
    """All columns in order, Name first. Empty: Name and Age."""
    row: Callable[[Object, float], list[Any]] | None = None
    """`(obj, now in seconds since the epoch) -> one cell for each column`."""

    selectable: tuple[str, ...] = ()
    """Field selectors beyond metadata.name and metadata.namespace (`spec.nodeName`)."""
    selectable_values: Callable[[Object], Mapping[str, str]] | None = None
    """Returns the value of each; if it is None, values are read by path, and an absent one is the empty string."""

    tracks_generation: bool = False
    """A change outside metadata (and outside status, if that is a subresource) raises metadata.generation."""
    unconditional_update: bool = True
    """An update without resourceVersion replaces any version. Custom resources refuse such an update."""
    create_on_update: bool = False
    """PUT of a missing name creates the object (for Leases and Events, not for ConfigMaps and Pods)."""
    answers_deleted_object: bool = False
    """DELETE answers with the object instead of a Status (Pods, Services, PVCs, ServiceAccounts)."""
    grace_period: Callable[[Object, int | None], int] | None = None
    """`(obj, requested gracePeriodSeconds or None) -> seconds`; 0 deletes at once, more sets deletionTimestamp."""
    holds_deletion: Callable[[Object], bool] | None = None
    """True while something other than metadata.finalizers keeps the object (a namespace's spec.finalizers)."""
    begin_deletion: Callable[[Object], None] | None = None
    """Changes the object when its deletion begins and it stays (a namespace's phase)."""
    answer: Callable[[SubresourceCall], Awaitable[Object]] | None = None
    """Returns the answer to a create of a type that is never stored (SelfSubjectAccessReview)."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """Returns `statefulsets.apps`, the type's name in errors and in `Api`'s methods."""
        return qualified(self.group, self.plural)

    @property
    def kind_of_list(self) -> str:
        return self.list_kind or f"{self.kind}List"


class Registry:
    """The registry holds the served types, each in one version, by `pods`, `statefulsets.apps`, ..."""

    def __init__(self) -> None:
        self._types: dict[str, ResourceType] = {}
        self._listeners: list[Callable[[], None]] = []
        self._extra: dict[str, dict[str, Subresource]] = {}

    def add(self, type_: ResourceType) -> None:
        """Serves a type, or replaces it."""
        extra = self._extra.get(type_.qualified)
        if extra:
            type_ = replace(type_, subresources={**type_.subresources, **extra})
        self._types[type_.qualified] = type_
        self._changed()

    def remove(self, resource: str) -> None:
        """Stops serving a type, if it was served."""
        self._types.pop(resource, None)
        self._changed()

    def attach(self, resource: str, subresource: Subresource) -> None:
        """Adds a subresource to a type that is or will be served: the kubelet attaches `log` to `pods`."""
        self._extra.setdefault(resource, {})[subresource.name] = subresource
        if resource in self._types:
            self.add(self._types[resource])

    def find(self, group: str, version: str, plural: str) -> ResourceType | None:
        type_ = self._types.get(qualified(group, plural))
        return type_ if type_ is not None and type_.version == version else None

    def by_name(self, resource: str) -> ResourceType:
        """Returns the type of `pods`, `statefulsets.apps`, ... Raises KeyError if it isn't served."""
        return self._types[resource]

    def by_kind(self, group: str, kind: str) -> ResourceType | None:
        return next((t for t in self._types.values() if t.group == group and t.kind == kind), None)

    def __iter__(self) -> Iterator[ResourceType]:
        return iter(list(self._types.values()))

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls `listener` whenever a type is added or removed (discovery and OpenAPI are rebuilt)."""
        self._listeners.append(listener)

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()

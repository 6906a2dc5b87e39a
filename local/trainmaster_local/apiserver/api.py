"""The API in process is the one path that every request takes after decoding.

The local cluster's controllers and kubelet call `Api` directly, the HTTP layer calls it for clients. A resource is
named as in errors (`pods`, `statefulsets.apps`, or `widgets.example.dev` for the stored version), or by its
`ResourceType`. Every method raises `ApiError`, whose `status` is Kubernetes' answer.

Results are shared with the storage and with every other reader: never change them. `copied` returns your own copy, and
`modify` reads, changes and updates an object in one step::

    await api.modify("pods", name, namespace, lambda pod: pod["status"].update(phase="Running"), subresource="status")
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from trainmaster_local.apiserver.apimachinery.errors import (
    ApiError,
    bad_request,
    invalid,
    method_not_supported,
    no_such_resource,
)
from trainmaster_local.apiserver.patches import managed
from trainmaster_local.apiserver.patches.json_patches import json_patch, merge_patch
from trainmaster_local.apiserver.patches.strategic import strategic_merge_patch
from trainmaster_local.apiserver.plans import Plan, Plans
from trainmaster_local.apiserver.resources import Object, Registry, ResourceType, Subresource, SubresourceCall, User
from trainmaster_local.apiserver.storage import listing
from trainmaster_local.apiserver.storage.listing import ListResult
from trainmaster_local.apiserver.storage.store import Revision, Storage
from trainmaster_local.apiserver.storage.watching import INITIAL_EVENTS_END, Watch, WatchEvent
from trainmaster_local.apiserver.writing.admission_policies import Write
from trainmaster_local.apiserver.writing.deleter import DeleteOptions, Deleter
from trainmaster_local.apiserver.writing.scaling import scale_of, with_scale
from trainmaster_local.apiserver.writing.writer import Options, Writer, check_manager, check_name, copied, require

__all__ = ["Api", "ApiError", "DeleteOptions", "ListResult", "Options", "Watch", "WatchEvent", "copied"]

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

Resource = str | ResourceType


class Api:
    """The API of a cluster works on a registry of types and a storage in memory."""

    def __init__(
        self,
        registry: Registry,
        storage: Storage | None = None,
        *,
        clock: Callable[[], float] = time.time,
        random_: random.Random | None = None,
    ) -> None:
        self.registry = registry
        self.storage = storage if storage is not None else Storage()
        self.clock = clock
        self.plans = Plans(registry)
        self._writer = Writer(self, self.storage, clock, random_ or random.Random())
        self._deleter = Deleter(self.storage, self._writer, clock)

    def plan(self, resource: Resource) -> Plan:
        """Returns the type, ready for requests. Raises 404 if it isn't served."""
        if isinstance(resource, ResourceType):
            return self.plans.of(resource)
        try:
            return self.plans.of(self.registry.by_name(resource))
        except KeyError:
            raise no_such_resource() from None

    def peek(self, resource: str, name: str, namespace: str = "") -> Object | None:
        """Returns the current object, or None. This is synchronous, for hooks and controllers."""
        found = self.storage.get(resource, namespace, name)
        return None if found is None else found.object

    def peek_all(self, resource: str, namespace: str = "") -> list[Object]:
        """Returns all current objects, sorted by namespace and name."""
        return [revision.object for revision in self.storage.items(resource, namespace)]

    def revision(self, plan: Plan, name: str, namespace: str = "") -> Revision:
        """Returns the stored revision. Raises 404."""
        space = namespace if plan.type.namespaced else ""
        return require(plan, self.storage.get(plan.resource, space, name), name)

    async def get(self, resource: Resource, name: str, namespace: str = "", *, subresource: str = "") -> Object:
        plan = self.plan(resource)
        found = self.revision(plan, name, namespace)
        if subresource == "scale" and plan.type.scale is not None:
            return scale_of(plan.type, found.object)
        if subresource in ("", "status"):
            return found.object
        return await self._call(plan, subresource, "get", name, namespace, None, Options())

    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        limit: int = 0,
        token: str = "",
        version: str = "",
        match: str = "",
    ) -> ListResult:
        """Returns a page of objects; all of them without a `limit`. Selectors are in their string forms."""
        plan = self.plan(resource)
        matches = listing.matcher(plan, labels, fields)
        return listing.list_page(
            self.storage, plan, namespace, matches, limit=limit, token=token, version=version, match=match
        )

    async def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        version: str = "",
        initial: bool | None = None,
        bookmarks: bool = False,
    ) -> Watch:
        """Opens a watch after `version`; without a version it first delivers the existing objects as ADDED.

        `initial` is the option sendInitialEvents. With `bookmarks` a BOOKMARK follows the existing objects. Raises 410
        if the version is compacted.
        """
        plan = self.plan(resource)
        matches = listing.matcher(plan, labels, fields)
        asked = listing.parse_version(version)
        with_state = initial if initial is not None else not asked
        watch = Watch(self.storage, plan.resource, namespace, matches)
        try:
            if with_state:
                for revision in self.storage.items(plan.resource, namespace):
                    if matches is None or matches(revision.object):
                        watch.start_with(WatchEvent("ADDED", revision))
                if bookmarks and (initial or not version):
                    watch.start_with(self.bookmark(plan, {INITIAL_EVENTS_END: "true"}))
            else:
                for change in self.storage.changes_since(plan.resource, asked):
                    watch.replay(change)
        except ApiError:
            watch.close()
            raise
        return watch

    def bookmark(self, plan: Plan, annotations: Mapping[str, str] | None = None) -> WatchEvent:
        """Returns a bookmark with the version that the watch has reached."""
        metadata: dict[str, Any] = {"resourceVersion": str(self.storage.version)}
        if annotations:
            metadata["annotations"] = dict(annotations)
        obj = {"kind": plan.type.kind, "apiVersion": plan.type.api_version, "metadata": metadata}
        return WatchEvent("BOOKMARK", Revision(obj, self.storage.version))

    async def create(
        self,
        resource: Resource,
        body: Object,
        namespace: str = "",
        *,
        name: str = "",
        subresource: str = "",
        options: Options | None = None,
    ) -> Object:
        """Creates an object, or calls a subresource of `name` that accepts one (binding, eviction, token)."""
        plan = self.plan(resource)
        options = options or Options()
        if subresource:
            return await self._call(plan, subresource, "create", name, namespace, body, options)
        obj = self._writer.decode(plan, copied(body), options)
        if plan.type.answer is not None:
            return await self._answer(plan, obj, namespace, options)
        return self._writer.create(plan, obj, namespace, options).object

    async def _answer(self, plan: Plan, obj: Object, namespace: str, options: Options) -> Object:
        """Returns the answer of a type that isn't stored; its managedFields are those of a create."""
        type_ = plan.type
        assert type_.answer is not None
        self._writer.defaulted(plan, obj)
        manager = managed.Manager(options.manager, "Update", type_.api_version)
        entries = managed.updated(type_.zero, obj, {}, manager, plan.schema, self._writer.now(), plan.reset)
        errors = type_.validate_create(obj)
        if errors:
            raise invalid(type_.group, type_.kind, obj["metadata"].get("name", ""), errors)
        name = obj["metadata"].get("name", "")
        call = SubresourceCall(self, type_, "", "create", namespace, name, obj, {}, options.user, options.dry_run)
        answer = copied(await type_.answer(call))
        managed.write(answer, entries)
        return answer

    async def update(
        self,
        resource: Resource,
        body: Object,
        namespace: str = "",
        *,
        name: str = "",
        subresource: str = "",
        options: Options | None = None,
    ) -> Object:
        """Replaces an object. A resourceVersion in it must be the current one; custom resources must have one."""
        plan = self.plan(resource)
        options = options or Options()
        name = name or _metadata_of(body).get("name", "")
        if subresource and subresource not in ("status", "scale"):
            return await self._call(plan, subresource, "update", name, namespace, body, options)
        space = namespace if plan.type.namespaced else ""
        old = self.storage.get(plan.resource, space, name)
        if subresource == "scale":
            return self._write_scale(plan, require(plan, old, name), copied(body), options)
        obj = self._writer.decode(plan, copied(body), options)
        check_name(obj, name)
        if old is None and plan.type.create_on_update and not subresource:
            return self._writer.create(plan, obj, namespace, options).object
        old = require(plan, old, name)
        unconditional = plan.type.unconditional_update and not plan.type.custom
        revision = self._writer.update(plan, old, obj, subresource, options, unconditional=unconditional)
        return revision.object

    async def modify(
        self,
        resource: Resource,
        name: str,
        namespace: str,
        change: Callable[[Object], None],
        *,
        subresource: str = "",
        options: Options | None = None,
    ) -> Object:
        """Reads, changes a copy and updates, in one atomic step. Raises 404."""
        plan = self.plan(resource)
        obj = copied(self.revision(plan, name, namespace).object)
        change(obj)
        return await self.update(resource, obj, namespace, name=name, subresource=subresource, options=options)

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Any,
        namespace: str = "",
        *,
        kind: str = MERGE,
        subresource: str = "",
        options: Options | None = None,
    ) -> Object:
        """Patches by `kind`, the patch's media type: MERGE, JSON or STRATEGIC (built-ins only)."""
        plan = self.plan(resource)
        options = options or Options()
        if subresource not in ("", "status", "scale") and subresource not in plan.type.subresources:
            raise no_such_resource()
        old = self.revision(plan, name, namespace)
        if subresource == "scale":
            scale = _patched(plan, scale_of(plan.type, old.object), patch, kind)
            return self._write_scale(plan, old, copied(scale), options)
        patched = copied(_patched(plan, old.object, patch, kind))
        if _metadata_of(patch).get("resourceVersion") is None and kind != JSON:
            patched.setdefault("metadata", {})["resourceVersion"] = str(old.version)
        obj = self._writer.decode(plan, patched, options)
        if subresource in plan.type.subresources:
            return await self._call(plan, subresource, "patch", name, namespace, obj, options)
        check_name(obj, name)
        return self._writer.update(plan, old, obj, subresource, options).object

    async def apply(
        self,
        resource: Resource,
        name: str,
        config: Object,
        namespace: str = "",
        *,
        force: bool = False,
        subresource: str = "",
        options: Options,
    ) -> Object:
        """Applies a configuration for `options.manager`. Raises 409 with every conflict unless `force`."""
        plan = self.plan(resource)
        check_manager(options.manager)
        version, kind = (config.get(field) for field in ("apiVersion", "kind"))
        if subresource != "scale" and (version, kind) != (plan.type.api_version, plan.type.kind):
            named = kind if isinstance(kind, str) else ""
            raise bad_request(f"invalid object type: {_group_version(version)}, Kind={named}")
        if _metadata_of(config).get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        space = namespace if plan.type.namespaced else ""
        old = self.storage.get(plan.resource, space, name)
        if subresource == "scale":
            found = require(plan, old, name)
            return self._write_scale(plan, found, copied(config), options)
        if subresource:
            require(plan, old, name)
        revision = self._writer.apply(plan, old, config, namespace, name, subresource, options, force)
        return revision.object

    def _write_scale(self, plan: Plan, old: Revision, scale: Object, options: Options) -> Object:
        new = copied(with_scale(plan.type, old.object, scale))
        written = self._writer.update(plan, old, new, "scale", options)
        return scale_of(plan.type, written.object)

    async def delete(
        self, resource: Resource, name: str, namespace: str = "", *, options: DeleteOptions | None = None
    ) -> Object:
        """Deletes an object, or starts to. Returns the object while it still exists, else the type's answer."""
        plan = self.plan(resource)
        found = self.revision(plan, name, namespace)
        return self._deleter.delete(plan, found, options or DeleteOptions())

    async def delete_collection(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        options: DeleteOptions | None = None,
    ) -> ListResult:
        """Deletes every object that the selectors match, and returns these objects."""
        plan = self.plan(resource)
        found = await self.list(resource, namespace, labels=labels, fields=fields)
        for index, revision in enumerate(found.revisions):
            self._deleter.delete(plan, revision, options or DeleteOptions())
            if index % 200 == 199:
                await asyncio.sleep(0)
        return ListResult(found.revisions, self.storage.version)

    def admit_connection(
        self, type_: ResourceType, subresource: Subresource, namespace: str, name: str, user: User
    ) -> None:
        """Asks the admission policies about a connection (proxy, exec). Raises ApiError if one refuses it."""
        version = f"{subresource.group}/{subresource.version}" if subresource.group else subresource.version
        options = {"kind": subresource.kind, "apiVersion": version}
        self._writer.policies.check(Write(type_, "CONNECT", options, None, namespace, name, user, subresource.name))

    async def _call(
        self,
        plan: Plan,
        subresource: str,
        verb: str,
        name: str,
        namespace: str,
        body: Object | None,
        options: Options,
    ) -> Object:
        """Calls a subresource that the type handles itself."""
        handler: Subresource | None = plan.type.subresources.get(subresource)
        if handler is None:
            raise no_such_resource()
        if handler.handle is None or verb not in handler.verbs:
            raise method_not_supported(plan.type.group, f"{plan.type.plural}/{subresource}", verb)
        if verb == "create":
            self._writer.policies.check(
                Write(plan.type, "CREATE", body, None, namespace, name, options.user, subresource, options.dry_run)
            )
        return await handler.handle(
            SubresourceCall(
                self, plan.type, subresource, verb, namespace, name, body, {}, options.user, options.dry_run
            )
        )


def _patched(plan: Plan, obj: Object, patch: Any, kind: str) -> Object:
    if kind == JSON:
        return json_patch(obj, patch)
    if not isinstance(patch, dict):
        raise bad_request(
            f"json: cannot unmarshal {type(patch).__name__} into Go value of type map[string]interface {{}}"
        )
    if kind == STRATEGIC:
        return strategic_merge_patch(obj, patch, plan.schema)
    merged: Object = merge_patch(obj, patch)
    return merged


def _group_version(version: Any) -> str:
    """Returns a group and version as Go prints them: `/v1` of the legacy group."""
    if not isinstance(version, str) or not version:
        return "/"
    return version if "/" in version else f"/{version}"


def _metadata_of(patch: Any) -> Mapping[str, Any]:
    metadata = patch.get("metadata") if isinstance(patch, dict) else None
    return metadata if isinstance(metadata, Mapping) else {}

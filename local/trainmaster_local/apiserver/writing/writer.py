"""The writer turns a body into a stored revision, by a create or an update, as kube-apiserver's generic registry does.

`Writer` is synchronous: its reads and writes happen in one instant. So a conflict always means that the caller's
resourceVersion is old, never a race.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainmaster_local.apiserver.apimachinery import deep, objectmeta
from trainmaster_local.apiserver.apimachinery.errors import (
    ApiError,
    FieldError,
    Undecodable,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid,
    not_found,
    summary,
)
from trainmaster_local.apiserver.patches import managed, typed
from trainmaster_local.apiserver.patches.managed import Entries, Manager
from trainmaster_local.apiserver.plans import Plan
from trainmaster_local.apiserver.resources import SYSTEM, Admission, Object, User
from trainmaster_local.apiserver.schema import pruning
from trainmaster_local.apiserver.schema.defaulting import prune_nulls, set_defaults
from trainmaster_local.apiserver.storage.store import Revision, Storage
from trainmaster_local.apiserver.writing.admission_policies import Policies, Write
from trainmaster_local.apiserver.writing.validating import custom_errors

if TYPE_CHECKING:
    from trainmaster_local.apiserver.api import Api


@dataclass(frozen=True)
class Options:
    """A write has these options. `validation` is Ignore, Warn or Strict.

    The write's warnings, including `duplicates`, are appended to `warnings`, one message each.
    """

    user: User = SYSTEM
    manager: str = "unknown"
    dry_run: bool = False
    validation: str = "Warn"
    duplicates: tuple[str, ...] = ()
    warnings: list[str] = field(default_factory=list)


def copied(obj: Object) -> Object:
    """Returns a deep copy."""
    copy: Object = deep.copied(obj)
    return copy


class Writer:
    """The writer writes to the storage for `Api`."""

    def __init__(self, api: Api, storage: Storage, clock: Callable[[], float], random_: random.Random) -> None:
        self._api = api
        self._storage = storage
        self._clock = clock
        self._random = random_
        self.policies = Policies(storage)

    def now(self) -> str:
        return objectmeta.rfc3339(self._clock())

    def decode(self, plan: Plan, body: Any, options: Options) -> Object:
        """Returns the object of a body, pruned, with its kind checked."""
        type_ = plan.type
        if not isinstance(body, dict):
            raise bad_request(f"the object provided is unrecognized (must be of type {type_.kind})")
        pruning.check_type_meta(body, type_.kind, type_.version, type_.custom)
        if not type_.custom:
            body.setdefault("kind", type_.kind)
            body.setdefault("apiVersion", type_.api_version)
        kind, version = body.get("kind", ""), body.get("apiVersion", "")
        if not kind:
            text = deep.dumps(body).decode()
            problem = f"(must be of type {type_.kind}): Object 'Kind' is missing in '{text}'"
            raise bad_request(f"the object provided is unrecognized {problem} ({summary(text)})")
        if kind != type_.kind:
            if type_.custom:
                group = version.rpartition("/")[0]
                error = FieldError.invalid("kind", kind, f"must be {type_.kind}")
                raise invalid(group, kind, (body.get("metadata") or {}).get("name", ""), [error])
            raise bad_request(
                f'{kind} in version "{version.rpartition("/")[2]}" cannot be handled as a {type_.kind}: '
                f'no kind "{kind}" is registered for version "{version}" in scheme "pkg/api/legacyscheme/scheme.go:30"'
            )
        if version != type_.api_version:
            raise bad_request(
                f"the API version in the data ({version}) does not match the expected API version ({type_.api_version})"
            )
        metadata = body.setdefault("metadata", {})
        if metadata is None:
            metadata = body["metadata"] = {}
        unknown: list[str] = []
        if plan.decoder is not None:
            unknown = plan.decoder.decode(body, type_.kind, type_.version)
            if type_.custom:
                unknown.sort()
        unknown += type_.prune(body)
        self._report(plan, unknown, options)
        objectmeta.drop_empty(metadata)
        return body

    def _report(self, plan: Plan, unknown: list[str], options: Options) -> None:
        if not (unknown or options.duplicates) or options.validation == "Ignore":
            return
        problems = [*options.duplicates, *(f'unknown field "{path}"' for path in unknown)]
        if options.validation == "Strict":
            raise pruning.strict_error(plan.type.kind, plan.type.version, problems)
        options.warnings.extend(problems)

    def defaulted(self, plan: Plan, obj: Object, *, applied: bool = False) -> None:
        """Sets defaults, and drops forbidden nulls; Kubernetes validates those of an applied configuration first."""
        if plan.defaults:
            set_defaults(obj, plan.schema)
        if plan.type.custom and not applied:
            prune_nulls(obj, plan.schema)
        plan.type.default(obj)

    def place(self, plan: Plan, obj: Object, namespace: str) -> None:
        """Puts the request's namespace into the object. Raises 400 if the object names another namespace."""
        metadata = obj["metadata"]
        if not plan.type.namespaced:
            return
        if metadata.get("namespace", namespace) != namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        metadata["namespace"] = namespace

    def _check_namespace(self, plan: Plan, namespace: str, name: str) -> None:
        """Applies the NamespaceLifecycle admission: nothing is created in a missing or terminating namespace."""
        if not plan.type.namespaced or self._api.registry.find("", "v1", "namespaces") is None:
            return
        found = self._storage.get("namespaces", "", namespace)
        if found is None:
            raise not_found("", "namespaces", namespace)
        if found.object["metadata"].get("deletionTimestamp"):
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {namespace} is being terminated",
                "field": "metadata.namespace",
            }
            problem = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise forbidden(plan.type.group, plan.type.plural, name, problem, [cause])

    def create(
        self, plan: Plan, obj: Object, namespace: str, options: Options, entries: Entries | None = None
    ) -> Revision:
        """Stores a decoded object as a new one. `entries` are the owners of its fields if an apply created it."""
        type_ = plan.type
        self.place(plan, obj, namespace)
        metadata = obj["metadata"]
        self._check_namespace(plan, namespace, metadata.get("name", ""))
        generated = not metadata.get("name") and bool(metadata.get("generateName"))
        if generated:
            metadata["name"] = self._unused_name(plan, namespace, metadata["generateName"])
        if type_.custom and type_.has_status:
            obj.pop("status", None)
        self.defaulted(plan, obj, applied=entries is not None)
        objectmeta.set_on_create(metadata, self._clock())
        if type_.tracks_generation:
            metadata["generation"] = 1
        if entries is None:
            manager = Manager(options.manager, "Update", type_.api_version)
            metadata.pop("managedFields", None)
            entries = managed.updated(type_.zero, obj, {}, manager, plan.schema, self.now(), plan.reset)
        managed.write(obj, entries)
        admission = Admission(self._api, type_, "CREATE", namespace, options.user, options.dry_run)
        type_.admit(obj, None, admission)
        type_.prepare_create(obj)
        errors = objectmeta.validate(obj, type_.namespaced, type_.name_rule, custom=type_.custom)
        errors += custom_errors(plan, obj, None, errors) if type_.custom else type_.validate_create(obj)
        if errors:
            raise invalid(type_.group, type_.kind, metadata.get("name", ""), errors)
        self.policies.check(
            Write(type_, "CREATE", obj, None, namespace, metadata["name"], options.user, dry_run=options.dry_run)
        )
        if type_.warnings is not None:
            options.warnings.extend(type_.warnings(obj))
        if self._storage.get(plan.resource, self._space(plan, namespace), metadata["name"]) is not None:
            raise already_exists(type_.group, type_.plural, metadata["name"])
        return self._put(plan, namespace, metadata["name"], obj, options)

    def _unused_name(self, plan: Plan, namespace: str, base: str) -> str:
        name = objectmeta.generate_name(base, self._random)
        while self._storage.get(plan.resource, self._space(plan, namespace), name) is not None:
            name = objectmeta.generate_name(base, self._random)
        return name

    def _space(self, plan: Plan, namespace: str) -> str:
        return namespace if plan.type.namespaced else ""

    def _put(self, plan: Plan, namespace: str, name: str, obj: Object, options: Options) -> Revision:
        if plan.type.custom:
            prune_nulls(obj, plan.schema)
        ordered = {"kind": obj["kind"], "apiVersion": obj["apiVersion"], "metadata": obj["metadata"], **obj}
        if options.dry_run:
            return Revision(ordered, self._storage.version)
        return self._storage.put(plan.resource, self._space(plan, namespace), name, ordered)

    def update(
        self,
        plan: Plan,
        old: Revision,
        new: Object,
        subresource: str,
        options: Options,
        *,
        entries: Entries | None = None,
        unconditional: bool = True,
    ) -> Revision:
        """Stores a decoded object over `old`; writes nothing if nothing changes.

        `entries` are the fields' owners if an apply made `new`; else they are computed. `unconditional` is False for a
        PUT that must name the resourceVersion it replaces.
        """
        type_ = plan.type
        before = old.object
        name = before["metadata"]["name"]
        namespace = before["metadata"].get("namespace", "")
        self.place(plan, new, namespace)
        metadata = new["metadata"]
        self._check_preconditions(plan, old, metadata, unconditional)
        self._restrict(plan, new, before, subresource)
        metadata = new["metadata"]
        applied = entries is not None
        self.defaulted(plan, new, applied=applied)
        objectmeta.keep_on_update(metadata, before["metadata"])
        metadata["resourceVersion"] = before["metadata"]["resourceVersion"]
        if entries is None:
            entries = self._entries(plan, new, before, subresource, options)
        managed.write(new, entries)
        admission = Admission(self._api, type_, "UPDATE", namespace, options.user, options.dry_run, subresource)
        type_.admit(new, before, admission)
        (type_.prepare_status if subresource == "status" else type_.prepare_update)(new, before)
        if type_.tracks_generation and self._spec_changed(plan, new, before):
            metadata["generation"] = before["metadata"].get("generation", 0) + 1
        errors = objectmeta.validate_update(new, before)
        if type_.custom:
            # kube-apiserver validates custom resources twice, so it lists each cause twice.
            errors += errors + objectmeta.validate(new, type_.namespaced, type_.name_rule, custom=True)
            errors += custom_errors(plan, new, before, errors)
        else:
            errors += (
                objectmeta.validate(new, type_.namespaced, type_.name_rule) if metadata != before["metadata"] else []
            )
            errors += (type_.validate_status if subresource == "status" else type_.validate_update)(new, before)
        if errors:
            raise invalid(type_.group, type_.kind, name, errors)
        self.policies.check(
            Write(type_, "UPDATE", new, before, namespace, name, options.user, subresource, options.dry_run)
        )
        if type_.warnings is not None and not subresource:
            options.warnings.extend(type_.warnings(new))
        return self._finish_update(plan, old, new, options)

    def _check_preconditions(self, plan: Plan, old: Revision, metadata: dict[str, Any], unconditional: bool) -> None:
        type_ = plan.type
        name = old.object["metadata"]["name"]
        version = metadata.get("resourceVersion") or ""
        if not version and not unconditional:
            error = FieldError(
                "metadata.resourceVersion", "FieldValueInvalid", "Invalid value: 0: must be specified for an update"
            )
            raise invalid(type_.group, type_.plural, name, [error])
        if version and version not in (str(old.version), "0"):
            raise conflict(type_.group, type_.plural, name)
        uid = metadata.get("uid") or ""
        if uid and uid != old.object["metadata"]["uid"]:
            problem = (
                f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old.object['metadata']['uid']}"
            )
            raise conflict(type_.group, type_.plural, name, problem)

    def _restrict(self, plan: Plan, new: Object, before: Object, subresource: str) -> None:
        """Restores the fields that this endpoint doesn't write: status on the main one, everything else on status."""
        if not plan.type.has_status:
            return
        if subresource == "status":
            for name in [name for name in new if name not in ("status", "metadata", "kind", "apiVersion")]:
                if name not in before:
                    del new[name]
            for name, value in before.items():
                if name not in ("status", "metadata", "kind", "apiVersion"):
                    new[name] = value
            if plan.type.custom:
                given = new["metadata"].get("managedFields")
                new["metadata"] = dict(before["metadata"])
                if given is not None:
                    new["metadata"]["managedFields"] = given
        elif "status" in before:
            new["status"] = before["status"]
        else:
            new.pop("status", None)

    def _entries(self, plan: Plan, new: Object, before: Object, subresource: str, options: Options) -> Entries:
        """Returns the fields' owners after this update: the object's own managedFields, if any, plus the changes."""
        given = new["metadata"].get("managedFields")
        entries = managed.read(new if given else before)
        time = "" if subresource == "scale" else self.now()
        manager = Manager(options.manager, "Update", plan.type.api_version, subresource)
        return managed.updated(before, new, entries, manager, plan.schema, time)

    def _spec_changed(self, plan: Plan, new: Object, before: Object) -> bool:
        ignored = {"metadata", "kind", "apiVersion"}
        if plan.type.has_status:
            ignored.add("status")
        names = (new.keys() | before.keys()) - ignored
        return any(new.get(name) != before.get(name) for name in names)

    def _finish_update(self, plan: Plan, old: Revision, new: Object, options: Options) -> Revision:
        before = old.object
        metadata = new["metadata"]
        name = metadata["name"]
        namespace = metadata.get("namespace", "")
        if before["metadata"].get("deletionTimestamp") and self.can_go(plan, new):
            if options.dry_run:
                return Revision(new, old.version)
            self._storage.remove(plan.resource, self._space(plan, namespace), name, last=new)
            return Revision(new, old.version)
        new["apiVersion"] = before["apiVersion"]
        if new == before:
            return old
        return self._put(plan, namespace, name, new, options)

    def can_go(self, plan: Plan, obj: Object) -> bool:
        """Returns whether nothing keeps an object whose deletion has begun."""
        metadata = obj["metadata"]
        held = plan.type.holds_deletion is not None and plan.type.holds_deletion(obj)
        return not metadata.get("finalizers") and not metadata.get("deletionGracePeriodSeconds") and not held

    def apply(
        self,
        plan: Plan,
        old: Revision | None,
        config: Object,
        namespace: str,
        name: str,
        subresource: str,
        options: Options,
        force: bool,
    ) -> Revision:
        """Applies a configuration: creates the object or merges into it. Raises 500 if the schema doesn't allow it."""
        type_ = plan.type
        metadata = config.get("metadata")
        given: Object = metadata if isinstance(metadata, dict) else {}
        kind = f"{type_.group}/{type_.version}, Kind={type_.kind}"
        applied = "({}/{}; {})".format(*(_text(given.get(part)) for part in ("namespace", "name")), kind)
        misfit = typed.problems(config, plan.schema)
        if misfit:
            raise ApiError(500, "", f"failed to create typed patch object {applied}: {misfit}")
        manager = Manager(options.manager, "Apply", type_.api_version, subresource)
        if subresource == "status":
            reset: tuple[tuple[str, ...], ...] = (("f:spec",), ("f:metadata",)) if type_.custom else (("f:spec",),)
        else:
            reset = plan.reset
        live: Object = old.object if old is not None else {"metadata": {}}
        entries = managed.read(live)
        merged, entries = managed.applied(
            live, config, entries, manager, plan.schema, self.now(), force=force, reset=reset
        )
        try:
            merged = self._converted(plan, merged)
        except Undecodable as error:
            problem = f"unable to convert unstructured object to {kind}: {error.problem}"
            raise ApiError(500, "", f"failed to convert new object {applied} to proper version: {problem}") from error
        self._report_repeated(options)
        check_name(merged, name, url=f"{name} based on URL")
        metadata = merged["metadata"]
        if old is None:
            metadata.pop("managedFields", None)
            if metadata.get("uid"):
                problem = f"Precondition failed: UID in precondition: {metadata['uid']}, UID in object meta: "
                raise conflict(type_.group, type_.plural, name, problem)
            return self.create(plan, merged, namespace, options, entries)
        metadata["resourceVersion"] = given.get("resourceVersion", "")
        return self.update(plan, old, merged, subresource, options, entries=entries)

    def _converted(self, plan: Plan, merged: Object) -> Object:
        """Returns an apply's result as an object of its type, without fields that only an open schema allowed."""
        merged = copied(merged)
        if merged.get("metadata") is None:
            merged["metadata"] = {}
        if plan.decoder is not None:
            plan.decoder.decode(merged, plan.type.kind, plan.type.version, converts=True)
        plan.type.prune(merged)
        return merged

    def _report_repeated(self, options: Options) -> None:
        """Reports the duplicate keys in the YAML of an applied configuration."""
        if options.duplicates and options.validation == "Strict":
            listed = "".join(f"\n  {problem}" for problem in options.duplicates)
            raise bad_request(
                f"error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:{listed}"
            )
        if options.validation != "Ignore":
            options.warnings.extend(options.duplicates)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def check_name(obj: Object, name: str, url: str = "") -> None:
    """Raises 400 if an object's name differs from the request's URL.

    `url`: the object must have a name, and the error quotes it.
    """
    given = obj["metadata"].get("name") or ""
    if url and not given:
        raise bad_request(f"the name of the object ({url}) was undeterminable: name must be provided")
    if given and given != name:
        raise bad_request(f"the name of the object ({given}) does not match the name on the URL ({name})")
    obj["metadata"]["name"] = name


def require(plan: Plan, revision: Revision | None, name: str) -> Revision:
    """Returns the revision. Raises 404 if there is none."""
    if revision is None:
        raise not_found(plan.type.group, plan.type.plural, name)
    return revision


def check_manager(manager: str) -> None:
    """Raises ApiError if a server-side apply names no manager."""
    if not manager:
        error = FieldError.required("fieldManager", "is required for apply patch")
        raise ApiError(
            422,
            "Invalid",
            f'PatchOptions.meta.k8s.io "" is invalid: {error}',
            details={"group": "meta.k8s.io", "kind": "PatchOptions", "causes": [error.cause()]},
        )

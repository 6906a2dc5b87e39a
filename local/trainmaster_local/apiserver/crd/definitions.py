"""CustomResourceDefinitions are validated here, and become served types.

`install` adds the type and synchronises the registry with the storage. A new definition is established at once. When a
definition is deleted, its objects are deleted first, and then its finalizer is removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from trainmaster_local.apiserver.api import Api, Options
from trainmaster_local.apiserver.apimachinery import objectmeta
from trainmaster_local.apiserver.apimachinery.errors import NOT_HERE, ApiError, FieldError
from trainmaster_local.apiserver.apimachinery.names import dns_1035_problems, dns_subdomain_problems
from trainmaster_local.apiserver.cel.rules import RuleError, Rules
from trainmaster_local.apiserver.crd.schema import SCHEMA
from trainmaster_local.apiserver.printing.jsonpath import JsonPathError, parse
from trainmaster_local.apiserver.printing.tables import CREATED_DESCRIPTION, NAME, custom_columns
from trainmaster_local.apiserver.resources import Column, Object, ResourceType, ScalePaths
from trainmaster_local.apiserver.schema.structural import drop_unknown, structural_errors
from trainmaster_local.apiserver.storage.store import Change

RESOURCE = "customresourcedefinitions.apiextensions.k8s.io"
FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
_COLUMN_TYPES = ("integer", "number", "string", "boolean", "date")


def _default(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    names = spec.setdefault("names", {})
    kind = names.get("kind", "")
    if kind:
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", f"{kind}List")
    spec.setdefault("conversion", {"strategy": "None"})
    if spec.get("preserveUnknownFields") is False:
        del spec["preserveUnknownFields"]


def _prune(obj: Object) -> list[str]:
    unknown = []
    for index, version in enumerate((obj.get("spec") or {}).get("versions") or ()):
        if isinstance(version, dict):
            schema = (version.get("schema") or {}).get("openAPIV3Schema")
            unknown += drop_unknown(schema, f"spec.versions[{index}].schema.openAPIV3Schema")
    return unknown


def _prepare_create(obj: Object) -> None:
    stored = [version.get("name", "") for version in obj["spec"].get("versions", ()) if version.get("storage")]
    obj["status"] = {"conditions": None, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": stored}


def _prepare_update(new: Object, old: Object) -> None:
    status = dict(new.get("status") or {})
    stored = list(status.get("storedVersions") or ())
    for version in new["spec"].get("versions", ()):
        if version.get("storage") and version["name"] not in stored:
            stored.append(version["name"])
    status["storedVersions"] = stored
    new["status"] = status


def validate(obj: Object) -> list[FieldError]:
    """Returns the errors of a definition."""
    spec = obj["spec"]
    names = spec["names"]
    errors = []
    group = spec.get("group", "")
    if not group:
        errors.append(FieldError.required("spec.group"))
    else:
        errors += [FieldError.invalid("spec.group", group, problem) for problem in dns_subdomain_problems(group)]
        if "." not in group:
            errors.append(FieldError.invalid("spec.group", group, "should be a domain with at least one dot"))
    wanted = f"{names.get('plural', '')}.{group}"
    name = obj["metadata"].get("name", "")
    if name != wanted:
        errors.insert(0, FieldError.invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group'))
    if spec.get("scope") not in ("Cluster", "Namespaced"):
        errors.append(FieldError.not_supported("spec.scope", spec.get("scope", ""), ("Cluster", "Namespaced")))
    for part in ("plural", "singular", "kind", "listKind"):
        value = names.get(part, "")
        if not value:
            errors.append(FieldError.required(f"spec.names.{part}"))
            continue
        problems = dns_1035_problems(value.lower() if part in ("kind", "listKind") else value)
        errors += [FieldError.invalid(f"spec.names.{part}", value, problem) for problem in problems]
    for index, short in enumerate(names.get("shortNames") or ()):
        problems = dns_1035_problems(short)
        errors += [FieldError.invalid(f"spec.names.shortNames[{index}]", short, problem) for problem in problems]
    if spec["conversion"].get("strategy") != "None":
        strategy = spec["conversion"].get("strategy", "")
        errors.append(FieldError.not_supported("spec.conversion.strategy", strategy, ("None",)))
    return errors + _version_errors(spec)


def _version_errors(spec: Mapping[str, Any]) -> list[FieldError]:
    versions = spec.get("versions") or []
    if not versions:
        return [FieldError.required("spec.versions", "must have exactly one version marked as storage version")]
    if len(versions) > 1:
        return [FieldError.forbidden("spec.versions[1]", NOT_HERE)]
    (version,) = versions
    name = version.get("name", "")
    errors = [FieldError.invalid("spec.versions[0].name", name, problem) for problem in dns_1035_problems(name)]
    if not version.get("storage"):
        problem = "must have exactly one version marked as storage version"
        errors.append(FieldError.invalid("spec.versions", [name], problem))
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    if not schema:
        required = FieldError.required("spec.versions[0].schema.openAPIV3Schema", "schemas are required")
        return [*errors, required]
    # The internal form of a definition has the schema of its one version at the top, and errors use that path.
    place = "spec.validation.openAPIV3Schema"
    found = structural_errors(schema, place) or _rule_errors(schema, place)
    return [*errors, *found, *_column_errors(version, "spec.versions[0]")]


def _rule_errors(schema: Mapping[str, Any], place: str) -> list[FieldError]:
    try:
        return Rules.compile(schema, place).costs_too_much(place)
    except RuleError as error:
        return [FieldError.invalid(error.path, error.rule, str(error))]


def _column_errors(version: Mapping[str, Any], place: str) -> list[FieldError]:
    errors = []
    for index, column in enumerate(version.get("additionalPrinterColumns") or ()):
        field = f"{place}.additionalPrinterColumns[{index}]"
        if not column.get("name"):
            errors.append(FieldError.required(f"{field}.name"))
        if column.get("type") not in _COLUMN_TYPES:
            errors.append(
                FieldError.invalid(f"{field}.type", column.get("type", ""), "must be one of " + ",".join(_COLUMN_TYPES))
            )
        errors += _path_errors(column.get("jsonPath", ""), f"{field}.jsonPath")
    if version.get("selectableFields"):
        errors.append(FieldError.forbidden(f"{place}.selectableFields", NOT_HERE))
    scale = (version.get("subresources") or {}).get("scale")
    if scale is not None:
        for name, start in (("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")):
            path = scale.get(name, "")
            field = f"{place}.subresources.scale.{name}"
            if not path:
                errors.append(FieldError.required(field))
            elif not path.startswith(start):
                errors.append(FieldError.invalid(field, path, f"should be a json path under {start[:-1]}"))
    return errors


def _path_errors(path: str, field: str) -> list[FieldError]:
    if not path:
        return [FieldError.required(field)]
    try:
        parse(path)
    except JsonPathError as error:
        return [FieldError.invalid(field, path, str(error))]
    return []


def _validate_update(new: Object, old: Object) -> list[FieldError]:
    errors = []
    for part, value in (("group", "group"), ("scope", "scope")):
        if new["spec"].get(value) != old["spec"].get(value):
            errors.append(FieldError.invalid(f"spec.{part}", new["spec"].get(value), "field is immutable"))
    for part in ("plural", "kind"):
        if new["spec"]["names"].get(part) != old["spec"]["names"].get(part):
            value = new["spec"]["names"].get(part)
            errors.append(FieldError.invalid(f"spec.names.{part}", value, "field is immutable"))
    names = [version.get("name", "") for version in new["spec"].get("versions") or []]
    for stored in (new.get("status") or {}).get("storedVersions") or ():
        if stored not in names:
            problem = "must appear in spec.versions"
            errors.append(FieldError.invalid("status.storedVersions[0]", stored, problem))
    return errors + validate(new)


def _holds_deletion(obj: Object) -> bool:
    """Returns whether a definition is only marked at first; the clean-up removes its objects and finalizer."""
    return not obj["metadata"].get("deletionTimestamp")


def _begin_deletion(obj: Object) -> None:
    metadata = obj["metadata"]
    metadata["finalizers"] = [*metadata.get("finalizers", ()), FINALIZER]
    condition = {
        "type": "Terminating",
        "status": "True",
        "lastTransitionTime": metadata["deletionTimestamp"],
        "reason": "InstanceDeletionPending",
        "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
    }
    status = obj.setdefault("status", {})
    status["conditions"] = [*(status.get("conditions") or ()), condition]


def _row(obj: Object, now: float) -> list[Any]:
    return [obj["metadata"]["name"], obj["metadata"].get("creationTimestamp", "")]


TYPE = ResourceType(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    "customresourcedefinition",
    namespaced=False,
    short_names=("crd", "crds"),
    categories=("api-extensions",),
    schema=SCHEMA,
    zero={"metadata": {}, "spec": {"names": {}, "versions": None}, "status": {"acceptedNames": {}}},
    has_status=True,
    tracks_generation=True,
    default=_default,
    prune=_prune,
    prepare_create=_prepare_create,
    prepare_update=_prepare_update,
    validate_create=validate,
    validate_update=_validate_update,
    holds_deletion=_holds_deletion,
    begin_deletion=_begin_deletion,
    columns=(NAME, Column("Created At", "date", "", CREATED_DESCRIPTION)),
    row=_row,
)


def type_of(definition: Object) -> ResourceType | None:
    """Returns the type that a definition serves; None if its version isn't served."""
    spec = definition["spec"]
    names, (version,) = spec["names"], spec["versions"]
    if not version.get("served"):
        return None
    subresources = version.get("subresources") or {}
    scale = subresources.get("scale")
    columns, row = custom_columns(version.get("additionalPrinterColumns") or [])
    return ResourceType(
        spec["group"],
        version["name"],
        names["kind"],
        names["plural"],
        names["singular"],
        namespaced=spec["scope"] == "Namespaced",
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        list_kind=names["listKind"],
        schema=version["schema"]["openAPIV3Schema"],
        custom=True,
        has_status="status" in subresources,
        scale=None
        if scale is None
        else ScalePaths(scale["specReplicasPath"], scale["statusReplicasPath"], scale.get("labelSelectorPath", "")),
        columns=columns,
        row=row,
        tracks_generation=True,
        unconditional_update=False,
    )


class Definitions:
    """This class synchronises the registry with the stored definitions."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._tasks: set[asyncio.Task[None]] = set()
        api.registry.add(TYPE)
        api.storage.subscribe(RESOURCE, self._on_change)
        for definition in api.peek_all(RESOURCE):
            self._serve(definition)

    def _on_change(self, change: Change) -> None:
        if change.new is None:
            self._withdraw(change.last.object)
            return
        definition = change.new.object
        before = change.old.object if change.old is not None else None
        if definition["metadata"].get("deletionTimestamp"):
            if before is None or not before["metadata"].get("deletionTimestamp"):
                self._start(self._clean_up(definition["metadata"]["name"]))
            return
        if before is None or before["spec"] != definition["spec"]:
            self._serve(definition)
            self._start(self._establish(definition["metadata"]["name"]))

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _serve(self, definition: Object) -> None:
        resource = definition["metadata"]["name"]
        self._api.storage.open(resource)
        type_ = type_of(definition)
        if type_ is None:
            self._api.registry.remove(resource)
        else:
            self._api.registry.add(type_)

    def _withdraw(self, definition: Object) -> None:
        self._api.registry.remove(definition["metadata"]["name"])
        self._api.storage.drop(definition["metadata"]["name"])

    async def _establish(self, name: str) -> None:
        """Writes the conditions that kubectl and operators wait for."""
        if self._api.peek(RESOURCE, name) is None:
            return
        now = objectmeta.rfc3339(self._api.clock())

        def accept(definition: Object) -> None:
            status = definition["status"]
            status["acceptedNames"] = dict(definition["spec"]["names"])
            kept = {condition["type"]: condition for condition in status.get("conditions") or ()}
            for kind, reason, message in (
                ("NamesAccepted", "NoConflicts", "no conflicts found"),
                ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
            ):
                if kind not in kept:
                    kept[kind] = {
                        "type": kind,
                        "status": "True",
                        "lastTransitionTime": now,
                        "reason": reason,
                        "message": message,
                    }
            status["conditions"] = list(kept.values())

        options = Options(manager="kube-apiserver")
        await self._api.modify(RESOURCE, name, "", accept, subresource="status", options=options)

    async def _clean_up(self, name: str) -> None:
        """Deletes a definition's objects, waits for those with finalizers, then removes the definition."""
        while self._api.peek(RESOURCE, name) is not None:
            try:
                await self._api.delete_collection(name)
            except ApiError as error:
                if error.code != 404:
                    raise
            if self._api.storage.count(name) == 0:
                break
            await asyncio.sleep(0.2)
        else:
            return

        def release(definition: Object) -> None:
            kept = [finalizer for finalizer in definition["metadata"].get("finalizers", ()) if finalizer != FINALIZER]
            definition["metadata"]["finalizers"] = kept

        options = Options(manager="kube-apiserver")
        await self._api.modify(RESOURCE, name, "", release, options=options)

    async def stop(self) -> None:
        """Stops all running clean-ups."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def install(api: Api) -> Definitions:
    """Serves CustomResourceDefinitions and the types of the stored ones."""
    return Definitions(api)

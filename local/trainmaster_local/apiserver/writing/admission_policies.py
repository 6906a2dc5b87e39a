"""ValidatingAdmissionPolicies and their bindings validate every write by CEL expressions.

`Policies.check` runs for each write after its own validation and before it is stored, like kube-apiserver's validating
admission; the built-in types call `problems` to validate a policy. Expressions see `object`, `oldObject`, `request`,
`namespaceObject` and `variables` as plain JSON. A policy acts as soon as it and a binding are stored (a kube-apiserver
needs a moment). Unsupported fields are refused when the policy is stored: parameters, audit annotations, message
expressions, selectors, names of resources, actions other than Deny.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cel_expr_python import cel

from trainmaster_local.apiserver.apimachinery import deep
from trainmaster_local.apiserver.apimachinery.errors import NOT_HERE, ApiError, FieldError, forbidden
from trainmaster_local.apiserver.cel.rules import RESERVED, RuleError, activation_of, compiled, evaluation_error
from trainmaster_local.apiserver.resources import Object, ResourceType, User

if TYPE_CHECKING:
    from trainmaster_local.apiserver.storage.store import Storage

GROUP = "admissionregistration.k8s.io"
POLICIES = f"validatingadmissionpolicies.{GROUP}"
BINDINGS = f"validatingadmissionpolicybindings.{GROUP}"
# A policy could lock everybody out of changing policies, and reviews aren't stored (k8s.io/apiserver,
# pkg/admission/plugin/policy/generic/plugin.go).
_EXEMPT = (GROUP, "authentication.k8s.io", "authorization.k8s.io")
_CODES = {"Unauthorized": 401, "Forbidden": 403, "RequestEntityTooLarge": 413, "Invalid": 422}
_NAMES = ("object", "oldObject", "request", "namespaceObject")


@dataclass(frozen=True)
class Write:
    """A write is pending. `obj` is None for a delete, `old` for a create."""

    type: ResourceType
    operation: str  # CREATE, UPDATE, DELETE or CONNECT
    obj: Object | None
    old: Object | None
    namespace: str
    name: str
    user: User
    subresource: str = ""
    dry_run: bool = False

    def request(self) -> dict[str, Any]:
        """Returns `request` as expressions see it, without empty fields."""
        type_ = self.type
        kind = {"group": type_.group, "version": type_.version, "kind": type_.kind}
        resource = {"group": type_.group, "version": type_.version, "resource": type_.plural}
        user = {"username": self.user.name, "uid": self.user.uid, "groups": list(self.user.groups)}
        request = {
            "kind": kind,
            "resource": resource,
            "subResource": self.subresource,
            "requestKind": kind,
            "requestResource": resource,
            "requestSubResource": self.subresource,
            "name": self.name,
            "namespace": self.namespace,
            "operation": self.operation,
            "userInfo": {key: value for key, value in user.items() if value},
            "dryRun": self.dry_run,
        }
        return {key: value for key, value in request.items() if value != ""}


@dataclass(frozen=True)
class _Expression:
    """An expression is compiled, and knows the values and variables that it names.

    Only those are converted to CEL, because converting an object is most of the work.
    """

    text: str
    program: Any
    names: frozenset[str]

    def eval(self, data: Mapping[str, Any]) -> Any:
        named = {name: value for name, value in data.items() if name in self.names}
        if "variables" in named:
            values = named["variables"]
            named["variables"] = {name: value for name, value in values.items() if name in self.names}
        return self.program.eval(data=named)


@dataclass(frozen=True)
class _Validation:
    expression: _Expression
    message: str
    reason: str


@dataclass(frozen=True)
class _Policy:
    """A policy is compiled. Each of its `variables` may refer to earlier ones."""

    name: str
    rules: Sequence[Mapping[str, Any]]
    excluded: Sequence[Mapping[str, Any]]
    conditions: Sequence[_Expression]
    variables: Mapping[str, _Expression]
    validations: Sequence[_Validation]
    ignores_errors: bool

    def covers(self, write: Write) -> bool:
        return any(_matches(rule, write) for rule in self.rules) and not any(
            _matches(rule, write) for rule in self.excluded
        )

    def refusal(self, write: Write, namespace: Object | None) -> tuple[str, str] | None:
        """Returns the reason and message with which the policy refuses the write; None if it doesn't."""
        objects = {"object": deep.without(write.obj), "oldObject": deep.without(write.old)}
        data: dict[str, Any] = {"request": write.request(), **objects}
        data["namespaceObject"] = namespace
        failures: list[str] = []
        for condition in self.conditions:
            result = condition.eval(data)
            if result.type() == cel.Type.ERROR:
                failures.append(evaluation_error(result))
            elif result.value() is not True:
                # A violated expression takes precedence over one that can't be evaluated.
                return None
        if failures:
            return None if self.ignores_errors else ("Invalid", failures[0])
        data["variables"] = self._variables(data)
        # All expressions use parts of this conversion.
        activation = activation_of(data)
        for validation in self.validations:
            result = validation.expression.program.eval(activation)
            if result.type() == cel.Type.ERROR:
                if self.ignores_errors:
                    continue
                text = f"expression '{validation.expression.text}' resulted in error: {evaluation_error(result)}"
                return "Invalid", text
            if result.value() is not True:
                return validation.reason, validation.message
        return None

    def _variables(self, data: dict[str, Any]) -> dict[str, Any]:
        """Returns the variables' values. One that can't be evaluated is left out, so expressions that use it fail."""
        values: dict[str, Any] = {}
        activation = activation_of(data)
        for name, expression in self.variables.items():
            if "variables" in expression.names:
                result = expression.eval({**data, "variables": values})
            else:
                result = expression.program.eval(activation)
            if result.type() != cel.Type.ERROR:
                values[name] = result.plain_value()
        return values


def _matches(rule: Mapping[str, Any], write: Write) -> bool:
    def has(name: str, value: str) -> bool:
        return "*" in rule[name] or value in rule[name]

    type_, wanted = write.type, write.type.plural
    if write.subresource:
        wanted = f"{type_.plural}/{write.subresource}"
        wildcards = {"*/*", f"{type_.plural}/*", f"*/{write.subresource}"}
    else:
        wildcards = {"*", "*/*", f"{type_.plural}/*"}
    scope = rule.get("scope", "*")
    return (
        has("operations", write.operation)
        and has("apiGroups", type_.group)
        and has("apiVersions", type_.version)
        and not {wanted, *wildcards}.isdisjoint(rule["resources"])
        and scope in ("*", "Namespaced" if type_.namespaced else "Cluster")
    )


@dataclass
class Policies:
    """This class holds the stored policies, each compiled once."""

    storage: Storage
    _compiled: dict[tuple[str, str], _Policy] = field(default_factory=dict)

    def check(self, write: Write) -> None:
        """Raises ApiError if a bound policy refuses the write, with kube-apiserver's message."""
        if write.type.group in _EXEMPT:
            return
        for binding, policy in self._bound():
            if not policy.covers(write):
                continue
            namespace = self.storage.get("namespaces", "", write.namespace) if write.namespace else None
            refusal = policy.refusal(write, None if namespace is None else namespace.object)
            if refusal is None:
                continue
            reason, message = refusal
            problem = f"ValidatingAdmissionPolicy '{policy.name}' with binding '{binding}' denied request: {message}"
            name, type_ = write.name or "Unknown", write.type
            refused = forbidden(type_.group, type_.plural, name, problem, [{"message": problem}])
            raise ApiError(_CODES.get(reason, 422), reason, refused.message, details=refused.status["details"])

    def _bound(self) -> Iterator[tuple[str, _Policy]]:
        for binding in self.storage.items(BINDINGS, ""):
            spec = binding.object["spec"]
            found = self.storage.get(POLICIES, "", spec["policyName"])
            if found is not None:
                yield binding.object["metadata"]["name"], self._policy(found.object)

    def _policy(self, obj: Object) -> _Policy:
        metadata = obj["metadata"]
        version = (metadata["name"], metadata["resourceVersion"])
        if version not in self._compiled:
            for old in [key for key in self._compiled if key[0] == version[0]]:
                del self._compiled[old]
            self._compiled[version] = _compile(obj)
        return self._compiled[version]


def problems(obj: Object) -> list[FieldError]:
    """Returns the errors of a policy."""
    spec = obj["spec"]
    errors = _unknown(spec, ("paramKind", "auditAnnotations"), "spec")
    constraints = spec.get("matchConstraints") or {}
    if not constraints.get("resourceRules"):
        errors.append(FieldError.required("spec.matchConstraints.resourceRules"))
    for name in ("namespaceSelector", "objectSelector"):
        errors += _unknown(constraints, (name,), "spec.matchConstraints")
    for kind in ("resourceRules", "excludeResourceRules"):
        for index, rule in enumerate(constraints.get(kind) or ()):
            here = f"spec.matchConstraints.{kind}[{index}]"
            errors += _unknown(rule, ("resourceNames",), here)
            for name in ("apiGroups", "apiVersions", "operations", "resources"):
                if not rule.get(name):
                    errors.append(FieldError.required(f"{here}.{name}"))
    if not spec.get("validations"):
        errors.append(FieldError.required("spec.validations", "validations must contain at least one item"))
    for index, validation in enumerate(spec.get("validations") or ()):
        here = f"spec.validations[{index}]"
        errors += _unknown(validation, ("messageExpression",), here)
        reason = validation.get("reason")
        if reason and reason not in _CODES:
            errors.append(FieldError.not_supported(f"{here}.reason", reason, _CODES))
    if not errors:
        try:
            _compile(obj)
        except RuleError as error:
            errors.append(FieldError.invalid(error.path, error.rule, str(error)))
    return errors


def binding_problems(obj: Object) -> list[FieldError]:
    """Returns the errors of a binding."""
    spec = obj["spec"]
    errors = _unknown(spec, ("paramRef", "matchResources"), "spec")
    if not spec.get("policyName"):
        errors.append(FieldError.required("spec.policyName"))
    if not spec.get("validationActions"):
        errors.append(FieldError.required("spec.validationActions"))
    for index, action in enumerate(spec.get("validationActions") or ()):
        if action != "Deny":
            errors.append(FieldError.not_supported(f"spec.validationActions[{index}]", action, ("Deny",)))
    return errors


def _unknown(spec: Mapping[str, Any], names: Sequence[str], path: str) -> list[FieldError]:
    """Returns an error for each field that kube-apiserver supports and this server doesn't."""
    return [FieldError.forbidden(f"{path}.{name}", NOT_HERE) for name in names if spec.get(name)]


def _compile(obj: Object) -> _Policy:
    """Returns the compiled policy. Raises RuleError for the first invalid expression."""
    spec = obj["spec"]
    base = dict.fromkeys(_NAMES, cel.Type.DYN)
    known = {**base, "variables": cel.Type.Map(cel.Type.STRING, cel.Type.DYN)}
    conditions = [
        _boolean(condition["expression"], base, f"spec.matchConditions[{index}].expression", ())
        for index, condition in enumerate(spec.get("matchConditions") or ())
    ]
    variables: dict[str, _Expression] = {}
    for index, variable in enumerate(spec.get("variables") or ()):
        if not re.fullmatch("[A-Za-z_]\\w*", variable["name"]) or variable["name"] in RESERVED:
            raise RuleError(f"spec.variables[{index}].name", variable["name"], "must be a valid CEL identifier")
        path = f"spec.variables[{index}].expression"
        variables[variable["name"]] = _expression(variable["expression"], known, path, variables)
    validations = []
    for index, validation in enumerate(spec["validations"]):
        text, path = validation["expression"], f"spec.validations[{index}].expression"
        message = (validation.get("message") or "").strip() or f"failed expression: {text.strip()}"
        expression = _boolean(text, known, path, variables)
        validations.append(_Validation(expression, message, validation.get("reason") or "Invalid"))
    constraints = spec["matchConstraints"]
    return _Policy(
        obj["metadata"].get("name", ""),
        constraints["resourceRules"],
        constraints.get("excludeResourceRules") or (),
        conditions,
        variables,
        validations,
        spec.get("failurePolicy") == "Ignore",
    )


def _boolean(text: str, known: Mapping[str, cel.Type], path: str, variables: Any) -> _Expression:
    found = _expression(text, known, path, variables)
    if found.program.return_type() not in (cel.Type.BOOL, cel.Type.DYN):
        raise RuleError(path, text, "must evaluate to bool")
    return found


def _expression(text: str, known: Mapping[str, cel.Type], path: str, variables: Any) -> _Expression:
    _check_variables(text, path, variables)
    return _Expression(text, compiled(text, known, path), frozenset(re.findall(r"\w+", text)))


def _check_variables(text: str, path: str, variables: Any) -> None:
    for found in re.finditer(r"(?<![\w.])variables\.(\w+)", text):
        if found.group(1) not in variables:
            raise RuleError(path, text, f"compilation failed: undefined field '{found.group(1)}'")

"""Admission policies of the local cluster refuse objects in kube-apiserver's words, and reject what they don't
support.
"""

from __future__ import annotations

from typing import Any

import pytest

from local.tests.unit.kinds.api import refusal, started
from trainmaster_local.apiserver.api import JSON, Api, ApiError, DeleteOptions, Options
from trainmaster_local.apiserver.resources import User

POLICIES = "validatingadmissionpolicies.admissionregistration.k8s.io"
BINDINGS = "validatingadmissionpolicybindings.admissionregistration.k8s.io"
ANNA = User("anna")


def policy(expression: str, **spec: Any) -> dict[str, Any]:
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}]
    validations = [{"expression": expression, "message": "no, anna", "reason": "Forbidden"}]
    spec = {"matchConstraints": {"resourceRules": rules}, "validations": validations, **spec}
    return {"metadata": {"name": "rule"}, "spec": spec}


async def ruled(expression: str, **spec: Any) -> Api:
    """Returns an API with a policy in force."""
    api = await started()
    await api.create(POLICIES, policy(expression, **spec))
    await api.create(
        BINDINGS, {"metadata": {"name": "b"}, "spec": {"policyName": "rule", "validationActions": ["Deny"]}}
    )
    return api


def config_map(name: str = "c", **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "data": {"a": "1"}}


async def refused(writing: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await writing
    return caught.value


async def test_a_write_is_refused_in_kubernetes_words() -> None:
    api = await ruled("object.data.a == '2'")
    error = await refused(api.create("configmaps", config_map(), "default", options=Options(user=ANNA)))
    said = "ValidatingAdmissionPolicy 'rule' with binding 'b' denied request: no, anna"
    assert (error.code, error.reason, error.message) == (403, "Forbidden", f'configmaps "c" is forbidden: {said}')
    assert error.status["details"] == {"name": "c", "kind": "configmaps", "causes": [{"message": said}]}
    assert api.peek("configmaps", "c", "default") is None


async def test_a_policy_without_a_binding_asks_nobody() -> None:
    api = await started()
    await api.create(POLICIES, policy("false"))
    await api.create("configmaps", config_map(), "default")


async def test_a_change_of_the_policy_acts_at_once() -> None:
    api = await ruled("false")
    await api.modify(POLICIES, "rule", "", lambda obj: obj["spec"]["validations"][0].update(expression="true"))
    await api.create("configmaps", config_map(), "default")


async def test_both_states_of_an_object_are_seen() -> None:
    api = await ruled("oldObject == null || object == null || oldObject.data.a == object.data.a")
    await api.create("configmaps", config_map(), "default")
    patch = [{"op": "replace", "path": "/data/a", "value": "2"}]
    assert (await refused(api.patch("configmaps", "c", patch, "default", kind=JSON))).code == 403
    await api.patch("configmaps", "c", {"metadata": {"labels": {"b": "2"}}}, "default")
    await api.delete("configmaps", "c", "default")


async def test_who_deletes_is_asked_too_one_by_one() -> None:
    api = await ruled("request.operation != 'DELETE' || request.userInfo.username != 'anna'")
    for name in ("c", "d"):
        await api.create("configmaps", config_map(name), "default")
    options = DeleteOptions(user=ANNA)
    assert (await refused(api.delete("configmaps", "c", "default", options=options))).code == 403
    assert (await refused(api.delete_collection("configmaps", "default", options=options))).code == 403
    await api.delete("configmaps", "c", "default")


async def test_who_meets_no_match_condition_isn_t_asked() -> None:
    condition = {"name": "anna", "expression": "request.userInfo.username == 'anna'"}
    api = await ruled("false", matchConditions=[condition])
    await api.create("configmaps", config_map(), "default")
    assert (await refused(api.create("configmaps", config_map("d"), "default", options=Options(user=ANNA)))).code == 403


async def test_variables_are_worked_out_when_they_are_used() -> None:
    # The second can't be evaluated for an object without labels.
    variables = [
        {"name": "name", "expression": "object.metadata.name"},
        {"name": "team", "expression": "object.metadata.labels['team']"},
    ]
    api = await ruled("variables.name == 'c' || variables.team == 'blue'", variables=variables)
    await api.create("configmaps", config_map("c"), "default")
    await api.create("configmaps", config_map("d", team="blue"), "default")
    assert "no such key: team" in (await refused(api.create("configmaps", config_map("e"), "default"))).message


async def test_what_can_t_be_evaluated_is_refused_unless_failures_are_ignored() -> None:
    api = await ruled("object.data.missing == ''")
    error = await refused(api.create("configmaps", config_map(), "default"))
    assert error.code == 422
    assert "expression 'object.data.missing == ''' resulted in error: no such key: missing" in error.message
    await api.modify(POLICIES, "rule", "", lambda obj: obj["spec"].update(failurePolicy="Ignore"))
    await api.create("configmaps", config_map(), "default")


async def test_the_namespace_is_seen() -> None:
    api = await ruled("namespaceObject.metadata.name == request.namespace && request.namespace == 'default'")
    await api.create("configmaps", config_map(), "default")
    assert (await refused(api.create("configmaps", config_map(), "kube-system"))).code == 403


@pytest.mark.parametrize(
    ("resources", "asked"),
    [
        (["*"], ["pods"]),
        (["*/*"], ["pods", "pods/status"]),
        (["pods"], ["pods"]),
        (["pods/*"], ["pods", "pods/status"]),
        (["*/status"], ["pods/status"]),
        (["pods/status"], ["pods/status"]),
        (["configmaps"], []),
    ],
    ids=str,
)
async def test_rules_name_resources_and_subresources(resources: list[str], asked: list[str]) -> None:
    api = await started()
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    await api.create("pods", pod, "default")
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": resources}
    await api.create(POLICIES, policy("false", matchConstraints={"resourceRules": [rule]}))
    await api.create(
        BINDINGS, {"metadata": {"name": "b"}, "spec": {"policyName": "rule", "validationActions": ["Deny"]}}
    )
    refusals = []
    for subresource in ("", "status"):
        patch = {"metadata": {"labels": {"a": "b"}}, "status": {"message": "m"}}
        try:
            await api.patch("pods", "p", patch, "default", subresource=subresource)
        except ApiError:
            refusals.append(f"pods/{subresource}".rstrip("/"))
    assert refusals == asked


async def test_policies_never_stand_in_the_way_of_changing_policies() -> None:
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}
    api = await ruled("false", matchConstraints={"resourceRules": [rule]})
    await api.delete(BINDINGS, "b")
    await api.create("configmaps", config_map(), "default")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}, "spec.paramKind: Forbidden"),
        ({"auditAnnotations": [{"key": "k", "valueExpression": "'v'"}]}, "spec.auditAnnotations: Forbidden"),
        ({"matchConstraints": {}}, "spec.matchConstraints.resourceRules: Required value"),
        ({"validations": []}, "spec.validations: Required value"),
        ({"validations": [{"expression": "objct.a"}]}, "undeclared reference to 'objct.a'"),
        ({"validations": [{"expression": "variables.other"}]}, "undefined field 'other'"),
        ({"validations": [{"expression": "'text'"}]}, "must evaluate to bool"),
        ({"validations": [{"expression": "true", "messageExpression": "'m'"}]}, "messageExpression: Forbidden"),
        ({"variables": [{"name": "namespace", "expression": "1"}]}, "must be a valid CEL identifier"),
    ],
    ids=str,
)
async def test_a_policy_that_can_t_be_enforced_is_refused(spec: dict[str, Any], words: str) -> None:
    assert words in await refusal(await started(), POLICIES, policy("true", **spec))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"validationActions": ["Deny"]}, "spec.policyName: Required value"),
        ({"policyName": "p"}, "spec.validationActions: Required value"),
        ({"policyName": "p", "validationActions": ["Audit"]}, 'Unsupported value: "Audit": supported values: "Deny"'),
        ({"policyName": "p", "validationActions": ["Deny"], "paramRef": {"name": "x"}}, "spec.paramRef: Forbidden"),
    ],
    ids=str,
)
async def test_a_binding_that_can_t_be_enforced_is_refused(spec: dict[str, Any], words: str) -> None:
    assert words in await refusal(await started(), BINDINGS, {"metadata": {"name": "b"}, "spec": spec})

"""The CRD matches the models, an API server accepts it, and it refuses bad specs with the parser's own text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.unit.api.api_server import apply, change, schema
from tests.unit.api.sentences import sentences
from tests.unit.api.test_manifests import NAMES
from tests.unit.api.test_sentences import BAD_INPUT
from tools.api_reference import api_reference
from trainmaster_local.inside import RULE_LIMIT, custom_columns, rule_costs
from trainmaster_operator.api.crd import COLUMNS, crd, crd_yaml
from trainmaster_operator.api.parsing import parse_spec
from trainmaster_operator.api.rules import NAME_RULES, RULES, TRANSITIONS
from trainmaster_operator.api.v1alpha1 import CPU, JobSpec
from trainmaster_operator.api.values import SUBDOMAIN_PATTERN

ROOT = Path(__file__).parents[3]


def schemas(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from schemas(child, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if isinstance(node.get(name), dict):
            yield from schemas(node[name], f"{path}[]")


def test_the_manifest_is_generated() -> None:
    assert (ROOT / "manifests/crd.yaml").read_text() == crd_yaml(), "run make generate"


def test_the_reference_page_is_generated() -> None:
    assert (ROOT / "docs/reference.md").read_text() == api_reference(), "run make generate"


@pytest.mark.parametrize("version", ["1.32", "1.37"])
def test_it_is_a_custom_resource_definition(version: str) -> None:
    kubernetes_validate.validate(crd(), version, strict=True)


def test_the_schema_is_structural() -> None:
    """By apiextensions-apiserver pkg/apiserver/schema/validation.go, every node has a type unless it is int-or-string
    or keeps unknown fields. Only nodes without a type have combinations, references are not allowed, and metadata may
    restrict only the name. There are no patterns, because their messages would show a regular expression."""
    for path, node in schemas(schema()):
        assert "$ref" not in node, path
        assert not {"oneOf", "not", "title", "const", "discriminator", "pattern"} & set(node), path
        if {"anyOf", "allOf"} & set(node):
            assert "type" not in node, path
        if not node.get("x-kubernetes-int-or-string") and not node.get("x-kubernetes-preserve-unknown-fields"):
            assert node.get("type"), path
        if node.get("type") == "array":
            assert "items" in node, path
        assert not ("properties" in node and "additionalProperties" in node), path
        assert isinstance(node.get("exclusiveMinimum", True), bool), f"{path}: OpenAPI 3.0 has a flag here"
    assert set(schema()["properties"]["metadata"]["properties"]) == {"name"}


def test_defaults_are_valid_and_complete() -> None:
    """An API server checks a default by its rules, but without applying the defaults inside it
    (apiextensions-apiserver pkg/apiserver/schema/defaulting/validation.go). So each default must be complete."""
    for path, node in schemas(schema()):
        default = node.get("default")
        if isinstance(default, dict):
            missing = {name for name, child in node["properties"].items() if "default" in child} - set(default)
            assert not missing, path


def test_defaults_are_the_models() -> None:
    """Python reads the object stored by the API server exactly as it reads the user's manifest."""
    stored = apply({"workers": 2}).stored["spec"]
    assert JobSpec.model_validate(stored).model_dump() == JobSpec.model_validate({"workers": 2}).model_dump()


def test_every_text_and_list_that_a_rule_reads_has_a_limit() -> None:
    """Without a limit, the API server assumes the largest request (3 MiB) and may refuse the rule for its cost
    (https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#resource-use-by-validation-functions)."""
    described = schema()["properties"]["spec"]["properties"]
    for path, node in schemas(schema()["properties"]["spec"], "spec"):
        for validation in node.get("x-kubernetes-validations", ()):
            for name in re.findall(r"self\.(\w+)\.(?:matches|all|map)\(", validation["rule"]):
                field = node["properties"][name]
                assert "maxLength" in field or "maxItems" in field, f"{path}: {validation['rule']}"
    assert described["workerGroups"]["items"]["properties"]["name"]["maxLength"] == 63


def test_rules_name_fields_that_exist() -> None:
    for path, node in schemas(schema()):
        for validation in node.get("x-kubernetes-validations", ()):
            at = node
            for part in validation.get("fieldPath", "").removeprefix(".").split("."):
                at = at["properties"][part] if part else at
            assert len(validation["message"]) <= 2048, path
            assert "\n" not in validation["message"], path


def test_every_rule_is_in_the_crd() -> None:
    there = {
        one["rule"]
        for _, node in schemas(schema())
        if node.get("type") == "object"
        for one in node.get("x-kubernetes-validations", ())
    }
    assert there == {rule.cel for rule in (*NAME_RULES, *RULES)} | {transition.cel for transition in TRANSITIONS}


def test_columns_answer_at_a_glance() -> None:
    columns = crd()["spec"]["versions"][0]["additionalPrinterColumns"]
    narrow = [column["name"] for column in columns if not column.get("priority")]
    assert narrow == ["Phase", "Reason", "Attempt", "Restarts", "Workers", "Running", "Step", "Total", "Loss", "Age"]


def test_wide_columns_show_the_newest_failure_and_where_the_job_stands() -> None:
    definition = [dict(column) for column in COLUMNS]
    columns, row = custom_columns(definition)
    running = {"type": "Running", "status": "False", "reason": "Unschedulable", "message": "no node has room"}
    status = {
        "conditions": [{"type": "Accepted", "status": "True", "reason": "SpecAccepted"}, running],
        "failures": [{"attempt": 2, "reason": "OOMKilled"}, {"attempt": 1, "reason": "Error"}],
    }
    cells = dict(
        zip([column.name for column in columns], row({"metadata": {"name": "one"}, "status": status}, 0.0), strict=True)
    )
    assert (cells["Failure"], cells["Reason"], cells["Message"]) == ("OOMKilled", "Unschedulable", "no node has room")
    new = dict(zip([column.name for column in columns], row({"metadata": {"name": "one"}}, 0.0), strict=True))
    assert (new["Failure"], new["Reason"]) == (None, None)


def test_every_field_says_what_it_is() -> None:
    untold = [
        path for path, node in schemas(schema()) if path and not path.endswith("[]") and not node.get("description")
    ]
    # Kubernetes describes its own fields.
    kubernetes_own = (".metadata", ".spec.podTemplate.spec.")
    assert [path for path in untold if not path.startswith(kubernetes_own)] == []


# CEL can't see a field without a type, such as "a quantity or a mapping", so the operator fails such a job at once.
# CEL also can't resolve ".." inside a path.
UNSEEN_AT_APPLY = {"a request above its limit", "checkpoints at /etc/../run/trainmaster"}
AT_APPLY = {what: case for what, case in BAD_INPUT.items() if what not in UNSEEN_AT_APPLY}


@pytest.mark.parametrize(("spec", "sentence"), AT_APPLY.values(), ids=AT_APPLY.keys())
def test_bad_input_is_refused_at_apply(spec: Any, sentence: str) -> None:
    """A rule between fields gives the parser's own sentence."""
    answer = apply({} if spec is None else spec)
    assert not answer.accepted
    if answer.by_rules and spec is not None:
        assert answer.sentences == [sentence]


@pytest.mark.parametrize("what", sorted(UNSEEN_AT_APPLY))
def test_what_the_api_server_cant_see_it_accepts(what: str) -> None:
    """If the API server learns to see such a mistake, its case belongs in AT_APPLY."""
    assert apply(BAD_INPUT[what][0]).accepted


@pytest.mark.parametrize("cpu", [0.5, 2, "500m", ".5", {}, {"request": 0.25, "limit": "1"}, {"limit": 3}])
def test_cpu_is_written_as_pods_have_it_or_as_a_mapping(cpu: Any) -> None:
    spec = {"workers": 1, "resources": {"cpu": cpu}}
    assert apply(spec).accepted
    assert sentences(spec) == []


@pytest.mark.parametrize("cpu", ["two", "-1", -1, True, [1], {"request": "two"}, {"limit": {}}])
def test_of_cpu_a_wrong_quantity_is_refused_at_apply_with_what_would_be_right(cpu: Any) -> None:
    answer = apply({"workers": 1, "resources": {"cpu": cpu}})
    assert any("such as 16, 0.5 or 500m" in message for _, message in answer.causes)


@pytest.mark.parametrize("cpu", [{"requests": 8}, {"limit": 8, "requests": 8}])
def test_of_cpu_an_unknown_field_is_refused_at_apply_with_the_known_ones(cpu: Any) -> None:
    answer = apply({"workers": 1, "resources": {"cpu": cpu}})
    assert any("a mapping of request and limit" in message for _, message in answer.causes)


@pytest.mark.parametrize("memory", ["1e999999999", "1e-99999", "2E+12345"])
def test_no_rule_reads_a_quantity_that_would_take_it_long(memory: str) -> None:
    """A kube-apiserver 1.36.2 needed more than a minute for 1e999999999."""
    answer = apply({"workers": 1, "resources": {"memory": memory}})
    assert any(message.startswith("Unsupported value") for _, message in answer.causes)
    assert sentences({"workers": 1, "resources": {"memory": memory}}) != []


def test_cores_with_a_fraction_are_rendered_as_text() -> None:
    spec = parse_spec({"workers": 1, "resources": {"cpu": {"request": 1e-7, "limit": 0.5}}}, "job")
    assert isinstance(spec.resources.cpu, CPU)
    assert (spec.resources.cpu.request, spec.resources.cpu.limit) == ("0.0000001", "0.5")


@pytest.mark.parametrize(("name", "sentence"), NAMES.values(), ids=NAMES.keys())
def test_a_name_that_no_child_can_have_is_refused_at_apply(name: str, sentence: str) -> None:
    answer = apply({"workers": 1}, name)
    assert not answer.accepted
    # If a name isn't a DNS subdomain either, Kubernetes refuses it with its own message.
    if re.fullmatch(SUBDOMAIN_PATTERN.strip("^$"), name):
        assert answer.sentences == [sentence]


CHANGES: dict[str, dict[str, Any]] = {
    "image": {"image": "ghcr.io/trainmaster/trainer:0.2.0"},
    "imagePullPolicy": {"imagePullPolicy": "Always"},
    "command": {"command": ["python", "other.py"]},
    "args": {"args": ["--fast"]},
    "training": {"training": {"lr": 1}},
    "code": {"code": {"digest": "a" * 64, "configMap": "other"}},
    "setup": {"setup": "true"},
    "launcher": {"launcher": "exec"},
    "backend": {"backend": "gloo"},
    "workers": {"workers": 3},
    "processesPerWorker": {"processesPerWorker": 2},
    "resources": {"resources": {"cpu": {"limit": 2}}},
    "spares": {"spares": 1},
    "warmStart": {"warmStart": {"enabled": False}},
    "progress": {"progress": {"preset": "tqdm"}},
    "accelerator": {"accelerator": {"kind": "amd"}},
    "interconnect": {"interconnect": {"nvlink": True}},
    "scheduling": {"scheduling": {"priorityClassName": "high"}},
    "checkpoint": {"checkpoint": {"volume": {"claimName": "other"}}},
    "securityContext": {"securityContext": {"runAsNonRoot": True}},
    "podTemplate": {"podTemplate": {"spec": {"hostPID": True}}},
    "successPolicy": {"successPolicy": "RankZero"},
    "failurePolicy.hang": {"failurePolicy": {"hang": {"progressSeconds": 5}}},
}
BEFORE = {
    "workers": 2,
    "training": {"lr": 0.1},
    "checkpoint": {"volume": {"claimName": "data"}},
    "resources": {"cpu": {"limit": 1}},
    "code": {"digest": "a" * 64, "configMap": "mine"},
}


@pytest.mark.parametrize("field", CHANGES)
def test_what_running_agents_were_started_with_cant_change(field: str) -> None:
    answer = change(BEFORE, {**BEFORE, **CHANGES[field]})
    assert [where for where, _ in answer.causes] == [f"spec.{field}"]
    assert answer.causes[0][1].startswith("Forbidden: can't be changed")


@pytest.mark.parametrize("field", ["training", "checkpoint", "resources", "code"])
def test_such_a_field_cant_be_removed_either(field: str) -> None:
    after = {name: value for name, value in BEFORE.items() if name != field}
    assert [where for where, _ in change(BEFORE, after).causes] == [f"spec.{field}"]


def test_the_codes_digest_can_change() -> None:
    assert change(BEFORE, {**BEFORE, "code": {"digest": "b" * 64, "configMap": "mine"}}).accepted


def test_every_fixed_field_is_tried() -> None:
    assert set(CHANGES) | {"elastic", "workerGroups"} == {transition.field for transition in TRANSITIONS}


@pytest.mark.parametrize(
    "policy",
    [
        {"runPolicy": {"suspend": True}},
        {"runPolicy": {"ttlSecondsAfterFinished": 60, "activeDeadlineSeconds": 100}},
        {"failurePolicy": {"maxRestarts": 20}},
        {"failurePolicy": {"rules": [{"exitCodes": [2], "action": "Fail"}], "startupSeconds": 60}},
    ],
    ids=["suspend", "deadline and time to live", "budget", "rules and startup"],
)
def test_policies_can_change_while_a_job_runs(policy: dict[str, Any]) -> None:
    assert change(BEFORE, {**BEFORE, **policy}).accepted


def test_an_update_that_changes_nothing_passes() -> None:
    assert change(BEFORE, BEFORE).accepted


def test_a_status_of_a_newer_operator_is_kept() -> None:
    status = schema()["properties"]["status"]
    assert all(
        node["x-kubernetes-preserve-unknown-fields"] and "required" not in node
        for _, node in schemas(status)
        if "properties" in node
    )
    assert not any("enum" in node for _, node in schemas(status))


def test_the_parser_reads_what_the_api_server_stored() -> None:
    spec = {"workers": 2, "resources": {"gpus": 1, "cpu": {"request": 1}}, "checkpoint": {"volume": {"emptyDir": True}}}
    assert parse_spec(apply(spec).stored["spec"], "job").model_dump() == parse_spec(spec, "job").model_dump()


def test_rules_are_far_below_the_limits_of_what_they_may_cost() -> None:
    costs = rule_costs(crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    assert len(costs) > 40
    assert max(costs) < RULE_LIMIT / 4

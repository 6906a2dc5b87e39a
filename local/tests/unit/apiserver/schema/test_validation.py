"""Schemas of custom resources apply defaults, pruning, validation in Kubernetes' words, and CEL rules."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster_local.apiserver.apimachinery.errors import ApiError
from trainmaster_local.apiserver.cel.rules import RuleError, Rules
from trainmaster_local.apiserver.schema.defaulting import prune_nulls, set_defaults
from trainmaster_local.apiserver.schema.pruning import Decoder
from trainmaster_local.apiserver.schema.structural import structural_errors
from trainmaster_local.apiserver.schema.structure import with_object_meta
from trainmaster_local.apiserver.schema.validation import validate


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def said(value: Any, schema: dict[str, Any], old: Any = None) -> list[str]:
    errors = validate(value, schema) if old is None else validate(value, schema, old)
    return [str(error) for error in errors]


@pytest.mark.parametrize(
    ("schema", "value", "sentence"),
    [
        ({"type": "integer"}, "x", 'a: Invalid value: "string": a in body must be of type integer: "string"'),
        ({"type": "integer"}, "x", 'a: Invalid value: "string": a in body must be of type integer: "string"'),
        ({"type": "object"}, [], 'a: Invalid value: "array": a in body must be of type object: "array"'),
        ({"type": "integer", "minimum": 1}, 0, "a: Invalid value: 0: a in body should be greater than or equal to 1"),
        (
            {"type": "number", "maximum": 1, "exclusiveMaximum": True},
            1,
            "a: Invalid value: 1: a in body should be less than 1",
        ),
        ({"type": "integer", "multipleOf": 4}, 6, "a: Invalid value: 6: a in body should be a multiple of 4"),
        ({"type": "string", "maxLength": 2}, "abc", "a: Too long: may not be more than 2 bytes"),
        ({"type": "string", "minLength": 2}, "a", 'a: Invalid value: "a": a in body should be at least 2 chars long'),
        ({"type": "string", "pattern": "^x+$"}, "y", "a: Invalid value: \"y\": a in body should match '^x+$'"),
        ({"type": "string", "enum": ["x", "y"]}, "z", 'a: Unsupported value: "z": supported values: "x", "y"'),
        (
            {"type": "string", "format": "date-time"},
            "now",
            'a: Invalid value: "now": a in body must be of type date-time: "now"',
        ),
        (
            {"type": "array", "items": {"type": "string"}, "maxItems": 1},
            ["a", "b"],
            "a: Too many: 2: must have at most 1 items",
        ),
        (
            {"type": "array", "items": {"type": "integer"}},
            [1, "b"],
            'a[1]: Invalid value: "string": a[1] in body must be of type integer: "string"',
        ),
        ({"type": "object", "required": ["b"], "properties": {"b": {"type": "string"}}}, {}, "a.b: Required value"),
        (
            {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
            ["x", "x"],
            'a[1]: Duplicate value: "x"',
        ),
        (
            {"x-kubernetes-int-or-string": True},
            [],
            'a: Invalid value: "array": a in body must be of type integer,string: "array"',
        ),
    ],
)
def test_each_rule_is_told_in_kubernetes_words(schema: dict[str, Any], value: Any, sentence: str) -> None:
    assert said({"a": value}, object_of(a=schema)) == [sentence]


ONE_OR_TWO = [{"enum": ["one or two"]}, {"minimum": 1, "maximum": 2, "maxLength": 0, "not": {"enum": [True, False]}}]


@pytest.mark.parametrize(
    ("combination", "value", "sentences"),
    [
        ({"anyOf": ONE_OR_TWO}, 1, []),
        (
            {"anyOf": ONE_OR_TWO},
            3,
            [
                '<nil>: Invalid value: "": "a" must validate at least one schema (anyOf)',
                'a: Unsupported value: 3: supported values: "one or two"',
            ],
        ),
        (
            {"allOf": [{"anyOf": ONE_OR_TWO}, {"minimum": 0}]},
            "x",
            [
                '<nil>: Invalid value: "": "a" must validate at least one schema (anyOf)',
                'a: Unsupported value: "x": supported values: "one or two"',
                '<nil>: Invalid value: "": "a" must validate all the schemas (allOf)',
            ],
        ),
        (
            {"not": {"enum": [True, False]}},
            True,
            ['<nil>: Invalid value: "": "a" must not validate the schema (not)'],
        ),
        ({"not": {"enum": [True, False]}}, 1, []),
    ],
)
def test_what_fits_no_combination_is_refused_as_a_kube_apiserver_does(
    combination: dict[str, Any], value: Any, sentences: list[str]
) -> None:
    """The answers were recorded on a kube-apiserver 1.36.2."""
    free = {"x-kubernetes-preserve-unknown-fields": True, **combination}
    assert said({"a": value}, object_of(a=free)) == sentences


@pytest.mark.parametrize("text", ["1", "1.", ".5", "+1", "-1", "1e3", "1E", "100u", "1.5Gi", "1e-3"])
def test_rules_know_a_quantity(text: str) -> None:
    assert is_quantity(text)


@pytest.mark.parametrize("text", ["", "1e", "x", "0x1", "12 GB", "1gi", "1,5"])
def test_rules_know_what_is_no_quantity(text: str) -> None:
    assert not is_quantity(text)


def is_quantity(text: str) -> bool:
    schema = {**object_of(t=TEXT), "x-kubernetes-validations": [{"rule": "isQuantity(self.t)"}]}
    return Rules.compile(schema, root=False).check({"t": text}) == []


def test_rules_compare_quantities() -> None:
    rule = {
        "rule": "quantity(self.t).isGreaterThan(quantity('1Gi')) && quantity(self.t).compareTo(quantity('2G')) == 0"
    }
    schema = {**object_of(t=TEXT), "x-kubernetes-validations": [rule]}
    assert Rules.compile(schema, root=False).check({"t": "2000M"}) == []
    assert Rules.compile(schema, root=False).check({"t": "2Gi"}) != []


def test_two_items_with_one_key_are_refused() -> None:
    listed = {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "items": object_of(name={"type": "string"}),
    }
    assert said({"a": [{"name": "x"}, {"name": "x"}]}, object_of(a=listed)) == ['a[1]: Duplicate value: {"name":"x"}']


def test_what_was_wrong_before_and_did_not_change_is_let_be() -> None:
    """This is ratcheting, KEP-4008."""
    schema = object_of(a={"type": "integer", "maximum": 3}, b={"type": "string"})
    assert said({"a": 9, "b": "new"}, schema, old={"a": 9, "b": "old"}) == []
    assert len(said({"a": 8}, schema, old={"a": 9})) == 1


def test_defaults_go_as_deep_as_their_parents_are_there() -> None:
    inner = object_of(port={"type": "integer", "default": 80})
    schema = object_of(
        service=inner,
        made={**inner, "default": {}},
        items={"type": "array", "items": inner},
        named={"type": "object", "additionalProperties": inner},
        mode={"type": "string", "default": "x"},
        note={"type": "string", "nullable": True, "default": "y"},
    )
    value: dict[str, Any] = {"items": [{}, {"port": 1}], "named": {"a": {}}, "mode": None, "note": None}
    set_defaults(value, schema)
    assert value == {
        "made": {"port": 80},
        "items": [{"port": 80}, {"port": 1}],
        "named": {"a": {"port": 80}},
        "mode": "x",
        "note": None,
    }


def test_a_null_that_cannot_be_is_dropped() -> None:
    value = {"a": None, "b": None, "free": {"c": None}}
    schema = object_of(
        a={"type": "string"},
        b={"type": "string", "nullable": True},
        free={"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    )
    prune_nulls(value, schema)
    assert value == {"b": None, "free": {"c": None}}


def test_unknown_fields_are_dropped_and_named() -> None:
    embedded = {**object_of(spec=object_of(x={"type": "string"})), "x-kubernetes-embedded-resource": True}
    schema = object_of(
        spec=object_of(
            parts={"type": "array", "items": object_of(name={"type": "string"})},
            free={"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            template=embedded,
        )
    )
    obj = {
        "metadata": {"name": "x", "colour": "red"},
        "spec": {
            "parts": [{"name": "a"}, {"nam": "b"}],
            "free": {"any": {"thing": 1}},
            "template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b"}}, "spec": {"y": 1}},
        },
        "extra": 1,
    }
    unknown = Decoder(with_object_meta(schema), typed=False, root=True).decode(obj, "Widget", "v1")
    assert sorted(unknown) == ["extra", "metadata.colour", "spec.parts[1].nam", "spec.template.spec.y"]
    assert obj["spec"] == {
        "parts": [{"name": "a"}, {}],
        "free": {"any": {"thing": 1}},
        "template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b"}}, "spec": {}},
    }


def test_wrong_types_of_built_ins_and_of_metadata_are_refused_while_decoding() -> None:
    schema = with_object_meta(object_of(spec=object_of(replicas={"type": "integer", "format": "int32"})))
    built_in = Decoder(schema, typed=True, root=True)
    with pytest.raises(
        ApiError, match=r"cannot unmarshal string into Go struct field Set\.spec\.replicas of type int32"
    ):
        built_in.decode({"spec": {"replicas": "2"}}, "Set", "v1")
    custom = Decoder(schema, typed=False, root=True)
    assert custom.decode({"spec": {"replicas": "2"}}, "Set", "v1") == []
    with pytest.raises(
        ApiError, match=r"cannot unmarshal number into Go struct field ObjectMeta\.labels of type string"
    ):
        custom.decode({"metadata": {"labels": {"a": 1}}}, "Set", "v1")


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ({}, "s.type: Required value: must not be empty at the root"),
        (object_of(a={}), "s.properties[a].type: Required value: must not be empty for specified object fields"),
        (object_of(a={"type": "array"}), "s.properties[a].items: Required value: must be specified"),
        (
            object_of(a={"type": "object", "properties": {"b": {"type": "string"}}, "additionalProperties": True}),
            "s.properties[a].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
        ),
        (
            object_of(a={"type": "string", "anyOf": [{"type": "string"}]}),
            "s.properties[a].anyOf[0].type: Forbidden: must be empty to be structural",
        ),
        (
            object_of(a={"type": "array", "items": object_of(), "x-kubernetes-list-type": "map"}),
            "s.properties[a].x-kubernetes-list-map-keys: Required value: "
            "must not be empty if x-kubernetes-list-type is map",
        ),
        (
            object_of(a={"type": "integer", "default": "x"}),
            's.properties[a].default: Invalid value: "string": '
            's.properties[a].default in body must be of type integer: "string"',
        ),
    ],
)
def test_a_schema_that_is_not_structural_is_refused(schema: dict[str, Any], sentence: str) -> None:
    assert [str(error) for error in structural_errors(schema, "s")] == [sentence]


def checked(rule: dict[str, Any], value: Any, old: Any = None, **properties: Any) -> list[str]:
    schema = object_of(spec={**object_of(**properties), "x-kubernetes-validations": [rule]})
    before = None if old is None else {"spec": old}
    return [str(error) for error in Rules.compile(schema).check({"spec": value}, before)]


NUMBER = {"type": "integer"}
TEXT = {"type": "string"}


def test_a_rule_speaks_by_its_message_or_by_itself() -> None:
    assert checked({"rule": "self.a < 3", "message": "too big"}, {"a": 3}, a=NUMBER) == ["spec: Invalid value: too big"]
    assert checked({"rule": "self.a < 3"}, {"a": 3}, a=NUMBER) == ["spec: Invalid value: failed rule: self.a < 3"]
    expression = {"rule": "self.a < 3", "messageExpression": "'got ' + string(self.a)"}
    assert checked(expression, {"a": 3}, a=NUMBER) == ["spec: Invalid value: got 3"]
    forbidden = {"rule": "self.a < 3", "message": "no", "reason": "FieldValueForbidden", "fieldPath": ".a"}
    assert checked(forbidden, {"a": 3}, a=NUMBER) == ["spec.a: Forbidden: no"]


def test_transition_rules_compare_with_what_was() -> None:
    rule = {"rule": "self.a >= oldSelf.a", "message": "can't shrink"}
    assert checked(rule, {"a": 1}, a=NUMBER) == []
    assert checked(rule, {"a": 1}, {"a": 2}, a=NUMBER) == ["spec: Invalid value: can't shrink"]
    optional = {"rule": "oldSelf.hasValue() || self.a == 0", "optionalOldSelf": True, "message": "start at 0"}
    assert checked(optional, {"a": 1}, a=NUMBER) == ["spec: Invalid value: start at 0"]
    assert checked(optional, {"a": 1}, {"a": 0}, a=NUMBER) == []


def test_a_field_that_is_missing_is_told() -> None:
    assert checked({"rule": "self.a > 0", "message": "m"}, {}, a=NUMBER) == [
        'spec: Invalid value: "object": no such key: a evaluating rule: m'
    ]


@pytest.mark.parametrize(
    "rule",
    [
        "self.t.matches('^[a-z]+$') && self.t.contains('bc')",
        "self.t.startsWith('abc') && self.t.upperAscii() == 'ABCD' && '%s' .format([self.t]) == 'abcd'",
        "self.l.all(i, i > 0) && self.l.exists_one(i, i == 2) && self.l.map(i, i * 2) == [2, 4, 6]",
        "math.greatest(self.l) == 3 && size(self.l) == 3",
        "has(self.t) && !has(self.missing)",
        "self.?missing.orValue(7) == 7",
        "duration('90s') == duration('1m30s') && timestamp(self.when) < timestamp('2030-01-01T00:00:00Z')",
        "base64.encode(b'a') == 'YQ=='",
        "self.f * 2.0 == 3.0",
        "type(self.q) == int || self.q == '50%'",
        "self.__namespace__ == 'n' && self.with__dash__dash == 'd'",
    ],
)
def test_kubernetes_functions_are_there(rule: str) -> None:
    value = {
        "t": "abcd",
        "l": [1, 2, 3],
        "when": "2026-01-01T00:00:00Z",
        "f": 1.5,
        "q": "50%",
        "namespace": "n",
        "with-dash": "d",
    }
    properties = {
        "t": TEXT,
        "l": {"type": "array", "items": NUMBER},
        "when": TEXT,
        "f": {"type": "number"},
        "q": {"x-kubernetes-int-or-string": True},
        "namespace": TEXT,
        "with-dash": TEXT,
        "missing": NUMBER,
    }
    assert checked({"rule": rule}, value, **properties) == []


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("self.typo == 1", "undefined field 'typo'"),
        ("self.a + 1", "must evaluate to a bool"),
        ("self.a ==", "Syntax error"),
        ("quantity(self.t).sign() > 0", "undeclared reference to 'sign'"),
        ("self.t.find('[a-c]+') == 'abc'", "undeclared reference to 'find'"),
    ],
)
def test_a_rule_that_cannot_be_run_refuses_its_definition(rule: str, problem: str) -> None:
    schema = {**object_of(a=NUMBER, t=TEXT), "x-kubernetes-validations": [{"rule": rule}]}
    with pytest.raises(RuleError, match=problem) as refused:
        Rules.compile(object_of(spec=schema), "s")
    assert refused.value.path == "s.properties[spec].x-kubernetes-validations[0].rule"

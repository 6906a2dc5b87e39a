"""Definitions with rules that cost too much are refused, by the numbers of Kubernetes' own estimator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainmaster_local.apiserver.cel.costs import estimate
from trainmaster_local.apiserver.cel.rules import Rules

RECORDED: dict[str, Any] = json.loads((Path(__file__).parents[3] / "data" / "cel-costs.json").read_text())
TEXT = {"type": "string"}
TOO_MUCH = " exceeds budget by factor of more than 100x"
HINT = (
    " (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are "
    "declared)"
)


def errors(rule: dict[str, str], **properties: Any) -> list[str]:
    schema = {"type": "object", "properties": properties, "x-kubernetes-validations": [rule]}
    return [str(error) for error in Rules.compile(schema, root=False).costs_too_much("s")]


@pytest.mark.parametrize(("rule", "cost"), RECORDED["costs"], ids=lambda value: str(value)[:60])
def test_a_rule_costs_what_kubernetes_says(rule: str, cost: int) -> None:
    schema = {**RECORDED["schema"], "x-kubernetes-validations": [{"rule": rule}]}
    [place] = Rules.compile(schema, root=False).places("", 1)
    [(program, _)] = place.compiled
    assert estimate(program.serialize(), place.declared) == cost


def test_a_sentence_joined_with_a_number_is_refused() -> None:
    """A kube-apiserver 1.36.2 gives this answer to such a definition."""
    rule = {"rule": "self.a < 3", "messageExpression": "'got ' + string(self.a)"}
    said = "\n".join(errors(rule, a={"type": "integer"})).replace(HINT, "")
    assert said.splitlines() == [
        "s.x-kubernetes-validations[0].messageExpression: Forbidden: estimated messageExpression cost" + TOO_MUCH,
        "s.x-kubernetes-validations[0].messageExpression: Forbidden: contributed to estimated rule cost total "
        "exceeding cost limit for entire OpenAPIv3 schema",
        "s: Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema" + TOO_MUCH,
    ]
    assert errors({**rule, "messageExpression": "'got %d'.format([self.a])"}, a={"type": "integer"}) == []


def test_a_rule_in_a_list_counts_as_often_as_the_list_has_items() -> None:
    item = {"type": "object", "properties": {"t": TEXT}, "x-kubernetes-validations": [{"rule": "self.t != 'a'"}]}
    assert errors({"rule": "true"}, l={"type": "array", "maxItems": 5, "items": item}) == []
    longer = {**item, "x-kubernetes-validations": [{"rule": "self.t.contains('ab')"}]}
    [said] = errors({"rule": "true"}, l={"type": "array", "maxItems": 40, "items": longer})
    assert said.startswith("s.properties[l].items.x-kubernetes-validations[0].rule: Forbidden: estimated rule cost")
    assert "by factor of 1.258300x" in said


QUANTITY = {"x-kubernetes-int-or-string": True}


@pytest.mark.parametrize(
    ("rule", "factor"),
    [("isQuantity(self)", "3.1x"), ("isQuantity(string(self))", "6.3x"), ("string(self).matches('a')", "6.3x")],
)
def test_reading_a_quantity_costs_its_length(rule: str, factor: str) -> None:
    """A kube-apiserver 1.36.2 gives this answer to a hundred of them, each as long as a request."""
    listed = {"type": "array", "maxItems": 100, "items": {**QUANTITY, "x-kubernetes-validations": [{"rule": rule}]}}
    [said] = errors({"rule": "true"}, l=listed)
    assert f"by factor of {factor}" in said

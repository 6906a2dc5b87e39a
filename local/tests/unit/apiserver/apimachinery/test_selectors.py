"""Selectors follow https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/."""

from __future__ import annotations

import pytest

from trainmaster_local.apiserver.apimachinery.errors import ApiError
from trainmaster_local.apiserver.apimachinery.selectors import from_object, parse_fields, parse_labels


@pytest.mark.parametrize(
    ("text", "labels", "matches"),
    [
        ("", {}, True),
        ("app=a", {"app": "a"}, True),
        ("app==a", {"app": "b"}, False),
        ("app!=a", {}, True),
        ("app in (a,b),tier", {"app": "b", "tier": ""}, True),
        ("app notin (a, b)", {"app": "c"}, True),
        ("app notin (a)", {}, True),
        ("!app", {"app": "a"}, False),
        ("!app", {}, True),
        ("example.dev/rank>3", {"example.dev/rank": "4"}, True),
        ("rank<3", {"rank": "x"}, False),
        ("app=", {"app": ""}, True),
    ],
)
def test_labels_match(text: str, labels: dict[str, str], matches: bool) -> None:
    assert parse_labels(text).matches(labels) is matches


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("app in (a", "unable to parse requirement: found '', expected: ',' or ')'"),
        ("app in a", "unable to parse requirement: found 'a', expected: '('"),
        ("app=a b", "found 'b', expected: ',' or 'end of string'"),
        ("app,", "found '', expected: identifier after ','"),
    ],
)
def test_what_cannot_be_parsed_is_refused(text: str, message: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_labels(text)
    assert refused.value.code == 400
    assert refused.value.message == message


def test_a_selector_of_a_spec_matches_labels_and_expressions() -> None:
    selector = from_object(
        {
            "matchLabels": {"app": "a"},
            "matchExpressions": [
                {"key": "tier", "operator": "In", "values": ["x", "y"]},
                {"key": "old", "operator": "DoesNotExist"},
            ],
        }
    )
    assert selector.matches({"app": "a", "tier": "y"})
    assert not selector.matches({"app": "a", "tier": "y", "old": ""})
    assert from_object({}).matches({"any": "thing"})
    assert not from_object(None).matches({})


def test_fields_match_by_value_and_by_difference() -> None:
    selector = parse_fields("status.phase!=Running,spec.nodeName=n1", lambda field: True)
    values = {"status.phase": "Pending", "spec.nodeName": "n1"}
    assert selector.matches(lambda field: values.get(field, ""))
    assert selector.value("spec.nodeName") == "n1"
    assert not selector.matches(lambda field: "Running")


def test_a_field_that_cannot_be_selected_is_named() -> None:
    with pytest.raises(ApiError, match=r"^field label not supported: spec\.size$"):
        parse_fields("spec.size=1", lambda field: field == "metadata.name")

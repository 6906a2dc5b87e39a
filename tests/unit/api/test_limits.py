"""A spec beyond the limits is refused in one sentence, without more work than the limits allow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.unit.api.api_server import apply, change
from trainmaster.cli.main import app
from trainmaster.client import InvalidRequest, JobClient
from trainmaster_operator.api.json_codec import compact, is_larger
from trainmaster_operator.api.limits import (
    KIB,
    MAX_BYTES,
    MAX_ITEMS,
    MAX_NESTING,
    MAX_OTHER_BYTES,
    check_size,
)
from trainmaster_operator.api.parsing import InvalidJob, parse_spec


def nested(depth: int) -> Any:
    """Returns `depth` nested lists."""
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def of_bytes(size: int) -> dict[str, str]:
    """Returns a mapping that has so many bytes as JSON."""
    return {"x": "a" * (size - len('{"x":""}'))}


def tolerations(count: int) -> dict[str, Any]:
    return {"spec": {"tolerations": [{"key": f"k{n}"} for n in range(count)]}}


TOO_LARGE: dict[str, tuple[dict[str, Any], str]] = {
    "20,000 tolerations": (
        {"podTemplate": tolerations(20_000)},
        "spec.podTemplate.spec.tolerations: has 20000 items; use at most 1000",
    ),
    "a long list further down": (
        {"training": {"data": [{"files": ["a"] * 1001}]}},
        "spec.training.data[0].files: has 1001 items; use at most 1000",
    ),
    "a large podTemplate": (
        {"podTemplate": {"metadata": {"annotations": of_bytes(256 * KIB)}}},
        "spec.podTemplate: has more than 262144 bytes as JSON; use at most 262144, and mount what is larger",
    ),
    "a large training": (
        {"training": of_bytes(512 * KIB + 1)},
        "spec.training: has more than 524288 bytes as JSON; use at most 524288, and mount what is larger",
    ),
    "a training that is large by its escapes alone": (
        {"training": {"x": "\x01" * 100_000}},
        "spec.training: has more than 524288 bytes as JSON; use at most 524288, and mount what is larger",
    ),
    "a training that nests deep": (
        {"training": {"x": nested(MAX_NESTING)}},
        "spec.training: has more than 64 lists and mappings in each other; use at most 64",
    ),
    "a training that nests deeper than Python's stack": (
        {"training": {"x": nested(5_000)}},
        "spec.training: has more than 64 lists and mappings in each other; use at most 64",
    ),
    "another field that nests deeper than Python's stack": (
        {"resources": nested(5_000)},
        "spec.resources: has more than 64 lists and mappings in each other; use at most 64",
    ),
    "many long arguments": (
        {"args": ["a" * 1000] * 1000},
        "spec: has more than 131072 bytes beside podTemplate and training; use at most 131072",
    ),
    "an unknown field": (
        {"notes": "a" * 200_000},
        "spec: has more than 131072 bytes beside podTemplate and training; use at most 131072",
    ),
    "half of a character": (
        {"podTemplate": {"spec": {"containers": [{"name": "worker", "env": [{"name": "A", "value": "\ud83d"}]}]}}},
        "spec.podTemplate.spec.containers[0].env[0].value: has half of a character, which is not valid Unicode; "
        "write the whole character",
    ),
    "half of a character in a name": (
        {"training": {"x": [{"a\ude00": 1}]}},
        "spec.training.x[0]: has half of a character, which is not valid Unicode; write the whole character",
    ),
    "what JSON can't hold": (
        {"training": {"x": {"a" * 100_000: {1, 2}}}},
        "spec.training: can't be written as JSON (Object of type set is not JSON serializable); use text, numbers, "
        "lists and mappings",
    ),
}
LEGAL: dict[str, dict[str, Any]] = {
    "lists of 1,000": {"podTemplate": tolerations(MAX_ITEMS), "training": {"x": [[0] * MAX_ITEMS] * 3}},
    "the largest podTemplate": {
        "podTemplate": {
            "metadata": {"annotations": of_bytes(MAX_BYTES["podTemplate"] - len('{"metadata":{"annotations":}}'))}
        }
    },
    "the largest training": {"training": of_bytes(MAX_BYTES["training"])},
    "the deepest training": {"training": {"x": nested(MAX_NESTING - 1)}},
    "as many arguments as there can be": {"args": ["a" * 100] * 1024},
}


@pytest.mark.parametrize(("spec", "sentence"), TOO_LARGE.values(), ids=TOO_LARGE.keys())
def test_a_spec_beyond_a_limit_is_refused_in_one_sentence(spec: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_spec({"workers": 1, **spec}, "job")
    assert str(caught.value) == sentence


@pytest.mark.parametrize("spec", LEGAL.values(), ids=LEGAL.keys())
def test_what_the_limits_allow_is_accepted(spec: dict[str, Any]) -> None:
    # The size doesn't matter for values of `training` that the bundled loop would refuse.
    job = {"workers": 1, "command": ["python", "train.py"], **spec}
    parse_spec(job, "job")
    assert apply(job).accepted


@pytest.mark.parametrize("field", ["tolerations", "containers", "volumes"])
def test_long_lists_of_the_pod_are_refused_at_apply(field: str) -> None:
    def template(count: int) -> dict[str, Any]:
        return {"podTemplate": {"spec": {field: [{"name": f"n{n}", "key": f"k{n}"} for n in range(count)]}}}

    assert apply({"workers": 1, **template(1000)}).accepted
    # The API server then skips the rules, and reports that as a second cause.
    (where, sentence), *_ = apply({"workers": 1, **template(1001)}).causes
    assert where == f"spec.podTemplate.spec.{field}"
    assert "Too many: 1001: must have at most 1000 items" in sentence


def test_what_the_schema_bounds_of_a_pod_is_still_free() -> None:
    spec = {"workers": 1, "podTemplate": {"spec": {"tolerations": None, "volumes": [{"name": "x", "emptyDir": {}}]}}}
    assert apply(spec).stored["spec"]["podTemplate"] == spec["podTemplate"]


@pytest.mark.parametrize("after", [{"hostPID": False, "volumes": []}, {"hostPID": True, "volumes": [{"name": "x"}]}])
def test_no_part_of_a_pod_can_change_once_the_job_exists(after: dict[str, Any]) -> None:
    before = {"workers": 1, "podTemplate": {"spec": {"hostPID": True, "volumes": []}}}
    answer = change(before, {**before, "podTemplate": {"spec": after}})
    assert [where for where, _ in answer.causes] == ["spec.podTemplate"]


def test_no_more_is_read_than_the_limits_allow() -> None:
    read = 0

    class Counted(dict[str, Any]):
        def items(self) -> Any:
            nonlocal read
            read += 1
            return super().items()

        def values(self) -> Any:
            nonlocal read
            read += 1
            return super().values()

    large = {"training": Counted({f"k{n}": [Counted() for _ in range(1000)] for n in range(400)})}
    assert check_size(large) is not None
    assert read < MAX_BYTES["training"] // 2
    read = 0
    assert is_larger(large, 64 * KIB)
    assert read < 64 * KIB


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=4), children, max_size=4),
    max_leaves=20,
)


@given(JSON, st.integers(0, 200))
def test_a_value_is_never_found_larger_than_it_is(value: Any, most: int) -> None:
    """Each byte that is counted while walking is a byte of the JSON, so a value that fits is never refused."""
    if is_larger(value, most):
        assert len(compact(value)) > most


@given(JSON)
def test_compact_json_comes_back_as_it_was(value: Any) -> None:
    assert json.loads(compact(value).decode("utf-8", "surrogatepass")) == value


def test_validate_says_the_same_sentences(tmp_path: Path) -> None:
    head = {"apiVersion": "trainmaster.dev/v1alpha1", "kind": "DistributedTrainingJob", "metadata": {"name": "job"}}
    spec, sentence = TOO_LARGE["a training that nests deep"]
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps({**head, "spec": {"workers": 1, **spec}}))
    refused = CliRunner().invoke(app, ["validate", str(file)])
    assert refused.exit_code == 1
    assert sentence in refused.output
    file.write_text('{"spec": ' + "[" * 1100 + "]" * 1100 + "}")
    refused = CliRunner().invoke(app, ["validate", str(file)])
    assert refused.exit_code == 1
    assert "has too many lists and mappings in each other; use at most 64" in refused.output


def test_the_client_says_the_same_sentence_before_it_asks_the_api_server() -> None:
    class Unused:
        def request(self, *arguments: Any, **options: Any) -> Any:
            raise AssertionError("asked")

        lines = request

    spec, sentence = TOO_LARGE["20,000 tolerations"]
    with pytest.raises(InvalidRequest) as caught:
        JobClient("team", transport=Unused()).submit({"metadata": {"name": "job"}, "spec": {"workers": 1, **spec}})
    assert str(caught.value) == sentence


def test_all_limits_together_fit_into_an_object_of_the_api_server() -> None:
    """etcd accepts objects of up to 1.5 MiB."""
    assert sum(MAX_BYTES.values()) + MAX_OTHER_BYTES < 1024 * KIB

"""A user's text is rendered as data: it is the same byte for byte, and doesn't change the structure."""

from __future__ import annotations

from typing import Any

import jinja2
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainmaster_operator.api.v1alpha1 import Checkpoint, CheckpointVolume, JobIdentity, JobSpec
from trainmaster_operator.api.values import CompactMapping
from trainmaster_operator.rendering import first_assignment, render
from trainmaster_operator.rendering.manifest import child

JOB = JobIdentity("team", "bert", "uid")
HOSTILE = st.one_of(
    st.text(min_size=1, max_size=40),
    st.text(alphabet="'\"\\{}%#:-\n\r\t &*!|>[],?@` \x00\x85\u2028\u2029\ufeff\U0001f600", min_size=1, max_size=20),
    st.sampled_from(
        [
            "{{ job.uid }}",
            "{% raw %}",
            "{#",
            "%}",
            "yes",
            "null",
            "~",
            "1e3",
            "0x1f",
            "<<",
            "---\n",
            "...",
            "\n  - a: b",
        ]
    ),
)


def rendered(text: str) -> list[Any]:
    """Renders a job with the text in every text field, without the parser, which would refuse most of these texts."""
    checkpoint = Checkpoint.model_construct(path=text, volume=CheckpointVolume(empty_dir=True))
    spec = JobSpec.model_construct(
        image=text,
        command=[text, "-c"],
        args=[text],
        training=CompactMapping({"text": text, text: "key"}),
        setup=text,
        workers=2,
        worker_groups=None,
        backend=text,
        pod_template=None,
        checkpoint=checkpoint,
    )
    job = JobIdentity(text, text, text)
    return [dict(one.body) for one in render(job, spec, first_assignment(job, spec))]


def shape(node: Any) -> Any:
    """Returns the structure without the texts."""
    if isinstance(node, dict):
        return {key: shape(value) for key, value in node.items()}
    return [shape(item) for item in node] if isinstance(node, list) else type(node)


PLAIN = rendered("plain")


@settings(max_examples=settings.default.max_examples * 3 // 2)
@example("\U0001f600\x7f\x85\u2028\ufffe\uffff\ud7ff")
@example("ghcr.io/trainmaster/trainer2")
@given(HOSTILE)
def test_text_comes_out_as_data(text: str) -> None:
    service, config, workers = rendered(text)
    assert [shape(one) for one in (service, config, workers)] == [shape(one) for one in PLAIN]
    pod = workers["spec"]["template"]["spec"]
    container = pod["containers"][0]
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert container["image"] == text
    assert container["args"] == [text, "-c", text]
    assert environment["TRAINMASTER_BACKEND"] == text
    # The kubelet turns $$ into $ again.
    assert environment["TRAINMASTER_SETUP"].replace("$$", "$") == text
    assert container["volumeMounts"][-1]["mountPath"] == text
    assert service["metadata"]["name"] == service["metadata"]["namespace"] == text
    assert yaml.safe_load(config["data"]["training.yaml"]) == {"text": text, text: "key"}


@settings(max_examples=3 * settings.default.max_examples)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=20), inner, max_size=3),
        max_leaves=8,
    )
)
def test_a_value_comes_out_as_it_is(value: Any) -> None:
    config = child("configmap.yaml.j2", JOB, "bert", training=value)
    assert config["data"]["training.yaml"] == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [float("-inf")]])
def test_what_json_has_not_is_an_error(value: Any) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        child("configmap.yaml.j2", JOB, "bert", training=value)


def test_an_undefined_name_is_an_error() -> None:
    with pytest.raises((jinja2.UndefinedError, TypeError)):
        child("configmap.yaml.j2", JOB, "bert")


def test_who_changes_a_manifest_changes_no_other() -> None:
    first, second = rendered("plain")[0], rendered("plain")[0]
    first["spec"]["ports"].clear()
    first["metadata"]["labels"]["mine"] = "yes"
    assert second == PLAIN[0]
    assert rendered("plain")[0] == PLAIN[0]


@example("<value 0>")
@example("<value 99>")
@given(HOSTILE)
def test_a_text_that_looks_like_a_mark_is_a_text(text: str) -> None:
    assert rendered(text)[2]["spec"]["template"]["spec"]["containers"][0]["image"] == text

"""Whatever a user writes comes out as data: the same text, byte for byte, and the structure is as without it."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainmaster.api.compact import CompactMapping
from trainmaster.api.v1alpha1 import Checkpoint, CheckpointVolume, JobSpec
from trainmaster.rendering import JobIdentity, first_assignment, render
from trainmaster.rendering.engine import to_yaml_json

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
    """A job with the text in every field that takes text, without the parser, which refuses much of it."""
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
    """The structure without the texts; a key that is the text itself stands for any."""
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
def test_values_are_the_same_in_yaml(value: Any) -> None:
    assert yaml.safe_load(to_yaml_json(value)) == value

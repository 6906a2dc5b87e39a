"""The scheduler's words are read part by part, whatever version wrote them."""

from __future__ import annotations

import pytest

from trainmaster.client.diagnosis.words import read_words


@pytest.mark.parametrize(
    ("message", "nodes", "parts"),
    [
        (
            "0/7 nodes are available: 3 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint {dedicated: "
            "infra}, 2 node(s) didn't match Pod's node affinity/selector. preemption: 0/7 nodes are available: 7 "
            "Preemption is not helpful for scheduling.",
            7,
            [("resource", 3, "nvidia.com/gpu"), ("taint", 2, "dedicated: infra"), ("selector", 2, "")],
        ),
        (
            "0/2 nodes are available: 1 Too many pods, 1 node(s) had untolerated taint(s). no new claims to "
            "deallocate, preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod.",
            2,
            [("resource", 1, "pods"), ("taint", 1, "")],
        ),
        (
            '0/1 nodes are available: persistentvolumeclaim "checkpoints" not found. preemption: 0/1 nodes.',
            1,
            [("claim missing", None, "checkpoints")],
        ),
        (
            "0/3 nodes are available: 3 node(s) had untolerated taint {node.kubernetes.io/unreachable: }.",
            3,
            [("not ready", 3, "")],
        ),
        (
            "0/4 nodes are available: 1 node(s) had taint {a: b}, that the pod didn't tolerate, 3 node(s) were "
            "unschedulable.",
            4,
            [("taint", 1, "a: b"), ("cordoned", 3, "")],
        ),
        (
            "pod big-0 can't be scheduled: 0/3 nodes are unavailable: 3 Insufficient cpu.",
            3,
            [("resource", 3, "cpu")],
        ),
        (
            "0/6 nodes are available: 2 node(s) didn't satisfy existing pods anti-affinity rules, 4 node(s) exceed max "
            "volume count.",
            6,
            [("pod affinity", 2, ""), ("volume limit", 4, "")],
        ),
    ],
)  # fmt: skip
def test_each_part_has_its_kind(message: str, nodes: int, parts: list[tuple[str, int | None, str]]) -> None:
    words = read_words(message)
    assert words is not None
    assert words.nodes == nodes
    assert [(one.kind, one.nodes, one.about) for one in words.exclusions] == parts


def test_other_texts_are_none_of_the_schedulers() -> None:
    assert read_words("Successfully assigned team/big-0 to gpu-a") is None

"""Bodies in Kubernetes' protobuf encoding are built from the wire format (protobuf.dev, "Encoding")."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster_local.apiserver.http.protobuf import ProtobufError, decode


def field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    result = b""
    while value >= 0x80:
        result += bytes([value & 0x7F | 0x80])
        value >>= 7
    return result + bytes([value])


def body(api_version: str, kind: str, message: bytes) -> bytes:
    type_meta = field(1, api_version.encode()) + field(2, kind.encode())
    return b"k8s\x00" + field(1, type_meta) + field(2, message)


def metadata(name: str) -> bytes:
    zero_time = field(8, b"")
    return field(1, name.encode()) + field(2, b"") + field(3, b"") + field(7, 0) + zero_time


def test_config_map() -> None:
    entry = field(1, b"key") + field(2, b"value")
    binary = field(1, b"raw") + field(2, b"\xff\x00")
    message = field(1, metadata("made")) + field(2, entry) + field(3, binary)
    decoded = decode(body("v1", "ConfigMap", message))
    assert (decoded["kind"], decoded["apiVersion"]) == ("ConfigMap", "v1")
    assert decoded["metadata"]["name"] == "made"
    assert "creationTimestamp" not in decoded["metadata"]
    assert decoded["data"] == {"key": "value"}
    assert decoded["binaryData"] == {"raw": base64.b64encode(b"\xff\x00").decode()}


def test_deployment_with_nested_types() -> None:
    quantity = field(1, b"nvidia.com/gpu") + field(2, field(1, b"2"))
    port = field(3, 8080)
    probe = field(1, field(2, field(1, b"/ready") + field(2, field(1, 0) + field(2, 8080)))) + field(4, 5)
    container = field(1, b"c") + field(2, b"i:1") + field(3, b"run") + field(6, port)
    container += field(8, field(1, quantity)) + field(11, probe)
    volume = field(1, b"v") + field(2, field(2, field(1, b"Memory")))
    template = field(1, metadata("")) + field(2, field(1, volume) + field(2, container))
    spec = field(1, 3) + field(3, template)
    decoded = decode(body("apps/v1", "Deployment", field(1, metadata("d")) + field(2, spec)))
    assert decoded["spec"]["replicas"] == 3
    pod = decoded["spec"]["template"]["spec"]
    assert pod["volumes"] == [{"name": "v", "emptyDir": {"medium": "Memory"}}]
    made = pod["containers"][0]
    assert made["command"] == ["run"]
    assert made["ports"] == [{"containerPort": 8080}]
    assert made["resources"] == {"limits": {"nvidia.com/gpu": "2"}}
    assert made["readinessProbe"] == {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 5}


def test_times_and_negative_numbers() -> None:
    lease = field(1, b"holder") + field(2, (1 << 64) - 1) + field(3, field(1, 0) + field(2, 1_500_000))
    decoded = decode(body("coordination.k8s.io/v1", "Lease", field(1, metadata("l")) + field(2, lease)))
    assert decoded["spec"] == {
        "holderIdentity": "holder",
        "leaseDurationSeconds": -1,
        "acquireTime": "1970-01-01T00:00:00.001500Z",
    }


def test_fields_of_a_newer_release_are_passed_over() -> None:
    message = field(1, metadata("x")) + field(99, b"new") + field(98, 7)
    assert decode(body("v1", "ServiceAccount", message))["metadata"]["name"] == "x"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"{}", "expected prefix"),
        (body("v1", "Nope", b""), 'no kind "Nope" is registered for version "v1"'),
        (b"k8s\x00\x0a\xff", "unexpected EOF"),
        (body("v1", "ConfigMap", b"\x0b"), "illegal wireType 3"),
        (body("v1", "ConfigMap", field(1, 7)), "wrong wireType = 0 for field metadata"),
        (body("v1", "ConfigMap", field(1, field(1, b"\xff"))), "invalid UTF-8"),
    ],
)
def test_what_cannot_be_read_says_why(data: bytes, problem: str) -> None:
    with pytest.raises(ProtobufError, match=problem):
        decode(data)


@given(st.binary(max_size=60), st.integers(1, 3), st.integers(1, 20))
def test_no_bytes_end_in_anything_but_an_object_or_a_problem(data: bytes, outer: int, inner: int) -> None:
    try:
        assert decode(body("v1", "Pod", field(outer, field(inner, data))))["kind"] == "Pod"
    except ProtobufError as error:
        assert str(error)

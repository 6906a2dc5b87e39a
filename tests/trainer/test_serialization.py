"""Values that ranks send each other arrive unchanged, and anything that isn't a message is refused."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainloop.distributed.serialization import decode, encode
from trainloop.errors import TrainingError

SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text()
#: All types in which numbers are computed and kept.
KINDS = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.complex64, torch.complex128, torch.bool),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
)

VALUES = st.recursive(
    SCALARS | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4) | st.integers() | st.tuples(st.integers()), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(VALUES)
def test_what_a_rank_sends_arrives_as_it_was(value: Any) -> None:
    again = decode(encode(value))
    assert again == value and repr(again) == repr(value), "a tuple stays one, True no 1"


def test_tensors_of_every_type_and_shape_arrive_to_the_bit() -> None:
    for kind in KINDS:
        for shape in ((), (0,), (3,), (2, 3)):
            tensor = torch.randint(0, 2, shape).to(kind)
            value = {"odd": b"x", "tensor": tensor, "columns": tensor.t() if tensor.dim() == 2 else None}
            again = decode(encode(value))["tensor"]
            assert (again.dtype, again.shape) == (kind, tensor.shape)
            assert torch.equal(again.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))
    assert math.isnan(decode(encode(math.nan))) and decode(encode(-math.inf)) == -math.inf
    states = (random.getstate(), np.random.get_state(legacy=True)[2:])
    assert decode(encode(states)) == states, "the generators' state"


def test_what_is_no_value_is_not_sent() -> None:
    with pytest.raises(TypeError, match="a PosixPath can't be sent to other ranks"):
        encode({"path": Path("/")})


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[",
        b"3",
        b"[1, []]",
        b"[1, [-1, 5]]",
        b'[1, ["4"]]',
        b"[" * 100_000,
        b'[{"run": ["os.system", "true"]}, [4]]',
        b'[{"tuple": 3, "list": 4}, [4]]',
        b'[{"tuple": 3}, [4]]',
        b'[{"dict": [[[1], 2]]}, [4]]',
        b'[{"bytes": 3}, [4]]',
        b'[{"tensor": ["torch.float32", [1], 1]}, [4]]',
        b'[{"tensor": ["torch.float32", [1], 0]}, 1]',
        b'[{"tensor": ["torch.float32", [1], "0"]}, [4]]',
        b'[{"tensor": ["torch.float64", [1], 0]}, [4]]',
        b'[{"tensor": ["torch.float32", [1000], 0]}, [4]]',
        b'[{"tensor": ["torch.float32", [-2], 0]}, [4]]',
        b'[{"tensor": ["torch.float32", [1e400], 0]}, [4]]',
        b'[{"tensor": ["torch.float32", ["1"], 0]}, [4]]',
        b'[{"tensor": ["__class__", [1], 0]}, [4]]',
        b'[{"tensor": [["torch.float32"], [1], 0]}, [4]]',
        b"1" * 5_000,
    ],
)
def test_a_hostile_message_is_refused_with_a_sentence(text: bytes) -> None:
    message = torch.frombuffer(bytearray(len(text).to_bytes(8, "big") + text + b"1234"), dtype=torch.uint8)
    with pytest.raises(TrainingError, match="what came over the network isn't a message of trainloop"):
        decode(message)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        decode(torch.tensor(list(data), dtype=torch.uint8))
    except TrainingError as refused:
        assert len(str(refused)) < 400

"""The state of the random generators is captured in every step, so it is read directly from memory.

Python's and numpy's own functions make an object of each of 624 words, which takes a tenth of a millisecond per step;
copying the generators' memory takes a few microseconds. Numpy documents the address of its generator's state. For
Python's generator, the bytes in memory are compared with `random.getstate` when this module is imported; if they
differ, `getstate` is used.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from array import array
from typing import Any

import torch

#: Lengths of the six pieces that follow: torch's state, Python's index and words, Python's next gauss, numpy's words
#: and position, numpy's next gauss, and the device's state.
_HEAD = struct.Struct("<6I")
_WORDS = 624
_WORD_BYTES = 4 * _WORDS
_GAUSS = struct.Struct("<d")
_MULTIPLE = 256


def packed(device: torch.device) -> bytes:
    """Returns the state of the generators of torch, of Python, of numpy if it is imported, and of the device."""
    gauss = _PYTHON.gauss_next
    pieces = [_bytes(torch.default_generator.get_state()), _python()]
    pieces += [b"" if gauss is None else _GAUSS.pack(gauss), *_numpy()]
    pieces.append(_bytes(torch.get_device_module(device).get_rng_state(device)) if device.type != "cpu" else b"")
    state = b"".join([_HEAD.pack(*map(len, pieces)), *pieces])
    # The length is the same whether or not a generator has stored a second gauss.
    return state.ljust(len(state) + -len(state) % _MULTIPLE, b"\0")


def as_tensor(state: bytes) -> torch.Tensor:
    """Returns a tensor with a copy of the bytes."""
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def capture(device: torch.device) -> torch.Tensor:
    """Returns the result of `packed` as a tensor."""
    return as_tensor(packed(device))


def restore(state: torch.Tensor, device: torch.device) -> None:
    """Restore the generators' state from `capture`."""
    data, pieces = state.numpy().tobytes(), list[bytes]()
    begin = _HEAD.size
    for length in _HEAD.unpack_from(data):
        pieces.append(data[begin : begin + length])
        begin += length
    own, words, gauss, numpy_words, numpy_gauss, of_device = pieces
    torch.set_rng_state(as_tensor(own))
    [index], key = array("i", words[:4]), array("I", words[4:])
    random.setstate((random.Random.VERSION, (*key, index), _GAUSS.unpack(gauss)[0] if gauss else None))
    if numpy_words and (numpy := sys.modules.get("numpy")):
        [position] = array("i", numpy_words[_WORD_BYTES:])
        has = (1, _GAUSS.unpack(numpy_gauss)[0]) if numpy_gauss else (0, 0.0)
        key_of_numpy = numpy.frombuffer(numpy_words[:_WORD_BYTES], dtype=numpy.uint32)
        numpy.random.set_state(("MT19937", key_of_numpy, position, *has))
    if of_device and device.type != "cpu":
        torch.get_device_module(device).set_rng_state(as_tensor(of_device), device)


def seed(number: int, device: torch.device | None = None) -> None:
    """Seed the host's generators and the accelerator `device`'s, or all accelerators', with a number below 2 ** 63."""
    global _numpys_last
    if device is None:
        torch.manual_seed(number)
    else:
        torch.default_generator.manual_seed(number)
    if device is not None and device.type != "cpu":
        torch.get_device_module(device).manual_seed(number)
    random.seed(number)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(number & 0xFFFFFFFF)
        generator, address, *_ = _numpys_last
        if address and generator is numpy.random.get_bit_generator():
            # Until a number is drawn, numpy needn't be asked whether it has stored a second gauss.
            _numpys_last = generator, address, ctypes.string_at(address, _WORD_BYTES + 4), b""


def _from_python() -> bytes:
    """Returns the index and the words of Python's generator, from `getstate`."""
    *words, index = random.getstate()[1]
    return array("i", [index]).tobytes() + array("I", words).tobytes()


def _from_memory() -> bytes:
    """Returns the same bytes as `_from_python`, read from memory behind the head of the generator's object."""
    return ctypes.string_at(id(_PYTHON) + object.__basicsize__, 4 + _WORD_BYTES)


#: The generator behind the functions of `random`.
_PYTHON: Any = random.random.__self__  # type: ignore[attr-defined]
_python = _from_memory if _from_memory() == _from_python() else _from_python
_numpys_last: tuple[Any, int, bytes, bytes] = (None, 0, b"", b"")


def _numpy() -> tuple[bytes, bytes]:
    """Returns the words and the position of numpy's generator, and its next gauss; both empty if it isn't MT19937."""
    global _numpys_last
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return b"", b""
    last, address, last_words, last_gauss = _numpys_last
    generator = numpy.random.get_bit_generator()
    if generator is not last:
        if type(generator).__name__ != "MT19937":
            return b"", b""
        address = generator.ctypes.state_address
    words = ctypes.string_at(address, _WORD_BYTES + 4)
    # Numpy stores the next gauss elsewhere. When it draws a pair, the words change, and the second gauss stays stored
    # until it is drawn, which doesn't change the words. So numpy is asked only if the words changed or one was stored.
    if generator is not last or words != last_words or last_gauss:
        told = numpy.random.get_state(legacy=False)
        last_gauss = _GAUSS.pack(told["gauss"]) if told["has_gauss"] else b""
        _numpys_last = generator, address, words, last_gauss
    return words, last_gauss


def _bytes(tensor: torch.Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.numel())

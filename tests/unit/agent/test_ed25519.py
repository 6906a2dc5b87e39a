"""Signatures are verified by RFC 8032 in pure Python: its own vectors, the library's signatures, and attacks."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster_operator.agent import ed25519

ORDER = 2**252 + 27742317777372353535851937790883648493
# RFC 8032, section 7.1: public key, message, signature.
VECTORS = {
    "TEST 1": (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
        "d25bf5f0595bbe24655141438e7a100b",
    ),
    "TEST 2": (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c"
        "387b2eaeb4302aeeb00d291612bb0c00",
    ),
    "TEST 3": (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc659"
        "4a7c15e9716ed28dc027beceea1ec40a",
    ),
    "TEST SHA(abc)": (
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd"
        "454d4423643ce80e2a9ac94fa54ca49f",
        "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c66431e030"
        "3dca179c138ac17ad9bef1177331a704",
    ),
}
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()
MESSAGE = b'{"attempt":3}'
SIGNATURE = KEY.sign(MESSAGE)


@pytest.mark.parametrize("name", VECTORS)
def test_the_vectors_of_the_rfc(name: str) -> None:
    public_key, message, signature = (bytes.fromhex(text) for text in VECTORS[name])
    assert ed25519.verify(public_key, message, signature)
    assert not ed25519.verify(public_key, message + b"\0", signature)


@settings(max_examples=settings.default.max_examples // 2, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.binary(max_size=300))
def test_what_the_library_signs_is_verified(seed: bytes, message: bytes) -> None:
    key = Ed25519PrivateKey.from_private_bytes(seed)
    public_key, signature = key.public_key().public_bytes_raw(), key.sign(message)
    assert ed25519.is_key(public_key)
    assert ed25519.verify(public_key, message, signature)
    assert not ed25519.verify(PUBLIC, message, signature) or public_key == PUBLIC


@settings(max_examples=settings.default.max_examples * 3 // 2, deadline=None)
@given(st.integers(0, 32 + len(MESSAGE) + 64 - 1), st.integers(1, 255))
def test_a_changed_byte_of_key_message_or_signature_is_refused(place: int, change: int) -> None:
    data = bytearray(PUBLIC + MESSAGE + SIGNATURE)
    data[place] ^= change
    assert not ed25519.verify(bytes(data[:32]), bytes(data[32:-64]), bytes(data[-64:]))


def test_a_second_signature_of_the_same_message_is_refused() -> None:
    """S and S + L satisfy the same equation, so anyone who sees one signature could write the other."""
    s = int.from_bytes(SIGNATURE[32:], "little")
    for multiple in (1, 2, 7):
        other = SIGNATURE[:32] + (s + multiple * ORDER).to_bytes(32, "little")
        assert not ed25519.verify(PUBLIC, MESSAGE, other)


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 63, 65, 128])
def test_other_lengths_are_refused(length: int) -> None:
    assert not ed25519.verify(PUBLIC, MESSAGE, (SIGNATURE * 2)[:length])
    if length != ed25519.KEY_BYTES:
        assert not ed25519.verify((PUBLIC * 4)[:length], MESSAGE, SIGNATURE)
        assert not ed25519.is_key((PUBLIC * 4)[:length])


SMALL_ORDER = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
]
MALFORMED = {
    "y is not below the prime": "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "one, a second time": "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "minus zero": "0100000000000000000000000000000000000000000000000000000000000080",
    "on no point of the curve": "0200000000000000000000000000000000000000000000000000000000000000",
}


@pytest.mark.parametrize("encoded", [*SMALL_ORDER, *MALFORMED.values()])
def test_points_that_are_no_key_are_refused(encoded: str) -> None:
    """With a key of small order, the signature (R = any multiple of it, S = 0) fits many unsigned messages."""
    public_key = bytes.fromhex(encoded)
    assert not ed25519.is_key(public_key)
    for point in SMALL_ORDER:
        for number in range(8):
            assert not ed25519.verify(public_key, b"%d" % number, bytes.fromhex(point) + bytes(32))

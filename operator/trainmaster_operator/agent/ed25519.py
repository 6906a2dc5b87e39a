"""Verify Ed25519 signatures (RFC 8032, section 5.1) in pure Python, because users' images may lack a library for it.

The module handles no secrets, so it needn't run in constant time. It uses the check without the cofactor, as OpenSSL
does: it computes R from S, the key and the message, and compares bytes, so a valid signature has only one encoding.
Points are in extended coordinates (Hisil, Wong, Carter, Dawson: "Twisted Edwards Curves Revisited", 2008). The two
scalar multiplications share their doublings (Straus), and each uses its scalar's non-adjacent form of width 5. Together
they need about 250 doublings and 85 additions.
"""

from __future__ import annotations

import binascii
from typing import Optional

KEY_BYTES = 32
SIGNATURE_BYTES = 64

_P = 2**255 - 19
_L = 2**252 + 27742317777372353535851937790883648493
_D = 0x52036CEE2B6FFE738CC740797779E89800700A4D4141D8AB75EB4DCA135978A3
_SQRT_OF_MINUS_1 = 0x2B8324804FC1DF0B2B4D00993DFBD7A72F431806AD2FE478C4EE1B274A0EA0B0
_BASE_X = 0x216936D3CD6E53FEC0A4E231FDD6DC5C692CC7609525A7B2C9562D608F25D51A
_BASE_Y = 0x6666666666666666666666666666666666666666666666666666666666666658
_WIDTH = 5

_Point = tuple[int, int, int, int]
"""(X, Y, Z, T): x = X/Z, y = Y/Z, x*y = T/Z."""
_Addend = tuple[int, int, int, int]
"""(Y+X, Y-X, 2Z, 2dT) of a point, the values that an addition needs."""
_BASE: _Point = (_BASE_X, _BASE_Y, 1, _BASE_X * _BASE_Y % _P)


def verify(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Returns whether the key's private half signed this message; False for malformed input."""
    if len(public_key) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    encoded_r, s = signature[:32], int.from_bytes(signature[32:], "little")
    point = _decode(public_key)
    # An S above the group's order would give a second signature of the same message (RFC 8032, section 8.4).
    if s >= _L or point is None or _is_of_small_order(point):
        return False
    # Imported here, because it costs milliseconds of an agent's start and the first assignment comes later.
    from hashlib import sha512

    k = int.from_bytes(sha512(encoded_r + public_key + message).digest(), "little") % _L
    x, y, z, t = point
    return _encode(_sum_of_multiples(s, _BASE, k, (-x % _P, y, z, -t % _P))) == encoded_r


def decoded(text: object) -> bytes:
    """Returns the bytes of a key or a signature in base64; empty if the text can't be decoded."""
    try:
        return binascii.a2b_base64(text) if isinstance(text, str) else b""
    except ValueError:
        return b""


def is_key(public_key: bytes) -> bool:
    """Returns whether these bytes encode a point that can be a public key."""
    point = _decode(public_key) if len(public_key) == KEY_BYTES else None
    return point is not None and not _is_of_small_order(point)


def _decode(encoded: bytes) -> Optional[_Point]:
    """Decode a point (RFC 8032, section 5.1.3); None if no point has this encoding."""
    number = int.from_bytes(encoded, "little")
    sign, y = number >> 255, number & (2**255 - 1)
    if y >= _P:
        return None
    # x^2 = (y^2 - 1) / (d y^2 + 1) = u/v; its root is u v^3 (u v^7)^((p-5)/8), or that times the root of -1.
    u, v = (y * y - 1) % _P, (_D * y * y + 1) % _P
    x = u * v**3 * pow(u * v**7, (_P - 5) // 8, _P) % _P
    if v * x * x % _P != u:
        x = x * _SQRT_OF_MINUS_1 % _P
        if v * x * x % _P != u:
            return None
    if x == 0 and sign:
        return None
    if x & 1 != sign:
        x = _P - x
    return x, y, 1, x * y % _P


def _encode(point: _Point) -> bytes:
    x, y, z, _ = point
    inverse = pow(z, _P - 2, _P)
    x, y = x * inverse % _P, y * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _is_of_small_order(point: _Point) -> bool:
    """Returns whether eight times the point is the neutral element. As a key, such a point accepts forgeries."""
    for _ in range(3):
        point = _double(point)
    x, y, z, _ = point
    return x == 0 and y == z


def _double(point: _Point) -> _Point:
    x, y, z, _ = point
    a, b = x * x, y * y
    h = a + b
    e = h - (x + y) ** 2
    g = a - b
    f = (2 * z * z + g) % _P
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _add(point: _Point, addend: _Addend) -> _Point:
    x, y, z, t = point
    plus, minus, two_z, two_dt = addend
    a, b = (y - x) * minus, (y + x) * plus
    c, d = t * two_dt, z * two_z
    e, f, g, h = (b - a) % _P, (d - c) % _P, (d + c) % _P, (b + a) % _P
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _addend(point: _Point) -> _Addend:
    x, y, z, t = point
    return (y + x) % _P, (y - x) % _P, 2 * z % _P, 2 * _D * t % _P


def _odd_multiples(point: _Point) -> list[_Addend]:
    """Returns 1, 3, 5, ... times the point, one for each odd digit."""
    twice = _addend(_double(point))
    found = [_addend(point)]
    for _ in range(2 ** (_WIDTH - 2) - 1):
        point = _add(point, twice)
        found.append(_addend(point))
    return found


def _digits(scalar: int) -> list[int]:
    """Returns the scalar's non-adjacent form, lowest digit first: zeros, and odd digits _WIDTH or more places apart."""
    found = []
    while scalar:
        digit = 0
        if scalar & 1:
            digit = scalar & (2**_WIDTH - 1)
            if digit >= 2 ** (_WIDTH - 1):
                digit -= 2**_WIDTH
            scalar -= digit
        found.append(digit)
        scalar >>= 1
    return found


def _sum_of_multiples(one: int, first: _Point, other: int, second: _Point) -> _Point:
    """Returns one * first + other * second."""
    columns = [(_digits(one), _odd_multiples(first)), (_digits(other), _odd_multiples(second))]
    total: _Point = (0, 1, 1, 0)
    for place in range(max(len(digits) for digits, _ in columns) - 1, -1, -1):
        total = _double(total)
        for digits, multiples in columns:
            digit = digits[place] if place < len(digits) else 0
            if digit > 0:
                total = _add(total, multiples[digit >> 1])
            elif digit < 0:
                plus, minus, two_z, two_dt = multiples[-digit >> 1]
                total = _add(total, (minus, plus, two_z, -two_dt))
    return total

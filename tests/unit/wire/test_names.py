"""At a port, some addresses count as the same client."""

from __future__ import annotations

import pytest

from trainmaster_operator.wire.names import group_of


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("fd00::1", "fd00::ffff:1", True),
        ("fd00::1", "fd00:0:0:1::1", False),
        ("fe80::1%eth0", "fe80::2", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
    ],
)
def test_a_whole_network_of_one_machine_counts_as_one_address(one: str, other: str, same: bool) -> None:
    assert (group_of(one) == group_of(other)) is same

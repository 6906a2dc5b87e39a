"""Clusters on one machine claim blocks of addresses, each held by a socket."""

from __future__ import annotations

from trainmaster_local.network import AddressPool


def test_two_clusters_share_no_address() -> None:
    one, two = AddressPool(77), AddressPool(77)
    try:
        assert one.block != two.block
        taken = [one.take() for _ in range(600)]
        assert len(set(taken)) == 600 and one.node(0) not in taken
        assert all(0 < int(part) < 255 for address in taken for part in address.split(".")[2:])
    finally:
        one.close()
        two.close()

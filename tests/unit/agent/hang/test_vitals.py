"""Whether a rank's processes do anything is found from the kernel's counters."""

from __future__ import annotations

from trainmaster_operator.agent.hang.vitals import DISK_SECONDS, REMEMBERED_SECONDS, Use, Vitals


def test_use_is_a_share_of_the_time_since_the_last_look() -> None:
    vitals = Vitals()
    vitals._add(0, Use(100.0, 50.0, 0), waits_for_disk=False)
    assert not vitals.is_active(0, 100.0), "one look shows no use"
    vitals._add(0, Use(101.0, 50.04, 60_000), waits_for_disk=False)
    assert not vitals.is_active(0, 101.0)
    vitals._add(0, Use(102.0, 50.10, 60_000), waits_for_disk=False)
    assert vitals.is_active(0, 102.0) and vitals.is_active(0, 102.0 + REMEMBERED_SECONDS)
    assert not vitals.is_active(0, 102.1 + REMEMBERED_SECONDS)
    vitals._add(0, Use(103.0, 3.0, 0), waits_for_disk=False)
    assert not vitals.is_active(0, 106.0), "a child that computed has ended"


def test_a_slow_disk_counts_for_a_minute() -> None:
    vitals = Vitals()
    active = []
    for second in range(90):
        vitals._add(0, Use(100.0 + second, 0.0, 0), waits_for_disk=True)
        active.append(vitals.is_active(0, 100.0 + second))
    assert all(active[: int(DISK_SECONDS)]) and not any(active[int(DISK_SECONDS + REMEMBERED_SECONDS) + 1 :])

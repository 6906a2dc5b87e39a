"""Simulated hours of training lead to no false alarm, and simulated hangs are seen (`python -m bench hangs`: days)."""

from __future__ import annotations

import random
from typing import get_args

import pytest

from .simulated import HANGS, Phase, Script, Simulation, a_day, see, steps

SCRIPTS = get_args(Script)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize(("step", "hours"), [(0.02, 0.3), (0.5, 1.5), (10.0, 12)])
def test_a_healthy_job_leads_to_no_notice_and_no_restart(script: Script, step: float, hours: float) -> None:
    job = Simulation(script)
    job.run(a_day(step, hours, random.Random(f"{script} {step}")))
    assert job.now >= hours * 3_600
    assert (job.notices, job.hung) == ([], [])


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("kind", HANGS)
def test_a_hang_is_seen_in_seconds_and_named(script: Script, kind: str) -> None:
    seen = see(kind, 0.5, script, random.Random(kind))
    assert seen.is_right
    # A script that prints every ten steps is silent for 5 s anyway, and may have been when the rank hung.
    least, most, restart, latest = (20, 45, 150, 270) if script == "lines" else (5, 8, 60, 64)
    assert least <= seen.seconds <= most and restart <= seen.restart <= latest


def test_a_loop_that_computes_without_end_is_seen_when_a_hang_used_to_be() -> None:
    job = Simulation("heartbeat")
    job.run(steps(0.5, 200, random.Random(1)))
    begun = job.now
    job.run([Phase(float("inf"), worker=1)], 2_000.0)
    assert [line.rank for _, line in job.notices] == [1] and [rank for _, rank in job.hung] == [1]
    assert 600 < job.notices[0][0] - begun < 1_000 and 600 < job.hung[0][0] - begun < 1_000

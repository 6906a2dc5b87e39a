"""The kernel's count of kills for memory."""

from __future__ import annotations

from pathlib import Path

from trainmaster.agent.process import cgroup


def test_both_versions_of_cgroups_count_their_kills(tmp_path: Path) -> None:
    assert cgroup.oom_kill_count(str(tmp_path)) == 0
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    assert cgroup.oom_kill_count(str(tmp_path)) == 4
    (tmp_path / "memory.events").write_text("oom 1\noom_kill 2\noom_group_kill 0\n")
    assert cgroup.oom_kill_count(str(tmp_path)) == 2

"""The agent reads how many processes the kernel has killed for memory."""

from __future__ import annotations

from pathlib import Path

from trainmaster_operator.agent.process import kernel


def test_both_versions_of_cgroups_count_their_kills(tmp_path: Path) -> None:
    assert kernel.oom_kill_count(str(tmp_path)) == 0
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    assert kernel.oom_kill_count(str(tmp_path)) == 4
    (tmp_path / "memory.events").write_text("oom 1\noom_kill 2\noom_group_kill 0\n")
    assert kernel.oom_kill_count(str(tmp_path)) == 2


def test_free_memory_counts_what_can_be_dropped(tmp_path: Path) -> None:
    assert kernel.free_memory(str(tmp_path)) is None
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 200\nactive_file 0\n")
    assert kernel.free_memory(str(tmp_path)) is None, "no limit"
    (tmp_path / "memory.max").write_text("1000\n")
    assert kernel.free_memory(str(tmp_path)) == 500


def test_free_memory_of_the_first_version_of_cgroups(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (folder / "memory.usage_in_bytes").write_text("700\n")
    assert kernel.free_memory(str(tmp_path)) is None, "no limit"
    (folder / "memory.limit_in_bytes").write_text("1000\n")
    assert kernel.free_memory(str(tmp_path)) == 300

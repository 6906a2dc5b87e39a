"""Names are looked up in a hosts file first."""

from __future__ import annotations

from pathlib import Path

from trainmaster_operator.agent.network.joining import lookup_hosts


def test_the_hosts_file_is_read_like_etc_hosts(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# comment\n127.1.2.3 a.svc alias # more\nnonsense b.svc\n::1 six.svc\n\n")
    assert lookup_hosts(str(path), "alias") == "127.1.2.3"
    assert lookup_hosts(str(path), "six.svc") == "::1"
    assert lookup_hosts(str(path), "b.svc") == ""
    assert lookup_hosts(str(tmp_path / "none"), "a.svc") == ""

"""`kubectl dtj open` opens the page in the browser by a file that only its user can read, and ends with Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.processes.controller.fake_http import kubeconfig
from trainmaster.cli import main
from trainmaster.cli.dashboard import forwarding, has_browser

# Stands in for a browser: records the mode and the content of the file that it gets.
BROWSER = """#!/bin/sh
path="${1#file://}"
stat -c %a "$path" > "$SEEN.part"
cat "$path" >> "$SEEN.part"
mv "$SEEN.part" "$SEEN"
"""


def test_the_browser_gets_a_file_and_the_command_line_has_no_code(tmp_path: Path) -> None:
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(BROWSER)
    browser.chmod(0o755)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "BROWSER": f"{browser} %s", "SEEN": str(seen), "TMPDIR": str(temporary)}
    environment.pop("SSH_CONNECTION", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "trainmaster.cli.dtj", "open", "bert", "--kubeconfig", kubeconfig(tmp_path, "http://x")],
        env={**environment, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 30
        while not seen.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        mode, _, page = seen.read_text().partition("\n")
        assert mode == "600"
        assert re.search(r"url=http://127\.0\.0\.1:\d+/jobs/default/bert#launch=[\w-]{40,}\"", page)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=20)
        assert process.returncode == 0 and "launch=" not in output
        assert not list(temporary.iterdir()), "the file is gone"
    finally:
        process.kill()


def test_a_port_that_is_taken_is_a_sentence(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = kubeconfig(tmp_path, "http://x")
        found = CliRunner().invoke(main.app, ["open", "--no-browser", "--port", str(port), "--kubeconfig", path])
    assert found.exit_code == 1
    assert f"error: 127.0.0.1:{port} can't be listened on: Address already in use; give --port" in found.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--address", "0.0.0.0"), "the page is for this machine only"),
        (("--tls-cert", "FILE", "--tls-key", "FILE"), "for this machine only, without TLS"),
        (("--mode", "cluster", "--tls-cert", "FILE"), "--tls-cert and --tls-key together"),
        (("--mode", "cluster", "--as", "ann"), "each viewer brings a token"),
        (("--mode", "cluster", "--tls-cert", "FILE", "--tls-key", "FILE"), "are no certificate with its key in PEM"),
    ],
)
def test_options_that_dont_belong_together_are_refused(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    path = kubeconfig(tmp_path, "http://x")
    given = [path if argument == "FILE" else argument for argument in arguments]
    found = CliRunner().invoke(main.app, ["dashboard", *given, "--kubeconfig", path])
    assert found.exit_code in (1, 2) and sentence in " ".join(found.output.split())


def test_where_no_browser_can_open_none_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    assert has_browser({"DISPLAY": ":0"}) and has_browser({"WAYLAND_DISPLAY": "w"}) and has_browser({"BROWSER": "x"})
    assert not has_browser({}) and not has_browser({"DISPLAY": ":0", "SSH_CONNECTION": "a 1 b 22"})
    here = {"SSH_CONNECTION": "10.0.0.1 5 10.0.0.2 22", "USER": "ann"}
    assert forwarding("http://127.0.0.1:8080", here) == "ssh -N -L 8080:127.0.0.1:8080 ann@10.0.0.2"

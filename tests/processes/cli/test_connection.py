"""The connection's options reach the API server: its address, the user, the impersonated user and the timeout."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tests.unit.client.fakes import job

DTJ = Path(sys.executable).with_name("kubectl-dtj")


@dataclass
class ApiServer:
    """Serves one job as an API server, and records requests."""

    url: str
    kubeconfig: Path
    asked: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    seconds: float = 0.0

    def dtj(self, *words: str) -> tuple[int, str]:
        done = subprocess.run(
            [DTJ, "--kubeconfig", self.kubeconfig, *words], capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def api_server(tmp_path: Path) -> Iterator[ApiServer]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append((self.path, self.headers["Authorization"], self.headers["Impersonate-User"]))
            time.sleep(found.seconds)
            # A client without time to wait for the answer has closed the connection.
            with suppress(OSError):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(job()).encode())

        def finish(self) -> None:
            with suppress(OSError):
                super().finish()

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        url, path = f"http://127.0.0.1:{server.server_port}", tmp_path / "kubeconfig"
        found = ApiServer(url, path)
        document = {
            "current-context": "a",
            "contexts": [{"name": "a", "context": {"cluster": "elsewhere", "user": "ann", "namespace": "team"}}],
            "clusters": [
                {"name": name, "cluster": {"server": address}}
                for name, address in (("elsewhere", "http://127.0.0.1:9"), ("here", url))
            ],
            "users": [{"name": name, "user": {"token": name}} for name in ("ann", "bob")],
        }
        path.write_text(yaml.safe_dump(document))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield found
        finally:
            server.shutdown()


def test_cluster_user_and_on_whose_behalf_are_as_the_options_say(api_server: ApiServer) -> None:
    path = "/apis/trainmaster.dev/v1alpha1/namespaces/team/distributedtrainingjobs/reviews"
    named = (0, "distributedtrainingjob.trainmaster.dev/reviews\n")
    assert api_server.dtj("--cluster", "here", "status", "reviews", "-o", "name") == named
    assert api_server.dtj("status", "reviews", "-o", "name", "--cluster=here", "--user=bob", "--as", "carol") == named
    assert api_server.asked == [(path, "Bearer ann", None), (path, "Bearer bob", "carol")]


def test_an_answer_takes_no_longer_than_the_option_says(api_server: ApiServer) -> None:
    api_server.seconds = 5.0
    code, said = api_server.dtj("--cluster", "here", "--request-timeout", "300ms", "status", "reviews")
    assert code == 1 and "doesn't answer: nothing came for 0.3 s; " in said, said


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--cluster", "x"), 1, "--cluster: 'x' is not among its clusters: 'elsewhere', 'here'."),
        (("--user", "x"), 1, "--user: 'x' is not among its users: 'ann', 'bob'."),
        (("--as", "a\nb"), 2, "Invalid value for --as: holds characters that no header can have; give a user's name"),
        (("--request-timeout", "soon"), 2, "Invalid value for --request-timeout: 'soon' is no duration; use seconds"),
        (("--token", "x"), 2, "No such option: --token"),
    ],
)
def test_a_value_that_cant_be_is_a_sentence_and_nobody_is_asked(
    api_server: ApiServer, words: tuple[str, ...], code: int, sentence: str
) -> None:
    said = api_server.dtj("status", "reviews", *words)
    assert said[0] == code and sentence in said[1].splitlines()[0]
    assert api_server.asked == []

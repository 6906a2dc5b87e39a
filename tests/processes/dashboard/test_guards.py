"""Only the page's own viewer gets anything, and every answer has the headers that isolate a page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.processes.dashboard.fake_api import VIEW, FakeApi, job, serving_api
from tests.processes.dashboard.page_client import PageClient, page_client
from trainmaster.client.server import Fixed, Server
from trainmaster.dashboard import guards, tenants
from trainmaster.dashboard.app import Dashboard, DashboardSettings, Mode, serving
from trainmaster.dashboard.guards import HEADERS

TRICKS = ("../secret", "%2e%2e/secret", "..%2fsecret", "/etc/passwd", "app.js/../../secret", "..\\secret", "app.js%00")


@asynccontextmanager
async def served(mode: Mode, folder: Path) -> AsyncIterator[tuple[PageClient, Dashboard]]:
    (folder / "page").mkdir()
    (folder / "page" / "index.html").write_text("<!doctype html>" + "x" * 2_000)
    (folder / "page" / "app.js").write_text("1")
    (folder / "secret").write_text("none of the page's")
    api = FakeApi({"alice": VIEW, "mine": VIEW})
    api.put(job("bert"))
    async with serving_api(api):
        mine = Fixed("Bearer mine" if mode == "laptop" else None)
        server = Server(api.url, None, None, None, mine, "default")
        dashboard = Dashboard(DashboardSettings(mode, server, page=folder / "page"))
        async with serving(dashboard, "127.0.0.1", 0) as (_, port), page_client(f"http://127.0.0.1:{port}") as client:
            yield client, dashboard


async def test_a_launch_code_gives_the_key_once(tmp_path: Path) -> None:
    async with served("laptop", tmp_path) as (client, dashboard):
        assert dashboard.launch is not None
        code = dashboard.launch.new_code()
        assert (await client.get("/api/viewer"))[0] == 401
        assert (await client.get("/api/viewer", "alice"))[0] == 401, "no token is a key"
        status, answer = await client.post("/api/launch", body={"code": code})
        assert status == 200
        assert (await client.get("/api/viewer", answer["key"]))[1]["user"] == "u-mine"
        for used in (code, code[:-1], "", None, 1, "\u00e9"):
            assert (await client.post("/api/launch", body={"code": used}))[0] == 403
        late = dashboard.launch.new_code()
        dashboard.launch._codes[late] -= guards.CODE_SECONDS + 1
        assert (await client.post("/api/launch", body={"code": late}))[0] == 403


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:1", "", "[", "127.0.0.1@evil.example"])
async def test_a_laptop_answers_no_other_name(host: str, tmp_path: Path) -> None:
    async with served("laptop", tmp_path) as (client, _):
        for path in ("/", "/api/viewer", "/healthz"):
            status, _, _ = await client.ask("GET", path, headers={"Host": host})
            assert status in (400, 403)
        for good in ("localhost:9", "[::1]:9", "127.0.0.1"):
            assert (await client.ask("GET", "/", headers={"Host": good}))[0] == 200


async def test_pages_of_others_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with served("cluster", tmp_path) as (client, _):
        own = {"Host": "jobs.example", "Origin": "https://jobs.example"}
        assert (await client.ask("GET", "/api/viewer", "alice", headers=own))[0] == 200
        for origin in ("https://evil.example", "null", "https://jobs.example.evil.example", "", "http://[x"):
            status, _, _ = await client.ask("GET", "/api/viewer", "alice", headers={**own, "Origin": origin})
            assert status == 403, origin
        # Other tests' threads write their own lines.
        ours = [record for record in caplog.records if record.name.startswith(("trainmaster", "aiohttp"))]
        assert not ours, "nobody fills the log"
        status, _, _ = await client.ask("GET", "/api/viewer", "alice", headers={"Sec-Fetch-Site": "cross-site"})
        assert status == 403
        form = {"Content-Type": "text/plain"}
        status, _, _ = await client.ask("POST", "/api/jobs/team/bert/suspend", "alice", headers=form, data="{}")
        assert status == 415
        status, _, _ = await client.ask("POST", "/api/jobs/team/bert/suspend", "alice", json={"x": "y" * 70_000})
        assert status == 413
        assert (await client.post("/api/launch", body={"code": "x"}))[0] == 403, "there is none in a cluster"


async def test_every_answer_has_the_headers_and_errors_are_sentences(tmp_path: Path) -> None:
    async with served("cluster", tmp_path) as (client, _):
        for method, path, token, wanted in (
            ("GET", "/", None, 200),
            ("GET", "/page/app.js", None, 200),
            ("GET", "/api/viewer", "alice", 200),
            ("GET", "/api/viewer", None, 401),
            ("GET", "/api/viewer", "nobody", 401),
            ("GET", "/nowhere", None, 404),
            ("DELETE", "/api/jobs", "alice", 405),
            ("GET", "/api/jobs/team/no%2Fname", "alice", 400),
            ("GET", "/api/jobs/Team/x", "alice", 400),
        ):
            status, body, response = await client.ask(method, path, token)
            assert status == wanted, (path, body)
            assert {name: response.headers.get(name) for name in HEADERS} == HEADERS
            assert response.headers["Cache-Control"] == ("no-cache" if wanted == 200 and token is None else "no-store")
            if wanted != 200:
                assert body.pop("mode", None) == ("cluster" if wanted == 401 else None)
                assert set(body) == {"sentence"} and body["sentence"]


@pytest.mark.parametrize("path", TRICKS)
async def test_only_the_pages_files_are_served(path: str, tmp_path: Path) -> None:
    async with served("cluster", tmp_path) as (client, _):
        # A client library would normalise the path.
        host, port = client.base.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET /page/{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        assert answer.split()[1] in (b"400", b"404") and b"none of the page's" not in answer


async def test_a_browser_that_has_a_file_gets_it_no_second_time(tmp_path: Path) -> None:
    async with served("cluster", tmp_path) as (client, _):
        status, text, first = await client.ask("GET", "/jobs/team/bert")
        assert status == 200 and text.startswith("<!doctype html>") and first.headers["Content-Encoding"] == "gzip"
        known = {"If-None-Match": first.headers["ETag"]}
        status, text, _ = await client.ask("GET", "/", headers=known)
        assert (status, text) == (304, "")


async def test_tokens_are_in_no_log_and_no_sentence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with served("cluster", tmp_path) as (client, dashboard):
        for token in ("a-secret-token", "a-secret-token with blanks", "a-secret-token" + "x" * 15_000):
            status, body, _ = await client.ask("GET", "/api/viewer", token)
            assert status in (400, 401) and "a-secret" not in str(body)
        await client.get("/api/viewer", "alice")
        viewer = await dashboard._viewers.of_token("alice")
        assert "alice" not in f"{viewer!r} {viewer.transport.server!r}"
    assert "a-secret" not in caplog.text and "alice" not in caplog.text


@pytest.mark.parametrize("end", [b"\x01", b"\n!", b"x" * 20_000])
async def test_a_header_that_is_none_is_in_no_log(end: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with served("cluster", tmp_path) as (client, _):
        host, port = client.base.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /api/viewer HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a-secret" + end + b"\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"400"
        writer.close()
    assert "a-secret" not in caplog.text


async def test_more_requests_than_a_page_makes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "MOST_STREAMS", 1)
    async with served("cluster", tmp_path) as (client, dashboard):
        async with client.live("/api/jobs", "alice") as live:
            await live.next("jobs")
            status, answer = await client.get("/api/jobs", "alice")
            assert status == 429 and "live views" in answer["sentence"]
        (await dashboard._viewers.of_token("alice")).tenant.requests.room = -100.0
        assert (await client.get("/api/viewer", "alice"))[0] == 429
        assert (await client.get("/api/viewer", "mine"))[0] == 200, "others aren't held up"

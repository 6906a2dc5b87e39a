"""The API works over HTTP: permissions, forms of requests, faults on purpose, and their messages."""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from local.tests.unit.apiserver.widgets import WIDGETS, definition, new_api, widget
from trainmaster_local.apiserver.api import Api
from trainmaster_local.apiserver.http.auth import Attributes, Decision
from trainmaster_local.apiserver.http.faults import Fault, Faults
from trainmaster_local.apiserver.http.server import ApiServer
from trainmaster_local.apiserver.resources import User

PATH = "/apis/example.dev/v1/namespaces/default/widgets"
MERGE = "application/merge-patch+json"


class Readers:
    """Authorizes everybody to get objects."""

    def authorize(self, attributes: Attributes) -> Decision:
        return Decision(attributes.verb == "get")


class Tokens:
    """Authenticates an administrator and a reader."""

    def authenticate(self, token: str) -> User | None:
        return {"admin": User("root", ("system:masters",)), "reader": User("rita")}.get(token)


class Client:
    def __init__(self, api: Api, url: str, faults: Faults, session: aiohttp.ClientSession) -> None:
        self.api = api
        self.url = url
        self.faults = faults
        self.session = session

    async def ask(
        self, method: str, path: str, body: Any = None, *, token: str = "admin", **headers: str
    ) -> tuple[int, Any, Any]:
        """Returns status, body and headers. A string is sent unchanged."""
        sent = {"Content-Type": "application/json"} if body is not None else {}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            sent["Authorization"] = f"Bearer {token}"
        data = body if body is None or isinstance(body, str) else json.dumps(body)
        async with self.session.request(method, self.url + path, data=data, headers=sent) as answer:
            text = await answer.text()
            parsed = json.loads(text) if "json" in answer.content_type and text and "\n" not in text else text
            return answer.status, parsed, answer.headers


@asynccontextmanager
async def serving(api: Api | None = None) -> AsyncIterator[Client]:
    api = api or await new_api()
    faults = Faults()
    server = ApiServer(api, authenticator=Tokens(), authorizer=Readers(), faults=faults)
    url = await server.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield Client(api, url, faults, session)
    finally:
        await server.stop()


async def test_who_is_not_known_or_may_not_is_told_so() -> None:
    async with serving() as client:
        status, answer, _ = await client.ask("GET", PATH, token="stolen")
        assert (status, answer["message"]) == (401, "Unauthorized")
        status, answer, _ = await client.ask("GET", PATH, token="reader")
        assert status == 403
        assert answer["message"] == (
            'widgets.example.dev is forbidden: User "rita" cannot list resource "widgets" in API group "example.dev" '
            'in the namespace "default"'
        )
        assert answer["details"] == {"group": "example.dev", "kind": "widgets"}
        status, answer, _ = await client.ask("POST", "/openapi/v3", {}, token="")
        assert answer["message"] == 'forbidden: User "system:anonymous" cannot post path "/openapi/v3"'
        assert (await client.ask("GET", "/readyz", token=""))[:2] == (200, "ok")


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status", "reason"),
    [
        ("GET", "/apis/example.dev/v1/gadgets", {}, None, 404, "NotFound"),
        ("POST", f"{PATH}/one/status", {}, {}, 405, "MethodNotAllowed"),
        ("GET", f"{PATH}/one/nothing", {}, None, 404, "NotFound"),
        ("POST", PATH, {"Content_Type": "application/vnd.example"}, "x", 415, "UnsupportedMediaType"),
        ("GET", PATH, {"Accept": "text/html"}, None, 406, "NotAcceptable"),
        ("POST", f"{PATH}?dryRun=Some", {}, {}, 422, "Invalid"),
        ("POST", f"{PATH}?fieldValidation=Hard", {}, {}, 422, "Invalid"),
        ("PATCH", f"{PATH}/one?force=true", {"Content_Type": MERGE}, {}, 422, "Invalid"),
        ("PUT", f"{PATH}/one", {}, {"metadata": {"name": "two", "resourceVersion": "1"}}, 400, "BadRequest"),
        ("GET", f"{PATH}?limit=many", {}, None, 400, "BadRequest"),
        ("GET", f"{PATH}?watch=1&sendInitialEvents=true", {}, None, 422, "Invalid"),
        ("POST", "/apis/example.dev/v1/widgets", {}, {}, 400, "BadRequest"),
    ],
)
async def test_a_request_that_is_wrong_is_refused(
    method: str, path: str, headers: dict[str, str], body: Any, status: int, reason: str
) -> None:
    async with serving() as client:
        await client.api.create(WIDGETS, widget("one", size=1), "default")
        answered, answer, _ = await client.ask(method, path, body, **headers)
        assert (answered, answer["reason"], answer["kind"]) == (status, reason, "Status")


async def test_a_config_map_may_be_large_but_not_too_large() -> None:
    """kube-apiserver's limit is 3 MiB (`MaxRequestBodyBytes`); a ConfigMap may contain 1 MiB."""
    async with serving() as client:
        path = "/api/v1/namespaces/default/configmaps"
        status, answer, _ = await client.ask("POST", path, {"metadata": {"name": "a"}, "data": {"x": "y" * 2**20}})
        assert (status, len(answer["data"]["x"])) == (201, 2**20)
        status, answer, _ = await client.ask("POST", path, {"metadata": {"name": "b"}, "data": {"x": "y" * 2**22}})
        assert (status, answer["reason"]) == (413, "RequestEntityTooLarge")


async def test_duplicate_and_unknown_fields_are_named() -> None:
    async with serving() as client:
        body = (
            '{"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": "a"}, '
            '"spec": {"size": 1, "size": 2, "parts": [{"name": "x", "nam": "y"}]}}'
        )
        status, answer, _ = await client.ask("POST", f"{PATH}?fieldValidation=Strict", body)
        assert status == 400
        assert answer["message"].endswith(
            'strict decoding error: duplicate field "spec.size", unknown field "spec.parts[0].nam"'
        )
        status, answer, headers = await client.ask("POST", PATH, body)
        assert (status, answer["spec"]["size"]) == (201, 2)
        assert headers.getall("Warning") == [
            '299 - "duplicate field \\"spec.size\\""',
            '299 - "unknown field \\"spec.parts[0].nam\\""',
        ]


async def test_yaml_is_for_what_is_applied() -> None:
    async with serving() as client:
        text = "apiVersion: example.dev/v1\nkind: Widget\nmetadata: {name: a}\nspec: {size: 1}\n"
        assert (await client.ask("POST", PATH, text, Content_Type="application/yaml"))[0] == 415
        apply = {"Content_Type": "application/apply-patch+yaml"}
        assert (await client.ask("PATCH", f"{PATH}/a?fieldManager=me", text, **apply))[0] == 201
        assert (await client.ask("GET", PATH, Accept="application/yaml"))[0] == 406


async def test_the_user_agent_names_the_manager() -> None:
    async with serving() as client:
        _, answer, _ = await client.ask("POST", PATH, widget("a", size=1), User_Agent="kubectl/v1.37 (linux)")
        assert [entry["manager"] for entry in answer["metadata"]["managedFields"]] == ["kubectl"]
        patched = await client.ask("PATCH", f"{PATH}/a?fieldManager=me", {"spec": {"size": 2}}, Content_Type=MERGE)
        assert [entry["manager"] for entry in patched[1]["metadata"]["managedFields"]] == ["kubectl", "me"]


async def test_faults_answer_in_place_of_the_server() -> None:
    async with serving() as client:
        client.faults.add(Fault(verb="list", resource=WIDGETS, code=429, retry_after=2, count=1))
        status, answer, headers = await client.ask("GET", PATH)
        assert (status, answer["reason"], headers["Retry-After"]) == (429, "TooManyRequests", "2")
        assert answer["details"]["retryAfterSeconds"] == 2
        assert (await client.ask("GET", PATH))[0] == 200
        client.faults.add(Fault(verb="create", code=500, after=True, count=1))
        assert (await client.ask("POST", PATH, widget("a", size=1)))[0] == 500
        assert client.api.peek(WIDGETS, "a", "default") is not None
        client.faults.add(Fault(verb="get", name="a", latency=0.2, count=1))
        began = time.monotonic()
        assert (await client.ask("GET", f"{PATH}/a"))[0] == 200
        assert time.monotonic() - began >= 0.2


async def test_faults_end_watches_and_expire_them() -> None:
    async with serving() as client:
        client.faults.add(Fault(verb="watch", drop=0.1, count=1))
        began = time.monotonic()
        assert (await client.ask("GET", f"{PATH}?watch=1"))[0] == 200
        assert time.monotonic() - began < 5
        client.faults.add(Fault(verb="watch", code=410, count=1))
        status, answer, _ = await client.ask("GET", f"{PATH}?watch=1&resourceVersion=1")
        event = json.loads(answer)
        assert (status, event["type"], event["object"]["reason"]) == (200, "ERROR", "Expired")


async def test_a_stopped_server_ends_its_watches() -> None:
    api = await new_api()
    async with aiohttp.ClientSession() as session:
        server = ApiServer(api)
        url = await server.start()
        async with session.get(f"{url}{PATH}?watch=1") as answer:
            began = time.monotonic()
            await server.stop()
            assert await answer.content.read() == b""
            assert time.monotonic() - began < 20


JUNK: list[Any] = [None, 1, "x", [], {}, [1], {"a": None}, True, 1.5, [[]], [None], {"": {}}]


def damaged(value: Any, random_: random.Random) -> Any:
    """Returns the value with some parts replaced by values that don't belong there."""
    if random_.random() < 0.12:
        return copy.deepcopy(random_.choice(JUNK))
    if isinstance(value, dict):
        result = {key: damaged(child, random_) for key, child in value.items()}
        if random_.random() < 0.1:
            result[random_.choice(["zz", "metadata", "spec", "status", "name", ""])] = random_.choice(JUNK)
        return result
    return [damaged(item, random_) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", range(4))
async def test_no_body_makes_the_server_fail(seed: int) -> None:
    """The answer to any request is a Status that blames the request, or the object."""
    random_ = random.Random(seed)
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    whole = {**widget("p", size=1, parts=[{"name": "a"}], tags=["x"], free={"a": 1}), "status": {"phase": "x"}}
    apply = "application/apply-patch+yaml"
    kinds = [MERGE, "application/json-patch+json", apply]
    async with serving() as client:
        for index in range(60):
            for path, base in ((PATH, whole), (definitions, definition())):
                body = damaged(base, random_)
                if isinstance(body, dict) and isinstance(body.get("metadata"), dict):
                    body["metadata"]["name"] = f"p{index}"
                answers = [await client.ask("POST", path, body)]
                for kind in kinds:
                    one = f"{path}/p{index}?fieldManager=me"
                    answers.append(await client.ask("PATCH", one, body, Content_Type=kind))
                answers.append(await client.ask("DELETE", f"{path}/p{index}", body))
                # An apply that doesn't fit its schema is answered with 500 as well, but without a reason.
                failed = [answer for status, answer, _ in answers if status >= 500]
                assert [answer for answer in failed if "reason" in answer] == [], body

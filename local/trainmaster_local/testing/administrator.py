"""Sends a cluster administrator's requests, for tests that need the API server's data and not kubectl's output.

A kubectl process costs a hundred times its request, and a waiting test sends many requests.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

SECONDS = 30.0


class _Resource(NamedTuple):
    """The place of a resource's objects is the path of its group and version, and its plural."""

    version: str
    plural: str
    namespaced: bool


class Administrator:
    """The administrator sends requests, and knows resources by kubectl's names.

    Examples are `pods`, `pod`, `po` and `deployments.apps`.
    """

    def __init__(self, server: str, headers: Mapping[str, str], tls: ssl.SSLContext) -> None:
        """Authenticates requests by `headers`, or by the context's certificate."""
        self._headers, self._tls = headers, tls
        self._address = urlsplit(server)
        self._resources: dict[str, _Resource] = {}
        # A connection serves one request at a time.
        self._of_thread = threading.local()

    def request(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> tuple[int, Any]:
        """Returns the answer's status and its decoded body (text if it isn't JSON).

        Raises OSError or HTTPException if there is no answer.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, **({} if data is None else {"Content-Type": content_type})}
        connection = self._connection()
        # The server may have closed a kept connection, and only reading requests are safe to repeat.
        if method == "GET":
            try:
                return _answer(connection, method, path, data, headers)
            except (OSError, http.client.HTTPException):
                pass
        connection.close()
        return _answer(connection, method, path, data, headers)

    def path(self, resource: str, namespace: str) -> str | None:
        """Returns the path of a resource's objects; None if no API has that name."""
        if resource not in self._resources:
            self._discover()
        found = self._resources.get(resource)
        if found is None:
            return None
        scope = f"/namespaces/{namespace}" if found.namespaced else ""
        return f"{found.version}{scope}/{found.plural}"

    def path_of(self, manifest: Mapping[str, Any], namespace: str) -> str | None:
        """Returns the path of a manifest's object, in the manifest's version; None if no API has its kind."""
        version, metadata = manifest["apiVersion"], manifest["metadata"]
        kind, group = manifest["kind"].lower(), version.rpartition("/")[0]
        resource = f"{kind}.{group}" if group else kind
        if self.path(resource, namespace) is None:
            return None
        found = self._resources[resource]
        scope = f"/namespaces/{metadata.get('namespace', namespace)}" if found.namespaced else ""
        return f"/{'apis' if group else 'api'}/{version}{scope}/{found.plural}/{quote(metadata['name'])}"

    def _connection(self) -> http.client.HTTPSConnection:
        """Returns the thread's own connection, which opens with the first request."""
        kept: http.client.HTTPSConnection | None = getattr(self._of_thread, "connection", None)
        if kept is None:
            host, port = str(self._address.hostname), self._address.port
            kept = http.client.HTTPSConnection(host, port, context=self._tls, timeout=SECONDS)
            self._of_thread.connection = kept
        return kept

    def _discover(self) -> None:
        """Reads the available resources.

        Names of the core group precede all others. In a group, names of the preferred version precede those of other
        versions.
        """
        groups = self.request("GET", "/apis")[1]["groups"]
        preferred = [group["preferredVersion"] for group in groups]
        others = [version for group in groups for version in group["versions"]]
        paths = [f"/apis/{version['groupVersion']}" for version in (*preferred, *others)]
        for version in ("/api/v1", *dict.fromkeys(paths)):
            status, listed = self.request("GET", version)
            # A group may have been removed since it was listed.
            for entry in listed["resources"] if status == 200 else ():
                if "/" not in entry["name"]:
                    resource = _Resource(version, entry["name"], entry["namespaced"])
                    group = listed["groupVersion"].rpartition("/")[0]
                    names = (entry["name"], entry["kind"].lower())
                    for name in (*names, *(f"{name}.{group}" for name in names), *entry.get("shortNames", ())):
                        self._resources.setdefault(name, resource)


def _answer(
    connection: http.client.HTTPSConnection, method: str, path: str, data: bytes | None, headers: Mapping[str, str]
) -> tuple[int, Any]:
    connection.request(method, path, body=data, headers=dict(headers))
    answer = connection.getresponse()
    text = answer.read().decode()
    # A log is text, whatever its first characters.
    is_json = answer.headers.get_content_type() == "application/json"
    return answer.status, json.loads(text) if is_json else text

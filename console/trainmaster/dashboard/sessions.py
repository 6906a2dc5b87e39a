"""Keeps the viewers' sessions. A viewer is the owner of a bearer token; a session holds their transport and rights.

Sessions are found by the SHA-256 of their token, and dropped after some minutes without a request. All sessions share
their connections to the API server, which identifies viewers by their token alone. A new token has no session until the
API server has confirmed it. Only a few tokens are confirmed at once, and viewers with sessions never wait for that.
Tokens are never logged.

If there is a history, `look_up` reads deleted jobs from it with the viewer's own token.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from trainmaster.client.asynchronous import connector_to
from trainmaster.client.errors import ClientError, JobNotFound, NoCluster, NotKnown
from trainmaster.client.history import HistoryReader, find_history
from trainmaster.client.history.finding import FoundHistory, NoHistory, NoWay
from trainmaster.client.job import TrainingJob
from trainmaster.client.operator_sign import OperatorSign, Silence, clock
from trainmaster.client.permission import Access, Gate, is_allowed, party_of, put_newest
from trainmaster.client.server import Server, for_viewer
from trainmaster.client.watching import read_job
from trainmaster.dashboard.reading import HistoryTransport, ViewerTransport
from trainmaster.dashboard.streams import UNKNOWN
from trainmaster.dashboard.tenants import SharedLimits, Tenant
from trainmaster.serving import Refused
from trainmaster_operator.wire.values import mapping, text

T = TypeVar("T")
# Maximum number of sessions of one tenant, and of all tenants together.
MOST_SESSIONS, MOST_SESSIONS_IN_ALL = 100, 1_000
IDLE_SECONDS = 300.0
# Seconds before a refused token is sent to the API server again, and the maximum number of cached refused tokens.
REFUSED_SECONDS = 10.0
MOST_REFUSED = 1_000
# Maximum number of new tokens that are confirmed at once, and of all new tokens, including those that wait.
NEW_AT_ONCE, MOST_NEW = 8, 256
# Timeout of the API server's answer (seconds).
ASK_SECONDS = 10.0
WHO_AM_I = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
# Seconds between two looks for the operator while jobs are shown, and the timeout of the first look for a history.
OPERATOR_SECONDS, HISTORY_SECONDS = 10.0, 2.0
# A RecordedJobDetail, whose type client.history.answers defines.
RecordedJob = Mapping[str, Any]


class ViewerHistory(HistoryReader):
    """ViewerHistory reads a history for one viewer. It is closed with their session."""

    def __init__(self, found: FoundHistory) -> None:
        self._own = HistoryTransport(found.server, reader=found.answers)
        super().__init__(self._own, is_announced=found.is_announced, address=found.server.address)

    async def close(self) -> None:
        """Closes the connections."""
        await self._own.close()


# Returns the history for a server with the viewer's credentials; None if there is no history.
HistoryOf = Callable[[Server], ViewerHistory | None]


@dataclass(eq=False)
class Viewer:
    """Viewer is one session. `user` is the viewer's name; None before Kubernetes 1.28."""

    transport: ViewerTransport = field(repr=False)
    access: Gate = field(repr=False)
    tenant: Tenant = field(repr=False)
    user: str | None = field(repr=False)
    history: ViewerHistory | None = field(repr=False)
    # Tasks that close sessions.
    closing: set[asyncio.Task[None]] = field(repr=False)
    seen_at: float = field(default_factory=time.monotonic)
    streams: int = 0
    # Signs of life of operators, by namespace ("" for all), with the result of the last look and its time.
    signs: dict[str, tuple[OperatorSign, float, Silence | None]] = field(default_factory=dict, repr=False)
    # Since when the history hasn't answered (seconds since the epoch).
    history_silent_since: float | None = None
    is_over: bool = False

    async def has_history(self) -> bool:
        """Returns whether there is a history, even if it refuses the viewer, or doesn't answer now."""
        if self.history is None:
            return False
        try:
            async with asyncio.timeout(HISTORY_SECONDS):
                await self.history.jobs(limit=1)
        except (ClientError, TimeoutError) as error:
            return not isinstance(error, NoHistory | NoWay)
        return True

    async def recorded_jobs(self, namespace: str | None) -> Mapping[str, Any]:
        """Returns the history's jobs. Raises ClientError; the message says since when the history hasn't answered."""
        if self.history is None:
            raise JobNotFound("There is no history of jobs here (docs/history.md).")
        history = self.history
        try:
            found = await self.tenant.heavy(lambda: history.jobs(namespace))
        except NoHistory:
            raise
        except NoCluster as error:
            self.history_silent_since = since = self.history_silent_since or time.time()
            at = clock(datetime.fromtimestamp(since, UTC), datetime.now(UTC))
            raise NoCluster(f"The history hasn't answered since {at}: deleted jobs are missing. {error}") from error
        self.history_silent_since = None
        return found

    async def silence(self, namespace: str | None, written: datetime | None) -> Silence | None:
        """Returns since when no operator has been seen; None if one lives, or nobody knows.

        `written` is the newest time in the statuses of the shown jobs.
        """
        place = namespace or ""
        sign, at, found = self.signs.get(place) or (OperatorSign(self.transport), -math.inf, None)
        if time.monotonic() - at >= OPERATOR_SECONDS / 2:
            status = {"phase": "Running", "progress": {"reportedAt": written and written.isoformat()}}
            try:
                found = await sign.look([{"metadata": {"namespace": place}, "status": status}])
            except ClientError:
                found = None
            self.signs[place] = (sign, time.monotonic(), found)
        return found

    async def living(self, namespace: str, name: str, uid: str | None) -> TrainingJob:
        """Returns the existing job. Raises JobNotFound if it was deleted, even if a later job has the same name."""
        job = await read_job(self.transport, namespace, name)
        if uid not in (None, job.uid):
            raise replaced(name)
        return job

    async def look_up(self, namespace: str, name: str, uid: str | None) -> TrainingJob | RecordedJob:
        """Returns a job, or the record of a deleted one. Raises ClientError."""
        return await self.or_recorded(lambda: self.living(namespace, name, uid), namespace, name, uid)

    async def or_recorded(
        self, living: Callable[[], Awaitable[T]], namespace: str, name: str, uid: str | None
    ) -> T | RecordedJob:
        """Returns the result of `living`, or the record of a deleted job. Raises ClientError."""
        try:
            return await living()
        except JobNotFound as error:
            missing = error
        if self.history is None:
            raise missing
        try:
            return await self.history.job(namespace, name, uid=uid)
        except (JobNotFound, NoCluster):
            raise missing from None

    def end(self) -> None:
        """Ends the session. Its connections are closed after its last live answer."""
        self.is_over = True
        if not self.streams:
            task = asyncio.ensure_future(self._close())
            self.closing.add(task)
            task.add_done_callback(self.closing.discard)

    async def _close(self) -> None:
        await self.transport.close()
        if self.history is not None:
            await self.history.close()

    def count(self) -> None:
        """Counts a request. Raises Refused if there were too many."""
        self.seen_at = time.monotonic()
        self.tenant.count()

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Counts a live answer during the block. Raises Refused if there are too many."""
        with self.tenant.streaming():
            self.streams += 1
            try:
                yield
            finally:
                self.streams -= 1
                self.seen_at = time.monotonic()
                if self.is_over:
                    self.end()


class Viewers:
    """Viewers keeps all viewers' sessions."""

    def __init__(self, server: Server, history_of: HistoryOf = lambda _: None) -> None:
        """`server` is the API server without credentials, or with the kubeconfig's credentials for `myself`."""
        self._server = server
        self._history_of = history_of
        self._connector = connector_to(server)
        self._by_hash: OrderedDict[bytes, Viewer] = OrderedDict()
        self._refused: OrderedDict[bytes, float] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self._asking = asyncio.Semaphore(NEW_AT_ONCE)
        self._new = 0
        self.tenants = SharedLimits()
        self._tenant_by_name: WeakValueDictionary[str, Tenant] = WeakValueDictionary()

    async def myself(self) -> Viewer:
        """Returns a laptop's viewer, whose credentials are the kubeconfig's. Raises ClientError."""
        return self._known(b"") or await self._asked(b"", self._server)

    async def of_token(self, token: str) -> Viewer:
        """Returns the viewer with this token. Raises Refused if the API server refuses it, and NoCluster."""
        key = hashlib.sha256(token.encode()).digest()
        if (known := self._known(key)) is not None:
            return known
        if self._new >= MOST_NEW:
            raise Refused(503, "Too many new viewers come at once; try again.", {"Retry-After": "2"})
        self._new += 1
        try:
            async with self._asking:
                # Another request may have confirmed the token while this one waited.
                if (known := self._known(key)) is not None:
                    return known
                return await self._asked(key, for_viewer(self._server, token))
        finally:
            self._new -= 1

    def end(self, viewer: Viewer) -> None:
        """Ends a viewer's session, because the API server now refuses their token."""
        for key, known in list(self._by_hash.items()):
            if known is viewer and key:
                self._forget(key)
                self._refuse(key)

    def forget_idle(self) -> None:
        """Drops sessions without recent requests, and old refused tokens."""
        now = time.monotonic()
        for key, viewer in list(self._by_hash.items()):
            if not viewer.streams and now - viewer.seen_at > IDLE_SECONDS:
                self._forget(key)
        for key, until in list(self._refused.items()):
            if until < now:
                del self._refused[key]

    async def close(self) -> None:
        """Closes all connections."""
        for key in list(self._by_hash):
            self._forget(key)
        await asyncio.gather(*self._closing)
        await self._connector.close()

    def _known(self, key: bytes) -> Viewer | None:
        """Returns a token's session; None for a new token. Raises Refused for a recently refused token."""
        if self._refused.get(key, 0.0) > time.monotonic():
            raise Refused(401, UNKNOWN)
        found = self._by_hash.get(key)
        if found is not None:
            self._by_hash.move_to_end(key)
        return found

    def _refuse(self, key: bytes) -> None:
        put_newest(self._refused, key, time.monotonic() + REFUSED_SECONDS, MOST_REFUSED)

    async def _asked(self, key: bytes, server: Server) -> Viewer:
        """Returns a new session once the API server has confirmed the token."""
        transport = ViewerTransport(server, self._connector, self._tenant("a new viewer"))
        viewer = None
        try:
            async with asyncio.timeout(ASK_SECONDS):
                user = await _user(transport)
            # If the cluster can't name users, each token counts as a separate tenant.
            transport.tenant = tenant = self._tenant(key.hex() if user is None else party_of(user))
            self._make_room(tenant)
            # Another request with the same token may have added the session.
            if (known := self._known(key)) is not None:
                return known
            viewer = Viewer(transport, Gate(transport), tenant, user, self._history_of(server), self._closing)
            self._by_hash[key] = viewer
            return viewer
        except TimeoutError:
            message = f"The cluster at {server.address} didn't confirm the token within {ASK_SECONDS:g} s."
            raise NoCluster(message) from None
        except NotKnown:
            if not key:
                raise
            self._refuse(key)
            raise Refused(401, UNKNOWN) from None
        finally:
            if viewer is None:
                await transport.close()

    def _tenant(self, name: str) -> Tenant:
        return self._tenant_by_name.setdefault(name, Tenant(name, self.tenants))

    def _make_room(self, tenant: Tenant) -> None:
        """Drops the longest idle session if one tenant, or all, have too many. Raises Refused if no session is idle."""
        self.forget_idle()
        counts = Counter(viewer.tenant for viewer in self._by_hash.values())
        if counts[tenant] >= MOST_SESSIONS:
            keys = [key for key, viewer in self._by_hash.items() if viewer.tenant is tenant]
        elif len(self._by_hash) >= MOST_SESSIONS_IN_ALL:
            # Sessions of the tenant with the most sessions are dropped first.
            keys = sorted(self._by_hash, key=lambda key: -counts[self._by_hash[key].tenant])
        else:
            return
        key = next((key for key in keys if not self._by_hash[key].streams), None)
        if key is None:
            raise Refused(503, f"{len(keys)} viewers look at jobs already; try again later.", {"Retry-After": "30"})
        self._forget(key)

    def _forget(self, key: bytes) -> None:
        self._by_hash.pop(key).end()


def history_at(address: str | None) -> HistoryOf:
    """Returns access to the history at an address, or else to the history that client/history/finding.py finds."""
    # A history identifies users by their tokens, and doesn't support impersonation.
    return lambda server: None if server.acting_as is not None else ViewerHistory(find_history(address, server))


def replaced(name: str) -> JobNotFound:
    """Returns the error for a page whose job was replaced by a later job of the same name."""
    return JobNotFound(f"That job {name} was deleted, and another one has its name now.")


async def _user(transport: ViewerTransport) -> str | None:
    """Returns the name of the token's user; None if the cluster can't name them. Raises NotKnown and NoCluster."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer = await transport.request("POST", WHO_AM_I, body=review)
    except (NotKnown, NoCluster):
        raise
    except ClientError:
        # Before Kubernetes 1.28, another request confirms the token: one that every version answers.
        await is_allowed(transport, Access("list"))
        return None
    return text(mapping(mapping(answer.get("status")).get("userInfo")).get("username"), 1_000) or None

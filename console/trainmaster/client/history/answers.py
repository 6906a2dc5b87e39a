"""A history answers as an API server does, with `Status` objects; what its errors say is about a history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainmaster.client.answers import Answer, Reader, beginning, innermost
from trainmaster.client.errors import ClientError, InvalidRequest, JobNotFound, NoCluster, NotAllowed
from trainmaster.client.history import announcement
from trainmaster_operator.api.json_codec import decode
from trainmaster_operator.wire.values import mapping

NO_SUCH_PATH = "the server could not find the requested resource"
ELSEWHERE = "--history or TRAINMASTER_HISTORY names one elsewhere"


class NoWay(NotAllowed):
    """The history can't be reached by this viewer: without a token, or without the right to the API server's proxy."""


@dataclass(frozen=True)
class HistoryAnswers(Reader):
    """HistoryAnswers makes sense of what comes from a history; `proxied`: through the API server at the address."""

    proxied: bool = False

    def refusal(self, answer: Answer, path: str) -> ClientError:
        """Returns a Status as one of our errors, with its own message."""
        status, found = answer.status, self._status(answer)
        message = str(found.get("message") or f"HTTP {status}")
        if status == 401:
            return NotAllowed(
                f"{self._who} doesn't know you (401 Unauthorized): the token may have expired; log in anew, or give "
                "another one."
            )
        if path == announcement.PATH and status in (403, 404):
            return NoCluster(
                f"The cluster at {self.address} announces no history (cluster role {announcement.ROLE}: {message}): "
                f"an administrator switches it on in the chart; {ELSEWHERE}."
            )
        # An API server that has no proxy of Services, such as that of `trainmaster local`, knows no such path.
        missing = mapping(found.get("details")).get("kind") == "services" or message == NO_SUCH_PATH
        if self.proxied and status == 404 and missing:
            return NoCluster(
                f"The history that the cluster at {self.address} announces isn't there ({message}): an administrator "
                f"corrects the annotation of cluster role {announcement.ROLE}; {ELSEWHERE}."
            )
        if self.proxied and status == 403 and "services/proxy" in message:
            return NoWay(f"{message}; {ELSEWHERE}")
        if not found and status not in (429, *range(500, 600)):
            return self.no_such_server(answer)
        if status == 429 or status >= 500:
            said = message if found else beginning(answer.body)
            return NoCluster(f"{self._who} can't answer now (HTTP {status}): {said}; try again.")
        kinds: dict[int, type[ClientError]] = {403: NotAllowed, 404: JobNotFound}
        return kinds.get(status, InvalidRequest)(message)

    def unreachable(self, error: BaseException) -> NoCluster:
        """Returns what to raise where no connection came about, or none that answers."""
        return NoCluster(f"{self._who} doesn't answer: {innermost(error)}; is that its address, and is it up?")

    def broken_off(self, error: BaseException) -> NoCluster:
        """Returns what to raise where an answer began and didn't end."""
        return NoCluster(f"The answer of the history at {self.address} broke off: {innermost(error)}.")

    def untrusted(self, error: BaseException) -> NoCluster:
        """Returns what to raise where TLS failed."""
        if self.proxied or "CERTIFICATE" not in str(error):
            return super().untrusted(error)
        return NoCluster(
            f"{self._who} can't be trusted: {innermost(error)}; the system's authorities don't know its certificate: "
            "give the file of the one that does (--history-ca)."
        )

    def no_such_server(self, answer: Answer) -> NoCluster:
        """Returns what to raise where something else answers."""
        return NoCluster(f"What answers at {self.address} is no history ({self.description(answer)}); {ELSEWHERE}.")

    @property
    def _who(self) -> str:
        return f"The history {'of the cluster ' * self.proxied}at {self.address}"

    @staticmethod
    def _status(answer: Answer) -> dict[str, Any]:
        try:
            found = decode(answer.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) and found.get("kind") == "Status" else {}

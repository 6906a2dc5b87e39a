"""`Reader` turns an API server's answer, or a failed request, into decoded JSON or one of our errors."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainmaster.client.errors import (
    ClientError,
    InvalidRequest,
    JobExists,
    JobNotFound,
    NoCluster,
    NotAllowed,
    NotKnown,
)
from trainmaster_operator.api.json_codec import decode
from trainmaster_operator.api.v1alpha1.names import GROUP, INSTALL_CRD, PLURAL
from trainmaster_operator.wire.values import mapping

# Length limit of an answer that is quoted in a message (characters).
MAX_QUOTED = 60
# The API server's answer for a path that it doesn't serve. A proxy's answer is different.
NO_SUCH_PATH = b"404 page not found"
_JOB = re.compile(rf"/apis/{re.escape(GROUP)}/[^/]+/namespaces/(?P<namespace>[^/]+)/{PLURAL}/(?P<name>[^/]+)")
# Requests that the API server forwards to a pod.
_POD_PROXY = re.compile(r"/api/v1/namespaces/[^/]+/pods/(?P<pod>[^/:]+)[^/]*/proxy/")
# If a field is missing or has the wrong type, the API server skips the CEL rules and adds a cause that reports the
# skipped rules.
_UNCHECKED_RULES = (
    r"<nil>: Invalid value: (?:null|\"null\"|\"\"): some validation rules were not checked because the object was "
    "invalid; correct the existing errors to complete validation"
)
_UNCHECKED = re.compile(rf", {_UNCHECKED_RULES}|{_UNCHECKED_RULES}, ")
_LIST_OF_ONE = re.compile(r": \[(.*)\]\Z", re.DOTALL)
_ERRNO = re.compile(r"\[Errno -?\d+\] ")


@dataclass(frozen=True)
class Answer:
    """Answer is an HTTP answer with its complete body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def status_object(self) -> dict[str, Any]:
        """Returns the `Status` object in the body, or an empty one."""
        try:
            found = decode(self.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) and found.get("kind") == "Status" else {}


@dataclass(frozen=True)
class Reader:
    """Reader interprets the answers of one address."""

    address: str

    @property
    def who(self) -> str:
        """Returns the server as the subject of a sentence."""
        return f"The cluster at {self.address}"

    def decoded(self, answer: Answer) -> dict[str, Any]:
        """Returns an answer's JSON object, which contains `kind`. Raises NoCluster."""
        try:
            found = decode(answer.body)
        except ValueError as error:
            raise self.no_such_server(answer) from error
        if not isinstance(found, dict) or not isinstance(found.get("kind"), str):
            raise self.no_such_server(answer)
        return found

    def refusal(self, answer: Answer, path: str) -> ClientError:
        """Returns one of our errors for an answer that reports a failure."""
        status, found = answer.status, answer.status_object
        message = _message(found, status) if found else ""
        if not found and (proxied := _POD_PROXY.match(path)):
            return InvalidRequest(f"Pod {proxied['pod']} answers {self.description(answer)}.")
        if status == 401:
            return NotKnown(
                f"{self.who} doesn't know you (401 Unauthorized): the kubeconfig's token or "
                "certificate may have expired; log in again, or choose another context."
            )
        if (
            status == 404
            and path.startswith(f"/apis/{GROUP}/")
            and (answer.body.strip() == NO_SUCH_PATH or "could not find the requested resource" in message)
        ):
            # The cluster serves no type of our group. The answer is about the type, not about a single object.
            return JobNotFound(
                "this cluster doesn't know DistributedTrainingJobs: install Trainmaster, or only the custom resource "
                f"({INSTALL_CRD})"
            )
        if status == 404 and found and (job := _JOB.fullmatch(path)):
            return JobNotFound(f"There is no job {job['name']} in namespace {job['namespace']}.")
        if status == 404 and path.startswith("/apis/") and answer.body.strip() == NO_SUCH_PATH:
            return JobNotFound(f"this cluster doesn't serve {'/'.join(path.split('/')[2:4])}")
        return self._other_refusal(answer, message)

    def _other_refusal(self, answer: Answer, message: str) -> ClientError:
        status, found = answer.status, answer.status_object
        if status == 429 or 500 <= status < 600:
            reason = message if found else beginning(answer.body)
            return NoCluster(f"{self.who} can't answer now (HTTP {status}): {reason}; try again.")
        if not found:
            return self.no_such_server(answer)
        if status == 409 and found.get("reason") == "AlreadyExists":
            return JobExists(message)
        kinds: dict[int, type[ClientError]] = {403: NotAllowed, 404: JobNotFound}
        return kinds.get(status, InvalidRequest)(message)

    def unreachable(self, error: BaseException) -> NoCluster:
        """Returns the error for a server that refuses the connection or doesn't answer."""
        return NoCluster(
            f"{self.who} doesn't answer: {innermost(error)}; is it up, and is the kubeconfig's server its address?"
        )

    def broken_off(self, error: BaseException) -> NoCluster:
        """Returns the error for an incomplete answer."""
        return NoCluster(f"The answer of {self.who[0].lower()}{self.who[1:]} broke off: {innermost(error)}.")

    def untrusted(self, error: BaseException) -> NoCluster:
        """Returns the error for a failed TLS handshake."""
        reason = innermost(error)
        if "WRONG_VERSION_NUMBER" in str(error) or "RECORD_LAYER" in str(error):
            return NoCluster(f"The server at {self.address} doesn't speak TLS; does its address begin with http://?")
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return NoCluster(
                f"{self.who} can't be trusted: {reason}; the kubeconfig's certificate-authority is "
                "not the one of this cluster: get a kubeconfig of it, or choose another context."
            )
        return NoCluster(f"No TLS connection to the cluster at {self.address}: {reason}.")

    def no_such_server(self, answer: Answer) -> NoCluster:
        """Returns the error for an answer that can't come from a Kubernetes API server."""
        return NoCluster(
            f"What answers at {self.address} is no Kubernetes API server ({self.description(answer)}): check the "
            "kubeconfig's server, and proxies in between."
        )

    @staticmethod
    def description(answer: Answer) -> str:
        """Describes an unexpected answer and quotes its beginning."""
        kind = str(answer.headers.get("Content-Type") or "").partition(";")[0]
        what = f"{kind} " if kind else ""
        where = f" to {location}" if (location := answer.headers.get("Location")) else ""
        return f"HTTP {answer.status}{where}, {what}{beginning(answer.body)!r}"


def _message(status: Mapping[str, Any], code: int) -> str:
    """Returns a Status's message without the cause that reports skipped rules."""
    message = str(status.get("message") or status.get("reason") or f"HTTP {code}")
    shorter = _UNCHECKED.sub("", message)
    causes = mapping(status.get("details")).get("causes")
    if shorter != message and isinstance(causes, list) and len(causes) == 2:
        # Only one cause is left, so the brackets of the list are removed.
        shorter = _LIST_OF_ONE.sub(r": \1", shorter)
    return shorter


def innermost(error: BaseException) -> str:
    """Returns the message of the innermost exception in a chain, because it is the shortest."""
    while isinstance(reason := getattr(error, "reason", None), BaseException) or (
        error.args and isinstance(reason := error.args[-1], BaseException)
    ):
        error = reason
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message).rstrip(".")
    if isinstance(error, ssl.SSLError):
        return (error.reason or "the handshake failed").lower().replace("_", " ")
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return _ERRNO.sub("", str(error)).rsplit(": ", 1)[-1].rstrip(".")


def beginning(body: bytes) -> str:
    """Returns the beginning of an answer as one line, which a message can quote."""
    text = " ".join(body.decode("utf-8", "replace").split())
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}..."

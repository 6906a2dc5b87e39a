"""The agent accepts only plausible assignments that the operator signed for this agent's own job.

An assignment decides which code this worker unpacks and which host its ranks join, and anyone who may read pods can
read an assignment. So `Authority.read` checks the assignments of all three routes (push, the leader's broadcast, the
annotation), and only it makes an `Assignment` from received data. It checks that the fields are plausible, that the job
and its hosts are this agent's, and that one of the keys in the pod's environment has signed exactly this text.
"""

from __future__ import annotations

import os
import re
from typing import Any

from trainmaster_operator.agent import ed25519
from trainmaster_operator.agent.settings import AgentSettings
from trainmaster_operator.wire.assignment import Assignment, parse_text
from trainmaster_operator.wire.limits import MAX_ASSIGNMENT_BYTES
from trainmaster_operator.wire.signing import SIGNATURES, key_id, signed_text
from trainmaster_operator.wire.values import ProtocolError

MAX_AHEAD = 100_000
"""How far an attempt may be above the highest one seen. One attempt a second for a day is less than this, and no agent
survives a longer interruption."""
REMEMBERED = 8
"""The number of verified assignments to remember, because each arrives by three routes, and a change of any annotation
rewrites the file."""


class Authority:
    """Authority reads assignments; nothing else makes an `Assignment` from received data."""

    def __init__(self, settings: AgentSettings) -> None:
        self._keys = settings.public_keys
        self._job = settings.job_uid
        job, namespace = re.escape(settings.job), re.escape(settings.namespace)
        # In a job with groups, a host's name contains the group's name between the job's name and the worker's index.
        self._host = re.compile(rf"{job}(?:-[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)?-([0-9]+)\.{job}\.{namespace}\.svc")
        self._pattern = f"<pod>.{settings.job}.{settings.namespace}.svc"
        self._verified: list[bytes] = []
        self._highest = 0

    def read(self, data: Any) -> Assignment:
        """Parses and verifies an assignment's JSON object; raises ProtocolError with the field and its value."""
        assignment = Assignment.parse(data)._replace(signed=data)
        if assignment.job != self._job:
            raise ProtocolError(f"assignment.job: {assignment.job!r} is not this job's uid ({self._job!r})")
        for worker, host in zip(assignment.workers, assignment.hosts):
            match = self._host.fullmatch(host)
            if match is None or match[1] != str(worker):
                raise ProtocolError(f"assignment.hosts: {host!r} is not worker {worker}'s {self._pattern}")
        if self._highest and assignment.attempt > self._highest + MAX_AHEAD:
            ahead = f"more than {MAX_AHEAD} beyond the highest seen ({self._highest})"
            raise ProtocolError(f"assignment.attempt: {assignment.attempt} is {ahead}")
        self._verify(data)
        self._highest = max(self._highest, assignment.attempt)
        return assignment

    def _verify(self, wire: dict[str, Any]) -> None:
        message = signed_text(wire)
        if message in self._verified:
            return
        signatures = wire.get(SIGNATURES)
        if not isinstance(signatures, dict):
            raise ProtocolError("assignment.signatures: there are none; the operator signs what it assigns")
        for key in self._keys:
            if ed25519.verify(key, message, ed25519.decoded(signatures.get(key_id(key)))):
                self._verified = [*self._verified[1 - REMEMBERED :], message]
                return
        known = ", ".join(key_id(key) for key in self._keys)
        raise ProtocolError(f"assignment.signatures: none was made with a key that this pod knows ({known})")


class AssignmentFile:
    """AssignmentFile polls the downward API's file for changes.

    The kubelet replaces such files by swapping the symbolic link `..data`. `poll` calls only `stat`, which follows the
    link, until the inode changes. A file that can't be read is read again at the next poll.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._seen: tuple[int, ...] | None = None

    def poll(self) -> Any:
        """Returns the file's content if it has changed since the last call, else None. Raises ProtocolError."""
        try:
            status = os.stat(self.path)
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
            if seen == self._seen:
                return None
            with open(self.path, "rb") as file:
                text = file.read(MAX_ASSIGNMENT_BYTES + 1)
        except OSError:
            # The file doesn't exist yet, or is being replaced: the next poll reads it.
            return None
        self._seen = seen
        # If the annotation isn't set, someone made the pod by hand, or the file is older than the first patch.
        return parse_text(text) if text.strip() else None

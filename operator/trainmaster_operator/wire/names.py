"""Both sides use these names of labels, annotations, headers, environment variables and Python interpreters."""

from __future__ import annotations

import posixpath
import re
import socket

from trainmaster_operator.wire.limits import MAX_METRIC_NAME

JOB_NAME_LABEL = "trainmaster.dev/job-name"
JOB_UID_LABEL = "trainmaster.dev/job-uid"
GROUP_LABEL = "trainmaster.dev/worker-group"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
POD_INDEX_LABEL = "apps.kubernetes.io/pod-index"
ASSIGNMENT_ANNOTATION = "trainmaster.dev/assignment"
TOUCHED_ANNOTATION = "trainmaster.dev/touched"
TRIED_QUOTA_ANNOTATION = "trainmaster.dev/tried-quota"
STACKS_ANNOTATION = "trainmaster.dev/stacks"
RESTART_ANNOTATION = "trainmaster.dev/restart"
HASH_ANNOTATION = "trainmaster.dev/rendered-hash"
FIELD_MANAGER = "trainmaster"
# The Lease that an operator renews, and its namespace unless the operator's options name another.
LEASE_NAME = "trainmaster-operator"
LEASE_NAMESPACE = "trainmaster-system"

AGENT_PORT = 8472
TOKEN_HEADER = "Trainmaster-Token"
PUBLIC_KEYS_VARIABLE = "TRAINMASTER_PUBLIC_KEYS"
AGENTS_SECRET_VARIABLE = "TRAINMASTER_AGENTS_SECRET"

CODE_ARCHIVE = "code.tar.gz"
"""The key of a job's code in its ConfigMap. If the code is in a persistent volume claim, its file has the digest as its
name (`<sha256>.tar.gz`)."""


TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_PYTHON = r"python(\d(\.\d+)?)?t?"
_METRIC = re.compile(rf"[A-Za-z_][A-Za-z0-9_./-]{{0,{MAX_METRIC_NAME - 1}}}")


def is_python(program: str) -> bool:
    """Returns whether a program, given by path or name, is a Python interpreter."""
    return re.fullmatch(_PYTHON, posixpath.basename(program)) is not None


def is_metric_name(name: object) -> bool:
    """Returns whether a rank may give a metric this name. Such a name needs no escapes in any format."""
    return isinstance(name, str) and _METRIC.fullmatch(name) is not None


def group_of(address: str) -> str:
    """Returns the group to which a client's address belongs. For IPv6 it is the /64, which usually is one machine's."""
    if ":" not in address:
        return address
    packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    return packed.hex() if packed.startswith(bytes(10) + b"\xff\xff") else packed[:8].hex()

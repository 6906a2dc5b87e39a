"""Each attempt's rendezvous (`MASTER_PORT`) has a port of its own, so that a rank left over can't join it."""

from __future__ import annotations

DEFAULT_MASTER_PORT = 29_500
"""torch's own default: what a manifest shows before an assignment names the attempt's port."""
FIRST_PORT, LAST_PORT, PORTS = 20_000, 28_979, 8_971
"""Below torch's defaults (29400 and 29500, where jobs of others are), NodePorts (30000) and ephemeral ports (32768).
Their number is a prime, so that every stride visits all of them."""
_TAKEN = (22_623, 22_624, 24_007, 24_008, 25_000, 26_257, 27_017, 27_018, 27_019)
"""What nodes are known to serve themselves, which meets jobs with hostNetwork: OpenShift's machine configs, GlusterFS,
MicroK8s' cluster agent, CockroachDB, MongoDB."""


def master_port(job_uid: str, attempt: int) -> int:
    """Returns the port of an attempt's rendezvous.

    Each job walks through the ports from a place and with a stride of its own: jobs on one network hardly meet at a
    port, and two that did don't meet again at the next attempt.
    """
    from hashlib import sha256

    spread = int.from_bytes(sha256(job_uid.encode()).digest()[:8], "big")
    start, stride = spread % PORTS, 1 + spread // PORTS % (PORTS - 1)
    return port_at((start + attempt * stride) % PORTS)


def port_at(place: int) -> int:
    """Returns the port at a place from 0 to below PORTS, in rising order."""
    port = FIRST_PORT + place
    for taken in _TAKEN:
        if port >= taken:
            port += 1
    return port


def is_master_port(port: int) -> bool:
    """Returns whether it is a port that an operator gives an attempt."""
    return FIRST_PORT <= port <= LAST_PORT and port not in _TAKEN

"""torch's store is served to an attempt's ranks by a process of its own, as torchrun's agent does.

It listens before any rank asks for it, whatever rank 0 does first: a client that comes too early tries again after
half a second or more (torch 2.13, TCPStore.cpp). Forked from the warm process it is there within milliseconds; where
there is none, this file is run by its path.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def serve_store(address: str, port: int) -> NoReturn:
    """Serve until the agent ends this process."""
    try:
        from torch.distributed import TCPStore
    except ImportError:
        # Without TCPStore no rank looks for a store either.
        sys.exit(0)
    # With it torch would take a port that somebody else listens on for the agent's store (torch 2.13, TCPStore.cpp).
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    # It serves as long as there is a reference to it.
    _store = TCPStore(address, port, is_master=True, wait_for_workers=False)
    while True:
        signal.pause()


if __name__ == "__main__":
    # Where the ranks find what lies beside their program, torch may lie too.
    sys.path += sys.argv[1:]
    serve_store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))

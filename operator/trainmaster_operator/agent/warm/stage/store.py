"""A separate process serves torch's store to an attempt's ranks, like torchrun's agent.

It listens before any rank connects, whatever rank 0 does first: a client that is too early waits at least half a second
before it retries (torch 2.13, TCPStore.cpp). Forked from the warm process it listens within milliseconds; without one,
this file is run by its path.
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
        # Without TCPStore no rank needs a store either.
        sys.exit(0)
    # With it torch would mistake another program's listener on the port for the agent's store (torch 2.13,
    # TCPStore.cpp).
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    # It serves as long as there is a reference to it.
    _store = TCPStore(address, port, is_master=True, wait_for_workers=False)
    while True:
        signal.pause()


if __name__ == "__main__":
    # torch may be in the folders from which the ranks import.
    sys.path += sys.argv[1:]
    serve_store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))

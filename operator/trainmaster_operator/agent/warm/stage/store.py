"""A separate process serves torch's store to an attempt's ranks, like torchrun's agent.

It listens before any rank connects, because a client that connects too early waits at least half a second before it
retries (torch 2.13, TCPStore.cpp). If the warm process forks this process, it listens within milliseconds. Without a
warm process, the agent runs this file as a script.
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
        # If torch lacks TCPStore, no rank needs a store.
        sys.exit(0)
    # With this variable, torch would take any program that already listens on the port for the agent's store (torch
    # 2.13, TCPStore.cpp).
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    # The store only serves while there is a reference to it.
    _store = TCPStore(address, port, is_master=True, wait_for_workers=False)
    while True:
        signal.pause()


if __name__ == "__main__":
    # torch may be in a folder from which the ranks import modules.
    sys.path += sys.argv[1:]
    serve_store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))

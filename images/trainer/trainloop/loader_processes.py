"""Processes of a rank read ahead for it, and end with it.

They are forked from a server that has imported torch for all of them, so the server, and not the rank, is their parent:
torch's own watch over a parent sees nothing of a rank that is killed, and they would hold their memory until the pod
ends. Each waits for the end of its rank itself, which multiprocessing tells it through a pipe.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset


def read_ahead(
    reader: Dataset[Any], requests: Iterator[Any], workers: int, prefetch: int, seed: int, *, pin_memory: bool
) -> Iterator[Any]:
    """Yields what `reader` has for each request, in their order, from so many processes, each `prefetch` requests
    ahead; from a thread where there is none.
    """
    # The server doesn't import the task's module, which may start threads that a fork would lose.
    multiprocessing.set_forkserver_preload(["__main__", "trainloop.data", __name__])
    loader = DataLoader(
        reader,
        batch_size=None,
        sampler=requests,
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        collate_fn=_as_is,
        pin_memory=pin_memory,
        # A generator of its own: the default one would draw from the global RNG at every start, and a resumed run would
        # no longer equal an uninterrupted one.
        generator=torch.Generator().manual_seed(seed),
        multiprocessing_context="forkserver" if workers else None,
        worker_init_fn=_end_with_rank,
    )
    return iter(loader)


def _as_is(step: Any) -> Any:
    return step


def _end_with_rank(_: int) -> None:
    """Ends this process as soon as its rank has."""
    rank = multiprocessing.parent_process()

    def wait() -> None:
        if rank is not None:
            rank.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()

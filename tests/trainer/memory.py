"""Tests count exactly how many bytes of tensors a rank holds.

A process's own size is less accurate. Libraries' code is mapped when it is first used (20 MiB), and malloc's heap keeps
holes where tensors were, up to 32 MiB beside 32 MiB of tensors.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch.profiler import ProfilerActivity, profile


@dataclass
class Held:
    """Holds the numbers that `held_tensors` counts; they are set once its body has ended."""

    #: The most bytes of tensors on the host at any time, beyond those from before the body.
    most: int = 0


@contextmanager
def held_tensors() -> Iterator[Held]:
    """Counts what this thread allocates in the body until it is freed. Gloo's threads free some of what a collective
    used, so a tensor also counts as freed when another one is allocated at its address.
    """
    held = Held()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        yield held
    with tempfile.NamedTemporaryFile(suffix=".json") as trace:
        profiler.export_chrome_trace(trace.name)
        events = json.loads(Path(trace.name).read_bytes())["traceEvents"]
    sizes: dict[int, int] = {}
    for event in sorted((event for event in events if event["name"] == "[memory]"), key=lambda event: event["ts"]):
        address, changed = event["args"]["Addr"], event["args"]["Bytes"]
        sizes.pop(address, None)
        if changed > 0:
            sizes[address] = changed
            held.most = max(held.most, sum(sizes.values()))

"""The preflight compares the ranks' code and settings before the first collective, through the rendezvous' store.

Ranks that differ would hang in a collective or, even worse, train different things. Rank 0 compares the fingerprints of
all ranks and publishes the differences. If a difference is fatal, every rank ends with the same message.

Trainmaster's agents compare the installed packages of their workers before the ranks start. So if there are agents, the
preflight compares only facts that just the ranks know: imported code, complete configuration, device and driver.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import platform
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from torch.distributed import Store

from trainloop.distributed.world import has_agent
from trainloop.errors import PreflightMismatch, listed
from trainloop.settings import Settings

Part = Literal["python", "torch", "cuda", "nccl", "code", "config", "driver", "device"]


class PreflightSettings(Settings):
    """These settings decide which differences between ranks end the run."""

    enabled: bool = Field(True, description="Compare the ranks' environment before the first collective.")
    fatal: list[Part] = Field(
        ["python", "torch", "cuda", "nccl", "code", "config"],
        description="Differences that end the run with exit code 67; the others are only printed.",
    )


def fingerprint(config: str, modules: Sequence[str]) -> dict[str, str]:
    """Returns this rank's fingerprint.

    `code` is a hash of trainloop's sources and the user's `modules`; `config` is a hash of the complete configuration.
    """
    cuda = torch.cuda.is_available()
    driver = Path("/proc/driver/nvidia/version")
    packages = {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else "none",  # type: ignore[no-untyped-call]
    }
    return {
        **({} if has_agent() else packages),
        "driver": driver.read_text().splitlines()[0] if driver.is_file() else "none",
        "device": torch.cuda.get_device_name() if cuda else platform.machine(),
        "code": _code_hash(tuple(modules)),
        "config": hashlib.sha256(config.encode()).hexdigest()[:12],
    }


@cache
def _code_hash(modules: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    for file in [*files, *filter(None, map(_source, modules))]:
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def _source(module: str) -> Path | None:
    """Returns a module's file; None if there is none, because importing the module reports that later."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def differences(fingerprints: list[dict[str, str]]) -> dict[str, str]:
    """Returns a line for each part that differs, with all values and their ranks; the most frequent value is first."""
    found = {}
    for part in fingerprints[0]:
        values = Counter(one.get(part, "missing") for one in fingerprints)
        if len(values) > 1:
            parts = [
                f"{value} on rank {listed([rank for rank, one in enumerate(fingerprints) if one.get(part) == value])}"
                for value, _ in values.most_common()
            ]
            found[part] = f"{part}: {'; '.join(parts)}"
    return found


def check(settings: PreflightSettings, mine: dict[str, str], store: Store, rank: int, size: int) -> None:
    """Compares all ranks before the first collective. Raises PreflightMismatch on every rank on a fatal difference."""
    if not settings.enabled:
        return
    store.set(f"preflight/{rank}", json.dumps(mine))
    if rank == 0:
        all_ranks = [json.loads(store.get(f"preflight/{other}")) for other in range(size)]
        store.set("preflight/differences", json.dumps(differences(all_ranks)))
    found: dict[str, str] = json.loads(store.get("preflight/differences"))
    # Rank 0 serves the store, so it must not leave until every rank has read the result.
    store.set(f"preflight/read/{rank}", "")
    if rank == 0:
        store.wait([f"preflight/read/{other}" for other in range(size)])
        for line in (line for part, line in found.items() if part not in settings.fatal):
            print(f"warning: ranks differ in {line}", flush=True)
    fatal = [line for part, line in found.items() if part in settings.fatal]
    if fatal:
        raise PreflightMismatch("ranks differ, so they can't train together:\n" + "\n".join(fatal))

"""Do all ranks run the same? Asked before the first collective, through the store that the rendezvous already has.

Ranks that differ hang in a collective or, worse, train something else. Rank 0 compares everybody's fingerprint and
leaves the verdict; every rank ends with the same text.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import platform
from collections import Counter
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from torch.distributed import Store

from trainloop.errors import PreflightMismatch, listed
from trainloop.settings import Settings

Field_ = Literal["python", "torch", "cuda", "nccl", "code", "config", "driver", "device"]


class PreflightSettings(Settings):
    """Which differences between ranks end the run."""

    enabled: bool = Field(True, description="Compare the ranks' environment before the first collective.")
    fatal: list[Field_] = Field(
        ["python", "torch", "cuda", "nccl", "code", "config"],
        description="Differences that end the run with exit code 67; the others are only printed.",
    )


def fingerprint(config: str, modules: list[str]) -> dict[str, str]:
    """What this rank runs. `code` is a hash of trainloop's sources and those of the user's `modules`, `config` of the
    whole configuration.
    """
    cuda = torch.cuda.is_available()
    driver = Path("/proc/driver/nvidia/version")
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else "none",  # type: ignore[no-untyped-call]
        "driver": driver.read_text().splitlines()[0] if driver.is_file() else "none",
        "device": torch.cuda.get_device_name() if cuda else platform.machine(),
        "code": _code_hash(modules),
        "config": hashlib.sha256(config.encode()).hexdigest()[:12],
    }


def _code_hash(modules: list[str]) -> str:
    digest = hashlib.sha256()
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    for file in [*files, *filter(None, map(_source, modules))]:
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def _source(module: str) -> Path | None:
    """A module's file; None where there is none: that is said when the module is used."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def differences(fingerprints: list[dict[str, str]]) -> dict[str, str]:
    """By field, one line that says which ranks have what; the values of most ranks come first."""
    found = {}
    for field in fingerprints[0]:
        values = Counter(one.get(field, "missing") for one in fingerprints)
        if len(values) > 1:
            parts = [
                f"{value} on rank {listed([rank for rank, one in enumerate(fingerprints) if one.get(field) == value])}"
                for value, _ in values.most_common()
            ]
            found[field] = f"{field}: {'; '.join(parts)}"
    return found


def check(settings: PreflightSettings, mine: dict[str, str], store: Store, rank: int, size: int) -> None:
    """Compare between rendezvous and the first collective. Raises PreflightMismatch on every rank alike."""
    if not settings.enabled:
        return
    store.set(f"preflight/{rank}", json.dumps(mine))
    if rank == 0:
        everybody = [json.loads(store.get(f"preflight/{other}")) for other in range(size)]
        store.set("preflight/verdict", json.dumps(differences(everybody)))
    verdict: dict[str, str] = json.loads(store.get("preflight/verdict"))
    # The store is rank 0's: it may only leave when everybody has read the verdict.
    store.set(f"preflight/read/{rank}", "")
    if rank == 0:
        store.wait([f"preflight/read/{other}" for other in range(size)])
        for line in (line for field, line in verdict.items() if field not in settings.fatal):
            print(f"warning: ranks differ in {line}", flush=True)
    fatal = [line for field, line in verdict.items() if field in settings.fatal]
    if fatal:
        raise PreflightMismatch("ranks differ, so they can't train together:\n" + "\n".join(fatal))

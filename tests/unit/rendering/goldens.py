"""`python -m tests.unit.rendering.goldens` renders jobs/*.yaml into the golden manifests golden/*.yaml again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import yaml

from tests.signer import KEYS
from trainmaster_operator.api.parsing import parse_spec
from trainmaster_operator.api.v1alpha1.names import JobIdentity
from trainmaster_operator.rendering import Manifest, NetworkPeers, Settings, first_assignment, render

JOBS = Path(__file__).parent / "jobs"
GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.stem for path in JOBS.glob("*.yaml"))


SETTINGS = {
    "network-policy": Settings(
        network_peers=NetworkPeers(
            "trainmaster-system",
            (("app.kubernetes.io/name", "trainmaster"), ("app.kubernetes.io/instance", "trainmaster")),
            ("monitoring",),
        )
    ),
    "network-policy-of-an-operator-outside": Settings(network_peers=NetworkPeers("nowhere")),
}
"""The operator's settings by golden file, where they aren't the defaults."""


def manifests(name: str) -> tuple[Manifest, ...]:
    """Returns the children of one of the jobs."""
    spec = parse_spec(yaml.safe_load((JOBS / f"{name}.yaml").read_text()), name)
    job = JobIdentity("team", name, "3f1d6c1e-0000-4000-8000-000000000000")
    settings = replace(SETTINGS.get(name, Settings()), keys=KEYS)
    return render(job, spec, first_assignment(job, spec), settings=settings)


def golden(name: str) -> str:
    """Returns a job's manifests as the text of a golden file."""
    bodies = [dict(one.body) for one in manifests(name)]
    return yaml.dump_all(bodies, Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Writes programs and files line by line."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for stale in {path.stem for path in GOLDEN.glob("*.yaml")} - set(NAMES):
        (GOLDEN / f"{stale}.yaml").unlink()
    for job_name in NAMES:
        (GOLDEN / f"{job_name}.yaml").write_text(golden(job_name))
    print(f"wrote {len(NAMES)} files in {GOLDEN}")

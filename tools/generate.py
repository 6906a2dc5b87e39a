"""The generated files are made from their sources, or compared with what these make now.

`python -m tools.generate` writes them; with `--check` it names the ones that differ and exits with 1. The custom
resource's models are the source of the CRD and of the reference pages, the chart is the source of the plain manifests,
Kubernetes' definitions are the source of the types of a pod.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tools.api_reference import api_reference
from tools.chart import chart_crd, manifests
from tools.commands_page import commands_page
from tools.dashboards import MADE, dashboard_json
from tools.operator_options import operating_page
from tools.pod_types import pod_types
from tools.reasons_page import reasons_page
from tools.training_reference import training_reference
from tools.training_schema import training_schema
from trainmaster_operator.api.crd import crd_yaml

ROOT = Path(__file__).resolve().parent.parent

# The order matters: the plain manifests are rendered from the chart, which contains a copy of the CRD.
GENERATED: dict[str, Callable[[], str]] = {
    "operator/trainmaster_operator/api/pod_schema/types.json": pod_types,
    "manifests/crd.yaml": crd_yaml,
    "charts/trainmaster/files/crd.yaml": chart_crd,
    **{f"charts/trainmaster/dashboards/{name}.json": partial(dashboard_json, name) for name in MADE},
    "manifests/rbac.yaml": lambda: manifests("rbac.yaml"),
    "manifests/admission-policy.yaml": lambda: manifests("admission-policy.yaml"),
    "manifests/operator.yaml": lambda: manifests("operator.yaml"),
    "docs/reference.md": api_reference,
    "docs/operating.md": operating_page,
    "docs/reasons.md": reasons_page,
    "docs/commands.md": commands_page,
    "docs/training-reference.md": training_reference,
    "operator/trainmaster_operator/api/training_schema.json": training_schema,
}


def main(arguments: list[str] | None = None) -> int:
    """Writes or checks the files, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tools.generate")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 when a file differs")
    check = parser.parse_args(arguments).check
    stale = []
    for name, make in GENERATED.items():
        path = ROOT / name
        have = path.read_text() if path.exists() else ""
        want = make()
        if have == want:
            continue
        if check:
            stale.append(name)
            diff = difflib.unified_diff(have.splitlines(), want.splitlines(), name, f"{name} (generated)", lineterm="")
            print("\n".join(list(diff)[:40]))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(want)
            print(f"wrote {name}")
    if stale:
        print(f"Not what their sources make: {', '.join(stale)}. Run `make generate`.")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())

"""ResourceQuotas: used up, or wanting a request or limit that the pods don't have.

The words are the API server's (plugin/pkg/admission/resourcequota).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainmaster.client.diagnosis.finding import Finding, Step
from trainmaster.client.diagnosis.objects import joined
from trainmaster.client.diagnosis.refused_pods import refused
from trainmaster.client.diagnosis.room import resource_noun
from trainmaster.client.diagnosis.situation import Situation

_EXCEEDED = re.compile(r"exceeded quota: ([^,]+), requested: (\S+), used: (\S+), limited: (\S+)")
_UNSPECIFIED = re.compile(r"failed quota: ([^:]+): must specify (.+?) for: ([^;\n]+)")
_FIELDS = {"cpu": "spec.resources.cpu", "memory": "spec.resources.memory"}


def quota_findings(situation: Situation) -> Iterator[Finding]:
    """Yields the quota that keeps pods from being made."""
    for message in refused(situation):
        look = Step("all quotas, with what is used", f"kubectl describe resourcequota {situation.where}")
        evidence = (f"the API server: {message}",)
        if found := _EXCEEDED.search(message):
            asked, used, limited = (_amounts(part) for part in found.groups()[1:])
            over = [name for name in asked if name in limited]
            shown = [
                f"{asked[name]} more {_noun(name)}, and {used.get(name, '0')} of {limited[name]} are in use"
                for name in over
            ]
            clause = f"the quota {found[1]} is used up: it needs {joined(shown)}"
            wait = Step("wait until other jobs of the namespace have ended, ask for less, or ask for more quota")
            yield Finding("QuotaExceeded", clause, evidence, (wait, look))
            return
        if found := _UNSPECIFIED.search(message):
            lacking = sorted({part.partition(".")[2] or part for part in re.split(r"[,;\s]+", found[2]) if part})
            fields = [_FIELDS.get(name, f"{name} in spec.podTemplate") for name in lacking]
            clause = f"the quota {found[1]} wants {found[2]} on every container, and {found[3]} has none"
            yield Finding(
                "QuotaUnspecified", clause, evidence, (Step(f"set {joined(fields)}, and apply the job again"), look)
            )
            return


def _amounts(text: str) -> dict[str, str]:
    return {name: amount for name, _, amount in (part.partition("=") for part in text.split(","))}


def _noun(name: str) -> str:
    plain = name.removeprefix("requests.").removeprefix("limits.")
    kind = "limits of " if name.startswith("limits.") else ""
    return kind + ("pods" if plain == "pods" else resource_noun(plain))

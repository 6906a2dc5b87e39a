"""The scheduler's words about a pod are read part by part.

kube-scheduler writes, for a pod that fits nowhere (FitError in pkg/scheduler/framework, 1.25 to 1.36):

    0/7 nodes are available: 3 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint {dedicated: infra},
    2 node(s) didn't match Pod's node affinity/selector. preemption: 0/7 nodes are available: ...

The parts are sorted and counted; a node that fails several checks counts in the first one that its filter reached, and
in each resource that it lacks, so the counts can be more than the nodes. What rules a pod out everywhere stands alone,
without a count. Newer ones don't name taints ("untolerated taint(s)"). Volcano writes "are unavailable".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_BEGINNING = re.compile(r"0/(\d+) nodes are (?:un)?available: ")
# A sentence ends before a blank or the end: names of resources and taints have dots in them.
_END = re.compile(r"\.(?= |$)")
_PART = re.compile(r"(?:(\d+) )?(.+)", re.DOTALL)

# What excludes a node, by what stands in the part, in the order in which a part is tried.
_KINDS = (
    ("claim missing", re.compile(r'persistentvolumeclaim "([^"]+)" (?:not found|is being deleted)')),
    (
        "claim unbound",
        re.compile(
            r"unbound immediate PersistentVolumeClaims|available persistent volumes to bind|"
            r"bound to non-existent pv|did not have enough free storage"
        ),
    ),
    (
        "volume zone",
        re.compile(
            r"volume node affinity conflict|didn't match PersistentVolume's node affinity|"
            r"no available volume zone"
        ),
    ),
    ("volume limit", re.compile(r"exceed max volume count|max volume count")),
    ("resource", re.compile(r"Insufficient (\S+)")),
    ("resource", re.compile(r"(Too many pods)")),
    ("device", re.compile(r"cannot allocate all claims|resourceclaim|claim .* not (?:found|available)|DeviceClass")),
    ("port", re.compile(r"free ports for the requested pod ports")),
    ("spread", re.compile(r"pod topology spread constraints")),
    ("pod affinity", re.compile(r"pod (?:anti-)?affinity|pods anti-affinity")),
    ("cordoned", re.compile(r"were unschedulable|taint \{node\.kubernetes\.io/unschedulable")),
    ("not ready", re.compile(r"taint \{node\.kubernetes\.io/(?:not-ready|unreachable)|were not ready")),
    ("taint", re.compile(r"untolerated taint(?: \{([^}]*)\})?|had taint \{([^}]*)\}")),
    ("selector", re.compile(r"node affinity|node selector|didn't match the requested node name")),
)


@dataclass(frozen=True)
class Exclusion:
    """Exclusion says why `nodes` nodes don't take the pod; `about` is the resource, taint or claim that it names."""

    kind: str
    nodes: int | None
    text: str
    about: str = ""


@dataclass(frozen=True)
class SchedulerWords:
    """SchedulerWords is a message part by part."""

    nodes: int
    exclusions: tuple[Exclusion, ...]

    def of(self, *kinds: str) -> tuple[Exclusion, ...]:
        """Returns the exclusions of some kinds."""
        return tuple(one for one in self.exclusions if one.kind in kinds)


def read_words(message: str) -> SchedulerWords | None:
    """Returns a message's parts; None where it isn't one of these."""
    beginning = _BEGINNING.search(message)
    if beginning is None:
        return None
    rest = message[beginning.end() :]
    end = _END.search(rest)
    parts = re.split(r", (?=\d+ )", rest[: end.start()] if end else rest)
    return SchedulerWords(int(beginning[1]), tuple(_exclusion(part.strip()) for part in parts if part.strip()))


def _exclusion(part: str) -> Exclusion:
    found = _PART.fullmatch(part)
    count, words = (found[1], found[2]) if found else (None, part)
    for kind, pattern in _KINDS:
        match = pattern.search(words)
        if match:
            about = next((group for group in match.groups() if group), "")
            return Exclusion(kind, int(count) if count else None, words, "pods" if about == "Too many pods" else about)
    return Exclusion("other", int(count) if count else None, words)

"""Fits general advice to a job: fields show their present value, and nothing is suggested that is set already."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from trainmaster.client.diagnosis.situation import Finding, Situation, Step
from trainmaster.client.objects import at, items, text

# A field whose present value matters to the advice.
_FIELD = re.compile(r"(?:(?<=raise )|(?<=lower )|(?<=correct )|(?<=less in ))spec(?:\.[A-Za-z]+)+")
# An environment variable that a step sets: HF_TOKEN from a Secret, NCCL_IB_DISABLE=1.
_VARIABLE = re.compile(r"\b([A-Z][A-Z0-9]*_[A-Z0-9_]+)(?==| from a Secret)")
_PULL_SECRET = "add a pull secret (docs/pods.md, A private registry)"


def fitted(situation: Situation, finding: Finding) -> Finding:
    """Returns the finding with its steps fitted to the job."""
    steps = [one for step in finding.steps for one in _fitted(situation, step)]
    return replace(finding, steps=tuple(steps))


def _fitted(situation: Situation, step: Step) -> Iterator[Step]:
    spec = situation.job.raw.get("spec")
    words = step.text
    template = at(spec, "podTemplate", "spec")
    if secrets := [text(one, "name") for one in items(template, "imagePullSecrets")]:
        words = words.replace(_PULL_SECRET, f"check the pull secret {secrets[0]}")
    containers = items(template, "containers")
    known = {text(one, "name") for each in containers for one in items(each, "env")}
    for variable in _VARIABLE.findall(words):
        if variable in known:
            words = f"{variable} is set already: check its value"
    shown: set[str] = set()

    def with_value(found: re.Match[str]) -> str:
        value = at({"spec": spec}, *found[0].split("."))
        if found[0] in shown or isinstance(value, bool) or not isinstance(value, str | int | float):
            return found[0]
        shown.add(found[0])
        return f"{found[0]} (now {value})"

    words = _FIELD.sub(with_value, words)
    yield replace(step, text=words)

"""Advice names only fields, commands and pods that exist, nothing that is set already, and counts in plain English.

The tests go over all findings of all situations, not only over the first one of each, with and without rights.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import typer

from tests.why.answers import situation_of
from tests.why.situations import Expected, all_situations
from trainmaster.cli.dtj import app
from trainmaster.client import TrainingJob
from trainmaster.client.diagnosis import Finding, findings
from trainmaster.client.diagnosis.advice import fitted
from trainmaster.client.diagnosis.endings import _ENDINGS
from trainmaster.client.diagnosis.pods import _IMAGES
from trainmaster.client.diagnosis.situation import Situation, Step
from trainmaster_operator.api.crd import spec_schema

RIGHTS: tuple[tuple[str, ...], ...] = ((), ("pods", "configmaps"), ("nodes", "events", "deployments"))
_FIELD = re.compile(r"(?<![\w.`'\"/{])(?:spec|failurePolicy|runPolicy|podTemplate|scheduling|interconnect|resources)"
                    r"(?:\.\w+(?:\[\])?)*\.\w+(?:\[\])?")  # fmt: skip
# A count of one with a noun in the plural: "1 more pods", "1 nodes". "1 s" is a time.
_ONE_OF_MANY = re.compile(
    r"(?i)(?<!rank )(?<!worker )(?<!attempt )(?<!code )(?<![\w./:-])1 (?!has |is |was )"
    r"(?:more |other |free )?[a-z]{2,}s\b(?! of)"
)
# The commands of other programs in pipes, and the verbs of kubectl with the options that are used.
FILTERS = {"grep", "sort", "uniq"}
KUBECTL = {
    "get": {"-n", "-A", "-l", "-o", "--show-labels"},
    "describe": {"-n", "-l"},
    "logs": {"-n", "-c", "--tail", "--previous"},
    "delete": {"-n"},
    "cordon": set(),
    "uncordon": set(),
    "create": {"-n"},
    "events": {"-n", "--for", "--types"},
    "edit": {"-n"},
    "scale": {"-n", "--replicas"},
}


@cache
def everything() -> list[tuple[Expected, Situation, Finding]]:
    """Returns the findings of all situations, as users with different rights get them."""
    found = []
    for expected in all_situations():
        for forbidden in RIGHTS:
            situation = situation_of(replace(expected, forbidden=(*expected.forbidden, *forbidden)))
            found += [(expected, situation, finding) for finding in findings(situation)]
    return found


def steps() -> Iterator[tuple[Expected, Situation, Step]]:
    return ((expected, situation, step) for expected, situation, finding in everything() for step in finding.steps)


def exists(path: str) -> bool:
    """Returns whether the CRD's schema has a field."""
    schema: Mapping[str, Any] = spec_schema()
    for part in path.removeprefix("spec.").split("."):
        properties = schema.get("properties", {})
        if part.removesuffix("[]") not in properties:
            return False
        schema = properties[part.removesuffix("[]")]
        schema = schema.get("items", schema)
    return True


def test_the_schema_tells_fields_from_others() -> None:
    assert exists("spec.podTemplate.spec.nodeSelector") and exists("spec.workerGroups[].nodeSelector")
    assert not exists("spec.nodeSelector") and not exists("spec.scheduling.gangs")


def test_every_field_that_a_step_names_exists() -> None:
    for _, _, step in steps():
        for path in _FIELD.findall(step.text):
            assert path.startswith("spec."), f"{path} without spec.: {step.text}"
            assert exists(path), f"{path}: {step.text}"


def test_every_field_in_the_tables_of_remedies_exists() -> None:
    for *_, remedy in (*_ENDINGS, *_IMAGES):
        for path in _FIELD.findall(remedy):
            assert path.startswith("spec.") and exists(path), remedy


def test_every_command_is_one_of_kubectl_or_ours() -> None:
    for command in {step.command for _, _, step in steps() if step.command}:
        for part in re.split(r" \| | && ", command):
            check(shlex.split(part))


def check(words: list[str]) -> None:
    if words[0] in FILTERS or words[:3] == ["docker", "manifest", "inspect"]:
        return
    assert words[0] == "kubectl", words
    if words[1] == "dtj":
        parse(words[2:])
        return
    options = {word.partition("=")[0] for word in words[2:] if word.startswith("-")}
    assert options <= KUBECTL[words[1]], words


def parse(words: list[str]) -> None:
    """Parses a command of `kubectl dtj` without running it. Raises UsageError."""
    root = typer.main.get_command(app)
    context = root.make_context("kubectl dtj", list(words))
    name, command, rest = root.resolve_command(context, [*context._protected_args, *context.args])  # type: ignore[attr-defined]
    command.make_context(name, rest, parent=context)


def test_a_command_that_we_dont_have_is_noticed() -> None:
    for words in (["stack", "mine"], ["stacks", "mine", "--ranks", "3"], ["logs"]):
        with pytest.raises(Exception, match=r"(?i)no such|missing|invalid"):
            parse(words)


def test_every_pod_that_a_command_names_exists() -> None:
    for expected, situation, step in steps():
        there = {one["metadata"]["name"] for one in expected.objects if one["kind"] == "Pod"}
        known = there if situation.pods or situation.operator_pods else set()
        assert pods_in(shlex.split(step.command)) <= known, step.command


def pods_in(words: list[str]) -> set[str]:
    """Returns the pods that a kubectl command names: in `logs POD`, `delete pod POD` and `pod/POD`."""
    named = {word.removeprefix("pod/") for word in words if word.startswith("pod/")}
    if words[1:2] != ["dtj"]:
        named |= {after for before, after in pairwise(words) if before in ("logs", "pod")}
    return {name for name in named if not name.startswith(("-", "deployment/"))}


def test_one_thing_isnt_counted_as_several() -> None:
    for _, _, finding in everything():
        for words in (finding.clause, *finding.evidence, *(step.text for step in finding.steps)):
            assert not _ONE_OF_MANY.search(words), words


def test_nothing_is_suggested_that_the_agent_sets_already() -> None:
    for _, _, step in steps():
        assert "PYTHONFAULTHANDLER" not in step.text and "PYTHONUNBUFFERED" not in step.text


def test_an_exception_blames_no_node() -> None:
    own = ("ProgramError", "ModuleNotFound", "FileNotFound", "ExitCode", "ImportError", "Usage", "OutOfMemory")
    clauses = {finding.clause for _, _, finding in everything() if finding.cause in own}
    assert [clause for clause in clauses if " on node " in clause] == []


SPEC = {
    "resources": {"sharedMemory": "8Gi", "memory": "64Gi"},
    "podTemplate": {
        "spec": {
            "imagePullSecrets": [{"name": "corp"}],
            "containers": [{"name": "worker", "env": [{"name": "HF_TOKEN", "value": "x"}]}],
        }
    },
}


@pytest.mark.parametrize(
    ("advice", "fits"),
    [
        (
            "raise spec.resources.sharedMemory, such as to 16Gi",
            "raise spec.resources.sharedMemory (now 8Gi), such as to 16Gi",
        ),
        ("raise spec.resources.cpu", "raise spec.resources.cpu"),
        ("give the job a token: HF_TOKEN from a Secret (docs/pods.md)", "HF_TOKEN is set already: check its value"),
        ("give the job WANDB_API_KEY from a Secret", "give the job WANDB_API_KEY from a Secret"),
        ("add a pull secret (docs/pods.md, A private registry), or wait", "check the pull secret corp, or wait"),
    ],
)
def test_a_step_shows_what_the_job_sets(advice: str, fits: str) -> None:
    raw = {"metadata": {"name": "mine", "namespace": "team"}, "spec": SPEC, "status": {}}
    situation = Situation(TrainingJob.of({"apiVersion": "trainmaster.dev/v1alpha1", "kind": "D", **raw}))
    assert fitted(situation, Finding("Any", "any", steps=(Step(advice),))).steps == (Step(fits),)

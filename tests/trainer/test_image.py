"""The training image has a complete wheel and Dockerfile, and examples without mistakes."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder

from trainloop.config import parse_config

ROOT = Path(__file__).parents[2]
TRAINER = ROOT / "images" / "trainer"
IMPORT_ALL = """
import importlib, pkgutil, sys
sys.path.insert(0, sys.argv[1])
import trainmaster_operator
for module in pkgutil.walk_packages(trainmaster_operator.__path__, "trainmaster_operator."):
    importlib.import_module(module.name)
    assert sys.modules[module.name].__file__.startswith(sys.argv[1])
"""


def test_the_wheel_holds_the_loop_and_nothing_else(tmp_path: Path) -> None:
    [wheel] = WheelBuilder(str(TRAINER)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as bundle:
        names = bundle.namelist()
        [metadata] = [name for name in names if name.endswith(".dist-info/METADATA")]
        about = Parser().parsestr(bundle.read(metadata).decode())
    folder = metadata.rpartition("/")[0]
    sources = {str(path.relative_to(TRAINER)) for path in (TRAINER / "trainloop").rglob("*.py")}
    assert {name for name in names if not name.startswith(f"{folder}/")} == sources | {"trainloop/py.typed"}
    # A package called trainloop on PyPI is a different program.
    assert about["Name"] == "trainmaster-trainloop"


def test_the_dockerfile_copies_all_that_the_agents_zipapp_is_made_of(tmp_path: Path) -> None:
    stage = (TRAINER / "Dockerfile").read_text().split(" AS agent\n")[1].split("\nFROM ")[0]
    for source, target in re.findall(r"^COPY (\S+) (\S+)$", stage, re.MULTILINE):
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        (tmp_path / target).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / source, tmp_path / target)
    [command] = re.findall(r"^RUN PYTHONPATH=operator python3 (.+) /agent.pyz$", stage, re.MULTILINE)
    build = [sys.executable, *shlex.split(command), "agent.pyz"]
    subprocess.run(build, cwd=tmp_path, env={"PYTHONPATH": "operator"}, check=True)
    subprocess.run([sys.executable, "-I", "-c", IMPORT_ALL, tmp_path / "agent.pyz"], check=True)


@pytest.mark.parametrize(
    "example", sorted((ROOT / "manifests" / "examples").glob("*.yaml")), ids=lambda path: path.name
)
def test_the_examples_configure_the_loop_without_a_mistake(example: Path) -> None:
    for document in yaml.safe_load_all(example.read_text()):
        training = document.get("spec", {}).get("training") if document["kind"] == "DistributedTrainingJob" else None
        if training is not None:
            parse_config(training)

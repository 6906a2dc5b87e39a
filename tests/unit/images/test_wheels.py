"""What is in the wheels: the operator's has no local cluster, and the training loop as data (`pyproject.toml`)."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from trainmaster_operator.rendering import AgentImageVolume
from trainmaster_operator.rendering.agent_source import AGENT_DIRECTORY, agent_path

ROOT = Path(__file__).parents[3]


def wheel_of(project: Path, folder: Path) -> zipfile.ZipFile:
    """Builds the wheel as the image does."""
    return zipfile.ZipFile(next(iter(WheelBuilder(str(project)).build(directory=str(folder), versions=["standard"]))))


def packages(project: Path, folder: Path) -> set[str]:
    """The top-level names in a project's wheel, but its metadata."""
    with wheel_of(project, folder) as wheel:
        return {top for top in (name.split("/")[0] for name in wheel.namelist()) if not top.endswith(".dist-info")}


@pytest.mark.parametrize(
    ("project", "package"),
    [("operator", "trainmaster_operator"), (".", "trainmaster"), ("local", "trainmaster_local")],
    ids=["operator", "console", "local cluster"],
)
def test_a_wheel_has_one_package(project: str, package: str, tmp_path: Path) -> None:
    assert packages(ROOT / project, tmp_path) == {package}


def test_the_operator_s_wheel_has_its_templates_and_no_local_cluster(tmp_path: Path) -> None:
    with wheel_of(ROOT / "operator", tmp_path) as wheel:
        names = wheel.namelist()
    assert any(name.endswith("/templates/statefulset.yaml.j2") for name in names)
    assert not [name for name in names if "/kubelet/" in name or "/apiserver/cel" in name]


def test_an_image_has_nothing_of_what_only_the_others_need() -> None:
    """An image installs the dependencies of its own distribution (`make lock`)."""
    for image, absent in (("operator", ("typer", "rich", "pathspec")), ("console", ("kopf", "kubernetes"))):
        needed = (ROOT / "images" / image / "requirements.lock").read_text()
        for name in (*absent, "cel-expr-python", "kubernetes-validate", "orjson", "trustme", "torch", "numpy"):
            assert f"\n{name}==" not in needed, (image, name)


def test_the_operator_s_image_copies_the_operator_alone() -> None:
    lines = (ROOT / "images" / "operator" / "Dockerfile").read_text().splitlines()
    copied = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    assert copied == [
        "images/operator/requirements.lock",
        "images/build.lock",
        "operator",
        "images/trainer/trainloop",
    ]


def test_the_operator_s_image_has_the_agent_where_pods_that_mount_it_look_for_it() -> None:
    build, final = (ROOT / "images" / "operator" / "Dockerfile").read_text().split("\nFROM ${BASE}\n")
    [made] = re.findall(
        r"^RUN PYTHONPATH=operator python -m trainmaster_operator\.agent\.build (\S+)$", build, re.MULTILINE
    )
    [(copied, to)] = re.findall(r"^COPY --from=build (\S+\.pyz) (\S+)$", final, re.MULTILINE)
    assert copied == made
    assert agent_path(AgentImageVolume("any")) == f"{AGENT_DIRECTORY}{to}"

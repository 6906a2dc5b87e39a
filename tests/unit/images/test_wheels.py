"""The operator's wheel contains the training loop as data and no local cluster (`pyproject.toml`)."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[3]


def wheel_of(project: Path, folder: Path) -> zipfile.ZipFile:
    """Builds the wheel as the image does."""
    return zipfile.ZipFile(next(iter(WheelBuilder(str(project)).build(directory=str(folder), versions=["standard"]))))


def packages(project: Path, folder: Path) -> set[str]:
    """Returns the top-level names in a project's wheel, except its metadata."""
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
    """An image installs only the dependencies of its own distribution (`make lock`)."""
    for image, absent in (("operator", ("typer", "rich", "pathspec")), ("console", ("kopf", "kubernetes"))):
        needed = (ROOT / "images" / image / "requirements.lock").read_text()
        for name in (*absent, "cel-expr-python", "kubernetes-validate", "orjson", "trustme", "torch", "numpy"):
            assert f"\n{name}==" not in needed, (image, name)


@pytest.mark.parametrize(
    ("image", "wheels"),
    [
        ("operator", {"operator": "trainmaster_operator"}),
        ("console", {".": "trainmaster", "operator": "trainmaster_operator"}),
    ],
)
def test_an_image_builds_its_wheels_from_what_it_copies(image: str, wheels: dict[str, str], tmp_path: Path) -> None:
    sources, built = tmp_path / "src", tmp_path / "wheels"
    for line in (ROOT / "images" / image / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            *names, to = line.split()[1:]
            for name in names:
                _copy(ROOT / name, sources / to if len(names) == 1 and to != "./" else sources / Path(name).name)
    for project, package in wheels.items():
        assert packages(sources / project, built / package) == {package}


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)

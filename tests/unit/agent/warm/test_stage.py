"""The stage is copied to where the job's Python finds it, whole (`warm/stage`)."""

from __future__ import annotations

from pathlib import Path

from trainmaster_operator.agent.warm import stage


def test_every_module_of_the_stage_is_copied() -> None:
    modules = {path.stem for path in Path(stage.__path__[0]).glob("*.py")}
    assert modules == {*stage.SOURCES, "sitecustomize"}

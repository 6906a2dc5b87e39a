"""The stage is copied to a place where the job's Python finds it, and answers its orders (`warm/stage`)."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from tests.signer import environment
from trainmaster_operator.agent.loop import Loop
from trainmaster_operator.agent.process.output import Printers
from trainmaster_operator.agent.settings import read_settings
from trainmaster_operator.agent.warm import stage
from trainmaster_operator.agent.warm.warm_process import WarmProcess


def test_every_module_of_the_stage_is_copied() -> None:
    modules = {path.stem for path in Path(stage.__path__[0]).glob("*.py")}
    assert modules == {*stage.SOURCES, "sitecustomize"}


def test_an_answer_to_an_earlier_order_is_none_to_the_next_one(tmp_path: Path) -> None:
    """Ranks announce themselves, and so answer their order, often before the warm process does."""
    loop = Loop()
    settings = read_settings({**environment(), "TRAINMASTER_WORKER": "0", "TRAINMASTER_STATE_DIR": str(tmp_path)})
    warm = WarmProcess(loop, settings, ["python3", "train.py"], cast(Printers, None), [].append)
    first, second = list[str](), list[str]()
    warm.fork({}, str(tmp_path), first.append)
    warm.answer()
    warm.fork({}, str(tmp_path), second.append)
    warm._handle({"type": "forked", "number": 1, "reason": ""})
    assert (first, second) == ([""], [])
    warm._handle({"type": "forked", "number": 2, "reason": "a thread"})
    assert second == ["a thread"] and not warm.busy

"""The modules that a rank reports are a user's input, so only possible names of modules are accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainmaster_operator.agent.warm.learning import MAX_BYTES, read_names
from trainmaster_operator.agent.warm.stage.forkable import is_package_path, packaged_modules
from trainmaster_operator.wire.joining import Modules, module_names, parse_from_follower, parse_from_leader
from trainmaster_operator.wire.limits import MAX_LINE_BYTES, MAX_MODULE_NAME, MAX_MODULES, MAX_MODULES_CHARACTERS
from trainmaster_operator.wire.values import ProtocolError


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('["torch", "torch._dynamo"]', ("torch", "torch._dynamo")),
        ('["a b", "", ".", "a..b", "os; rm", 7, null, ["x"], "\\u00e9t\\u00e9", "fine"]', ("fine",)),
        ('{"names": []}', ()),
        ("[" * 100_000, ()),
        ("not JSON", ()),
        ("[]" + " " * MAX_BYTES, ()),
    ],
)
def test_an_answer_is_read_name_by_name(tmp_path: Path, text: str, names: tuple[str, ...]) -> None:
    (tmp_path / "modules.0").write_text(text)
    assert read_names(str(tmp_path / "modules.0")) == names


def test_no_answer_is_no_names(tmp_path: Path) -> None:
    assert read_names(str(tmp_path / "modules.0")) == ()


def test_a_list_fits_into_a_line_however_long_it_was() -> None:
    for names in (["m" * MAX_MODULE_NAME] * 5_000, ["m"] * 5_000):
        kept = module_names(names)
        assert len(kept) <= MAX_MODULES and sum(map(len, kept)) <= MAX_MODULES_CHARACTERS
        assert len(json.dumps(Modules(kept).to_wire())) < MAX_LINE_BYTES


@pytest.mark.parametrize("parse", [parse_from_follower, parse_from_leader])
def test_both_sides_check_it(parse: Any) -> None:
    assert parse({"type": "modules", "names": ["torch", "../x"]}) == Modules(("torch",))
    with pytest.raises(ProtocolError, match=r"modules\.names: 'torch' is not a list"):
        parse({"type": "modules", "names": "torch"})


def test_only_packages_are_learned() -> None:
    names = packaged_modules()
    assert {"json", "pytest", "email.message"} - set(names) <= {"email.message"}
    assert not [name for name in names if name.partition(".")[0] in ("tests", "trainmaster", "__main__")]
    assert names.index("json") < names.index("pytest")


@pytest.mark.parametrize(
    ("path", "packaged"),
    [
        ("/usr/lib/python3/dist-packages/numpy/__init__.py", True),
        ("/venv/lib/python3.11/site-packages/torch/__init__.py", True),
        (json.__file__, True),
        ("/work/train.py", False),
        ("/work/my-site-packages/train.py", False),
    ],
)
def test_where_a_package_lies(path: str, packaged: bool) -> None:
    assert is_package_path(path) is packaged

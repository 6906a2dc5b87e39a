"""A sentence refuses a command that no shell has split, and options with a word processor's characters."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.api.sentences import sentences

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a whole command line": (
        {"command": ["python train.py --lr 1"]},
        "command[0]: 'python train.py --lr 1' is a whole command line in one word; write each word as an item, such as "
        "[python, train.py, --lr, ...]",
    ),
    "a whole command line with a path": (
        {"command": ["/usr/bin/python3.11 train.py"]},
        "command[0]: '/usr/bin/python3.11 train.py' is a whole command line in one word; write each word as an item, "
        "such as [/usr/bin/python3.11, train.py]",
    ),
    "an empty program": ({"command": [""]}, "command[0]: '' is not a program; use one, such as python"),
    "a program in typographic quotes": (
        {"command": ["“python”", "x.py"]},
        "command[0]: '“python”' has typographic quotes, which YAML takes as text; write ' or \" instead",
    ),
    "an option in typographic quotes": (
        {"args": ["“--lr”", "1"]},
        "args[0]: '“--lr”' has typographic quotes, which YAML takes as text; write ' or \" instead",
    ),
    "an en dash for two hyphens": (
        {"args": ["\u2013lr", "1"]},
        "args[0]: '\u2013lr' begins with a dash that is not a hyphen; write - or -- instead",
    ),
    "an em dash for two hyphens": (
        {"command": ["python", "x.py", "—lr=1"]},
        "command[2]: '—lr=1' begins with a dash that is not a hyphen; write - or -- instead",
    ),
    "full-width hyphens": (
        {"args": ["\uff0d\uff0dlr"]},
        "args[0]: '\uff0d\uff0dlr' begins with a dash that is not a hyphen; write - or -- instead",
    ),
    "a no-break space in an option": (
        {"args": ["--lr\u00a00.1"]},
        r"args[0]: '--lr\xa00.1' has a no-break space (U+00A0) in an option's name; remove it",
    ),
}


@pytest.mark.parametrize(("fields", "sentence"), BAD.values(), ids=BAD.keys())
def test_a_word_that_nobody_meant_is_refused(fields: dict[str, Any], sentence: str) -> None:
    assert sentences({"workers": 1, **fields}) == [f"spec.{sentence}"]


@pytest.mark.parametrize(
    "fields",
    [
        {"command": ["/opt/My Tools/train me"]},
        {"command": ["my program"]},
        {"command": ["bash", "-c", "python train.py --lr 1 && echo “done”"]},
        {"args": ["--lr 0.1 --epochs 3"]},
        {"args": ["--prompt=“Hello,\u00a0world” \u2013 she said"]},
        {"args": ["\u2013 he said", "“quoted”", "\u20135", "“--lr is an option”"]},
        {"args": ["", "-", "--", "-x"]},
    ],
    ids=str,
)
def test_what_somebody_may_mean_is_accepted(fields: dict[str, Any]) -> None:
    assert sentences({"workers": 1, **fields}) == []

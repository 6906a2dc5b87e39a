"""A function's source runs alone; otherwise one sentence explains, before anything is submitted, why it can't."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainmaster.client import InvalidRequest
from trainmaster.client.functions import MODULE, SCRIPT, bundle, function_source

STEPS = 3


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    return wrapper


@decorated
@functools.lru_cache
def fit(path: Path | str, steps: int = 2, *, rates: tuple[float, ...] = (0.1,)) -> list[str]:
    """Writes its arguments."""
    from pathlib import Path

    def line(step: int) -> str:
        return f"{step}: {rates}"

    written: list[str] = [line(step) for step in range(steps)]
    Path(path).write_text("\n".join(written))
    return written


def uses_a_global() -> int:
    return STEPS


def uses_modules() -> None:
    np.zeros(torch.tensor(1))  # type: ignore[name-defined] # noqa: F821


def counts_itself(left: int) -> int:
    return 0 if left == 0 else counts_itself(left - 1)


async def waits() -> None:
    return None


def yields() -> Any:
    yield 1


class Trainer:
    def fit(self) -> None:
        return None


def test_a_bundle_runs_alone_and_decorators_and_annotations_need_nothing(tmp_path: Path) -> None:
    files = bundle(fit, {"path": str(tmp_path / "out"), "steps": 3, "rates": (0.5, 1e-3)})
    assert set(files) == {f"{MODULE}.py", SCRIPT}
    source = files[f"{MODULE}.py"].decode()
    assert source.startswith("from __future__ import annotations\n")
    assert "@" not in source
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    run(tmp_path)
    assert (tmp_path / "out").read_text().splitlines()[-1] == "2: (0.5, 0.001)"


def run(folder: Path) -> None:
    """Runs the bundle as a rank does, with its folder first on Python's path."""
    module: dict[str, Any] = {"__name__": MODULE}
    exec(compile((folder / f"{MODULE}.py").read_text(), "module", "exec"), module)
    script = (folder / SCRIPT).read_text().replace(f"from {MODULE} import fit", "")
    exec(compile(script, "script", "exec"), {**module, "__name__": "__main__"})


def test_values_of_the_function_around_go_along_where_they_are_plain() -> None:
    rate, names = 0.5, ["a", "b"]

    def inner() -> tuple[float, list[str]]:
        return rate, names

    found: dict[str, Any] = {}
    exec(function_source(inner).module(), found)
    assert found["inner"]() == (0.5, ["a", "b"])


def test_what_imports_brings_is_defined_and_a_star_may_bring_anything() -> None:
    text = function_source(uses_modules).module("import torch\nimport numpy as np")
    assert text.index("import numpy as np") < text.index("def uses_modules")
    assert "uses_modules" in function_source(uses_modules).module("from everything import *")


def test_a_function_may_call_itself() -> None:
    found: dict[str, Any] = {}
    exec(function_source(counts_itself).module(), found)
    assert found["counts_itself"](3) == 0


def closes_over_a_lock() -> Callable[[], None]:
    lock = threading.Lock()

    def inner() -> None:
        with lock:
            pass

    return inner


def changes_what_is_around() -> Callable[[], None]:
    count = 0

    def inner() -> None:
        nonlocal count
        count += 1

    return inner


def typed_at_the_prompt() -> Callable[[], None]:
    names: dict[str, Any] = {}
    exec("def at_the_prompt() -> None:\n    return None", names)
    found: Callable[[], None] = names["at_the_prompt"]
    return found


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda: None, "a lambda can't be trained: give a function that def makes"),
        (print, "print is built into Python: give a function that def makes"),
        (Trainer, "Trainer is a class: give a function that def makes"),
        (Trainer().fit, "fit is a method of an object: give a function that def makes"),
        (functools.partial(fit, steps=1), "partial is an object of type partial: give a function that def makes"),
        (waits, "waits is asynchronous or a generator: give a function that trains when it is called"),
        (yields, "yields is asynchronous or a generator: give"),
        (
            uses_a_global,
            "uses_a_global uses STEPS, which nothing in it defines: import modules within it or by imports=,",
        ),
        (uses_modules, "uses_modules uses np, torch, which nothing in it defines"),
        (closes_over_a_lock(), "inner uses lock of the function around it, which is an object of type lock: make it"),
        (changes_what_is_around(), "inner changes variables of the function around it: return values"),
        (typed_at_the_prompt(), "the source of at_the_prompt can't be read: define it in a file or a notebook's cell"),
    ],
    ids=lambda value: value.split(":")[0] if isinstance(value, str) else "",
)
def test_what_cant_run_alone_is_one_sentence(function: Callable[..., Any], sentence: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        bundle(function, {})
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "arguments: fit(path: 'Path | str', steps: 'int' = 2, *, rates: 'tuple[float, ...]' = (0.1,)) -> "),
        ({"path": "x", "epochs": 2}, "arguments: fit("),
        ({"path": Path("x")}, "arguments: path is an object of type PosixPath: give None, True, False, finite"),
        ({"path": "x", "steps": float("nan")}, "arguments: steps is an object of type float: give None"),
        ({"path": "x", "rates": [threading.Lock()]}, "arguments: rates is an object of type list: give None"),
    ],
)
def test_arguments_are_plain_and_fit_the_function(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        bundle(fit, arguments)
    assert str(caught.value).startswith(sentence)


def test_imports_that_are_no_python_are_said_with_their_line() -> None:
    with pytest.raises(InvalidRequest, match=r"^imports is no Python \(line 2: .*\); give import statements$"):
        bundle(counts_itself, {"left": 1}, "import torch\nimport")

"""Reads a function's source, checks that it can run alone, and makes the two files that a job runs.

Nothing is pickled, so a job's code stays readable and runs with the image's own Python and libraries.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import symtable
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from trainmaster.client.errors import InvalidRequest

# Names that exist in every module without a definition.
_GIVEN = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__", "__package__", "__spec__", "__loader__"}


@dataclass(frozen=True)
class FunctionSource:
    """FunctionSource is a function's text without decorators, and the values that it uses of enclosing functions."""

    name: str
    text: str
    enclosed: Mapping[str, Any] = field(default_factory=dict)

    def module(self, imports: str = "") -> str:
        """Returns the text of a module with `imports` and the function. Raises InvalidRequest for undefined names."""
        try:
            ast.parse(imports)
        except SyntaxError as error:
            problem = f"line {error.lineno}: {error.msg}"
            raise InvalidRequest(f"imports is no Python ({problem}); give import statements") from error
        values = "".join(f"{name} = {value!r}\n" for name, value in sorted(self.enclosed.items()))
        # Annotations may use names that exist only in the notebook, so they are never evaluated.
        parts = ("from __future__ import annotations\n", imports.strip(), values, self.text)
        text = "\n".join(part for part in parts if part)
        unknown = [] if _imports_all(imports) else sorted(_undefined(text))
        if unknown:
            raise InvalidRequest(
                f"{self.name} uses {', '.join(unknown)}, which nothing in it defines: import modules within it or by "
                "imports=, define functions within it, and pass values as arguments"
            )
        return text


def function_source(function: Callable[..., Any]) -> FunctionSource:
    """Returns the source of a plain function. Raises InvalidRequest if it can't run alone."""
    wrapped = inspect.unwrap(function)
    name = getattr(wrapped, "__name__", type(wrapped).__name__)
    if not inspect.isfunction(wrapped):
        raise InvalidRequest(f"{name} is {_what(wrapped)}: give a function that def makes")
    if name == "<lambda>":
        raise InvalidRequest("a lambda can't be trained: give a function that def makes")
    if (
        inspect.iscoroutinefunction(wrapped)
        or inspect.isgeneratorfunction(wrapped)
        or inspect.isasyncgenfunction(wrapped)
    ):
        raise InvalidRequest(f"{name} is asynchronous or a generator: give a function that trains when it is called")
    enclosed = _enclosed(wrapped, name)
    try:
        text = textwrap.dedent(inspect.getsource(wrapped))
    except (OSError, TypeError) as error:
        raise InvalidRequest(
            f"the source of {name} can't be read: define it in a file or a notebook's cell, not at Python's prompt"
        ) from error
    definition: ast.stmt | None = None
    with suppress(SyntaxError, ValueError):
        [definition] = ast.parse(text).body
    if not isinstance(definition, ast.FunctionDef):
        raise InvalidRequest(f"the source of {name} isn't a function by itself: define it by a def of its own")
    if any(isinstance(node, ast.Nonlocal) and set(node.names) & set(enclosed) for node in ast.walk(definition)):
        raise InvalidRequest(
            f"{name} changes variables of the function around it: return values, or define them within"
        )
    # Decorators, and the names that they use, belong to the calling program, so the text begins at `def`.
    lines = text.splitlines(keepends=True)[definition.lineno - 1 :]
    return FunctionSource(name, "".join(lines), enclosed)


def _enclosed(function: Any, name: str) -> dict[str, Any]:
    """Returns the variables of enclosing functions that a function uses. Their values become part of the text."""
    found = {}
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError as error:
            raise InvalidRequest(f"{name} uses {variable} before it has a value; pass it as an argument") from error
        if value is function:
            continue
        if not is_literal(value):
            raise InvalidRequest(
                f"{name} uses {variable} of the function around it, which is {_what(value)}: make it within {name}, or "
                "pass plain values as arguments"
            )
        found[variable] = value
    return found


def _undefined(text: str) -> Iterator[str]:
    """Yields each undefined name that a module's functions use, apart from annotations."""
    # The text's import from __future__ keeps annotations out of the table.
    module = symtable.symtable(text, "function", "exec")
    own = {symbol.get_name() for symbol in module.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    own |= {symbol.get_name() for symbol in module.get_symbols() if symbol.is_namespace()}
    tables, used = [module], set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_declared_global() and symbol.is_assigned():
                own.add(symbol.get_name())
            if symbol.is_referenced() and (symbol.is_global() or table is module):
                used.add(symbol.get_name())
    yield from used - own - _GIVEN


def _imports_all(imports: str) -> bool:
    """Returns whether the imported names are unknown (`from x import *`)."""
    nodes = ast.walk(ast.parse(imports))
    return any(isinstance(node, ast.ImportFrom) and any(name.name == "*" for name in node.names) for node in nodes)


def _what(value: object) -> str:
    for check, what in (
        (inspect.isclass, "a class"),
        (inspect.isbuiltin, "built into Python"),
        (inspect.ismethod, "a method of an object"),
        (inspect.isfunction, "a function"),
        (inspect.ismodule, "a module"),
    ):
        if check(value):
            return what
    return f"an object of type {type(value).__name__}"


_MAX_DEPTH = 50


def is_literal(value: object, depth: int = 0) -> bool:
    """Returns whether evaluating a value's `repr` gives the value. The `repr` of subclasses may differ."""
    kind = type(value)
    if value is None or kind in (bool, int, str, bytes):
        return True
    if kind is float:
        return math.isfinite(value)  # type: ignore[arg-type]
    if depth >= _MAX_DEPTH:
        return False
    if kind is dict:
        return all(is_literal(part, depth + 1) for pair in value.items() for part in pair)  # type: ignore[attr-defined]
    return kind in (list, tuple) and all(is_literal(part, depth + 1) for part in value)  # type: ignore[attr-defined]


def check_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raises InvalidRequest if the function doesn't accept an argument, or if a value can't be written as text."""
    name = getattr(function, "__name__", "the function")
    for argument, value in arguments.items():
        if not is_literal(value):
            raise InvalidRequest(
                f"arguments: {argument} is an object of type {type(value).__name__}: give None, True, False, finite "
                f"numbers, text, and lists and mappings of them, and make the rest within {name}"
            )
    described = inspect.signature(function)
    try:
        described.bind(**arguments)
    except TypeError as error:
        raise InvalidRequest(f"arguments: {name}{described} can't be called with them: {error}") from error


MODULE = "training_function"
SCRIPT = "run_function.py"

_SCRIPT = '''"""Trainmaster runs {name} with the arguments that train() was given."""

from {module} import {name}

ARGUMENTS = {arguments}

# Processes that a rank starts, such as those of a DataLoader, may import this file.
if __name__ == "__main__":
    {name}(**ARGUMENTS)
'''


def bundle(function: Callable[..., Any], arguments: Mapping[str, Any], imports: str = "") -> dict[str, bytes]:
    """Returns a job's files by name, in UTF-8. Raises InvalidRequest if the function can't run alone."""
    source = function_source(function)
    check_arguments(function, arguments)
    script = _SCRIPT.format(name=source.name, module=MODULE, arguments=repr(dict(arguments)))
    return {f"{MODULE}.py": source.module(imports).encode(), SCRIPT: script.encode()}

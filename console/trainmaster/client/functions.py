"""`train` turns a function into a job. It sends only the function's source and arguments, as two files.

Nothing is pickled, so a job's code stays readable and runs with the image's own Python and libraries.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import re
import secrets
import symtable
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

from trainmaster.client.code import archive_files, submit_with_code
from trainmaster.client.errors import ClientError, InvalidRequest
from trainmaster.client.job import TrainingJob, require
from trainmaster.client.jobs import JobClient
from trainmaster.client.metrics import JobMetrics
from trainmaster_operator.api.v1alpha1 import API_VERSION, DEFAULT_IMAGE, KIND, JobStatus

MODULE = "training_function"
SCRIPT = "run_function.py"
# A job's name begins with at most this many characters of the function's name.
_MAX_NAME = 40
# Names that exist in every module without a definition.
_GIVEN = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__", "__package__", "__spec__", "__loader__"}
# Maximum nesting of an argument's value.
_MAX_DEPTH = 50
_SCRIPT = '''"""Trainmaster runs {name} with the arguments that train() was given."""

from {module} import {name}

ARGUMENTS = {arguments}

# Processes that a rank starts, such as those of a DataLoader, may import this file.
if __name__ == "__main__":
    {name}(**ARGUMENTS)
'''


class TrainOptions(TypedDict, total=False):
    """TrainOptions contains the function's arguments and the settings of its job."""

    # Arguments by name: None, True, False, finite numbers, text, and lists and mappings of these.
    arguments: Mapping[str, Any]
    workers: int
    # GPUs per worker.
    gpus: int
    image: str
    # Statements that precede the function: "import torch\nfrom pathlib import Path".
    imports: str
    # Which printed lines show progress: a regular expression, or a framework's preset (docs/progress.md).
    progress_pattern: str
    progress_preset: str
    # The job's name. By default, it consists of the function's name and a few random letters.
    name: str
    # Further fields of the job's spec; they override the other options.
    spec: Mapping[str, Any]


def train(function: Callable[..., Any], *, jobs: JobClient | None = None, **options: Unpack[TrainOptions]) -> JobHandle:
    """Submits a job whose ranks call the function, each with the same arguments.

    Only the source is sent, so the function must import its modules and receive its values as arguments. The default
    for `jobs` is a client for the current context's namespace. If the function can't run alone, raises InvalidRequest
    before anything is submitted. `JobClient.submit` can raise further errors.

    >>> def fit(steps: int) -> None:
    ...     import torch.distributed as dist
    ...
    ...     dist.init_process_group("gloo")
    ...     print(f"rank {dist.get_rank()} of {dist.get_world_size()} does {steps} steps")
    ...     dist.destroy_process_group()
    >>> job = train(fit, workers=2, arguments={"steps": 10}, name="fit", spec={"processesPerWorker": 1})
    >>> job.wait(timeout=120).phase
    'Succeeded'
    >>> [line for line in job.logs(worker=1) if "of 2" in line]
    ['[rank 1]: rank 1 of 2 does 10 steps']
    >>> job.delete()
    """
    _check(jobs, options)
    files = bundle(function, options.get("arguments", {}), options.get("imports", ""))
    name = options.get("name") or _name(function)
    spec: dict[str, Any] = {"image": options.get("image", DEFAULT_IMAGE), "command": ["python3", SCRIPT]}
    spec["workers"] = options.get("workers", 1)
    if options.get("gpus"):
        spec["resources"] = {"gpus": options["gpus"]}
    rules = {"pattern": options.get("progress_pattern"), "preset": options.get("progress_preset")}
    if any(rules.values()):
        spec["progress"] = {field: value for field, value in rules.items() if value}
    spec |= options.get("spec", {})
    manifest = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}
    jobs = jobs or JobClient()
    return JobHandle(jobs, submit_with_code(jobs, manifest, archive_files(files)).name)


def _check(jobs: object, options: Mapping[str, Any]) -> None:
    known = TrainOptions.__annotations__
    if unknown := [option for option in options if option not in known]:
        raise InvalidRequest(f"{', '.join(unknown)}: train has no such option; it has {', '.join(known)}")
    if jobs is not None:
        require("jobs", jobs, JobClient, "a JobClient")
    require("arguments", options.get("arguments", {}), Mapping, "them by name, such as {'steps': 10}")
    require("imports", options.get("imports", ""), str, "import statements as text, such as 'import torch'")
    require("spec", options.get("spec", {}), Mapping, "more fields of the job's spec as a mapping")


def _name(function: Callable[..., Any]) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", getattr(function, "__name__", "").lower()).strip("-")[:_MAX_NAME].rstrip("-")
    stem = words if words[:1].isalpha() else f"train-{words}".rstrip("-")
    return f"{stem}-{secrets.token_hex(3)}"


@dataclass(eq=False, repr=False)
class JobHandle:
    """JobHandle provides `JobClient`'s methods for one job. Notebooks show it as a table."""

    jobs: JobClient
    name: str

    @property
    def job(self) -> TrainingJob:
        """Returns the job's current state. Raises JobNotFound."""
        return self.jobs.get(self.name)

    @property
    def status(self) -> JobStatus:
        """Returns the job's current status. Raises JobNotFound."""
        return self.job.status

    def wait(self, timeout: float | None = None) -> TrainingJob:
        """Waits until the job has ended, and returns it. Raises WaitTimeout."""
        return self.jobs.wait(self.name, timeout=timeout)

    def watch(self) -> Iterator[TrainingJob]:
        """Yields the job's state, then each change, until the job is deleted."""
        return self.jobs.watch(self.name)

    def logs(self, worker: int | None = None, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """Yields the output of one worker line by line, or of all workers sorted by time. Raises JobNotFound."""
        return self.jobs.logs(self.name, worker, follow=follow, tail=tail)

    def metrics(self) -> JobMetrics:
        """Returns each rank's current figures."""
        return self.jobs.metrics(self.name)

    def restart(self) -> TrainingJob:
        """Restarts all ranks in their pods, from a checkpoint."""
        return self.jobs.restart(self.name)

    def delete(self) -> None:
        """Deletes the job and everything that belongs to it."""
        self.jobs.delete(self.name)

    def __repr__(self) -> str:
        return f"JobHandle({self.name!r}, namespace={self.jobs.namespace!r})"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        try:
            return self.job._repr_mimebundle_(include, exclude)
        except ClientError as error:
            return {"text/plain": str(error)}


def bundle(function: Callable[..., Any], arguments: Mapping[str, Any], imports: str = "") -> dict[str, bytes]:
    """Returns a job's files by name, in UTF-8. Raises InvalidRequest if the function can't run alone."""
    source = function_source(function)
    check_arguments(function, arguments)
    script = _SCRIPT.format(name=source.name, module=MODULE, arguments=repr(dict(arguments)))
    return {f"{MODULE}.py": source.module(imports).encode(), SCRIPT: script.encode()}


@dataclass(frozen=True)
class FunctionSource:
    """FunctionSource is a function's text without decorators, and the values that it uses from enclosing functions."""

    name: str
    text: str
    enclosed: Mapping[str, Any] = field(default_factory=dict)

    def module(self, imports: str = "") -> str:
        """Returns the text of a module with `imports` and the function. Raises InvalidRequest for undefined names."""
        try:
            tree = ast.parse(imports)
        except SyntaxError as error:
            problem = f"line {error.lineno}: {error.msg}"
            raise InvalidRequest(f"imports is no Python ({problem}); give import statements") from error
        values = "".join(f"{name} = {value!r}\n" for name, value in sorted(self.enclosed.items()))
        # Annotations may use names that exist only in the notebook, so they are never evaluated.
        parts = ("from __future__ import annotations\n", imports.strip(), values, self.text)
        text = "\n".join(part for part in parts if part)
        # After `from x import *`, the imported names are unknown.
        imported = [name.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names]
        if "*" not in imported and (unknown := sorted(_undefined(text))):
            raise InvalidRequest(
                f"{self.name} uses {', '.join(unknown)}, which nothing in it defines: import modules within it or by "
                "imports=, define functions within it, and pass values as arguments"
            )
        return text


def function_source(function: Callable[..., Any]) -> FunctionSource:
    """Returns the source of a plain function. Raises InvalidRequest if the function can't run alone."""
    wrapped = inspect.unwrap(function)
    name = getattr(wrapped, "__name__", type(wrapped).__name__)
    if not inspect.isfunction(wrapped):
        raise InvalidRequest(f"{name} is {_what(wrapped)}: give a function that def makes")
    if name == "<lambda>":
        raise InvalidRequest("a lambda can't be trained: give a function that def makes")
    others = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(check(wrapped) for check in others):
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
    """Returns the variables of enclosing functions that a function uses, and their values."""
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
    # The text imports `annotations` from __future__, so the symbol table contains no annotations.
    module = symtable.symtable(text, "function", "exec")
    symbols = module.get_symbols()
    own = {one.get_name() for one in symbols if one.is_assigned() or one.is_imported() or one.is_namespace()}
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


def is_literal(value: object, depth: int = 0) -> bool:
    """Returns whether evaluating a value's `repr` gives the value. False for subclasses, whose `repr` may differ."""
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

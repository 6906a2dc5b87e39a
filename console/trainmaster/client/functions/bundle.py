"""A function's bundle is two files: a module with its source, and the script that calls it with its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainmaster.client.functions.literals import check_arguments
from trainmaster.client.functions.source import function_source

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
    """Returns the files by name, in UTF-8. Raises InvalidRequest for what can't run alone."""
    source = function_source(function)
    check_arguments(function, arguments)
    script = _SCRIPT.format(name=source.name, module=MODULE, arguments=repr(dict(arguments)))
    return {f"{MODULE}.py": source.module(imports).encode(), SCRIPT: script.encode()}

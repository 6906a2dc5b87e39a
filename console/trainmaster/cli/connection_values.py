"""Looks up values of options and names of jobs for tab completion.

If an error occurs, nothing is completed, because a shell can't show a message. The command itself reports the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import typer

_completed: list[str] = []


def complete_path(incomplete: str) -> list[str]:
    """Returns no completions, so that the shell completes paths itself."""
    _completed.append(incomplete)
    return []


def path_completed() -> bool:
    """Returns whether the completed value is a path."""
    return bool(_completed)


def beginning(read: Callable[[], Iterable[str]], incomplete: str) -> list[str]:
    """Returns the names that begin with the text, or an empty list if the names can't be read."""
    from trainmaster.client import ClientError
    from trainmaster_operator.api.printable import printable
    from trainmaster_operator.kubeconfig import KubeconfigError

    try:
        return [printable(name) for name in read() if name.startswith(incomplete)]
    except (ClientError, KubeconfigError, typer.BadParameter):
        return []


def kubeconfig_names(kubeconfig: str | None, kind: str) -> Iterable[str]:
    """Returns the names of the kubeconfig's contexts, clusters or users. Raises KubeconfigError."""
    from trainmaster_operator.kubeconfig.selection import merged_files

    merged = merged_files(kubeconfig)
    return (
        () if merged is None else {"context": merged.contexts, "cluster": merged.clusters, "user": merged.users}[kind]
    )

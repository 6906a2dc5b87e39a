"""A checkpoint has the whole configuration that it was made with, as `config.yaml`."""

from __future__ import annotations

from typing import Any

import yaml

from trainloop.checkpoints.storage import CONFIGURATION
from trainloop.versions.catalog import CommandError, Version


def configuration(version: Version) -> dict[str, Any] | None:
    """Returns the settings that a checkpoint was made with, None where it has none: older ones haven't.

    Raises CommandError where the file isn't such a document.
    """
    file = version.path / CONFIGURATION
    if CONFIGURATION not in version.files or not file.is_file():
        return None
    try:
        document = yaml.load(file.read_text("utf-8"), _WithoutAliases)
    except OSError as error:
        raise CommandError(f"{file} can't be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CommandError(f"{file} is no configuration: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(document, dict):
        raise CommandError(f"{file} is no configuration: it has no fields")
    return document


def setting(document: Any, *path: str) -> Any:
    """Returns a value of a configuration, None where it has no such field."""
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document


class _WithoutAliases(yaml.SafeLoader):
    """Refuses aliases, which the loop doesn't write, and by which a small file becomes an endless document."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias")
        return super().compose_node(parent, index)

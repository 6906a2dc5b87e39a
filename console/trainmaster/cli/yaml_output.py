"""YAML is written so that what others wrote can't command the terminal: control characters are escapes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from trainmaster.cli.yaml_scalars import plain_scalar
from trainmaster_operator.api.printable import UNSAFE, yaml_escapes


def yaml_text(documents: Iterable[Any]) -> str:
    """Returns the documents as YAML, with their fields in their order."""
    return yaml_escapes(yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True))


class _Dumper(yaml.SafeDumper):
    """The dumper double-quotes strings that hold control characters, because YAML knows escapes only there."""

    def ignore_aliases(self, data: Any) -> bool:
        """Writes out what stands in several places, as people do."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if UNSAFE.search(text) else "|" if "\n" in text else None
    if style is None and plain_scalar(text) != text:
        # PyYAML takes more words for text than kubectl does, to which y and n are true and false.
        style = "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)

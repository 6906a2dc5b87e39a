"""Tables are columns of text, as kubectl's are: a name is never cut, whatever the terminal's width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from trainmaster_operator.api.printable import one_line

# What kubectl's tables have between two columns is three; with two, most of ours fit into 80 columns.
GAP = "  "


def columns(
    names: Sequence[str], rows: Sequence[Sequence[str]], styles: Mapping[int, Mapping[str, str]] | None = None
) -> Text:
    """Returns a table; `styles` says for a column's position how which of its cells are drawn."""
    lines = [list(names), *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    text = Text(no_wrap=True, overflow="ignore")
    for number, line in enumerate(lines):
        text.append("\n" if number else "")
        filled = max((position for position, cell in enumerate(line) if cell), default=0)
        for position, (cell, width) in enumerate(zip(line, widths, strict=True)):
            style = (styles or {}).get(position, {}).get(cell, "") if number else ""
            text.append(cell, style)
            if position < filled:
                text.append(" " * (width - len(cell)) + GAP)
    return text

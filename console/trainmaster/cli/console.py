"""The console prints rich's tables and live pictures, and makes untrusted texts safe.

It ignores markup and emoji names in texts, and prints no control characters except its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from trainmaster_operator.api.printable import one_line, printable

# Width of a line that doesn't go to a terminal, in columns.
UNLIMITED = 1_000_000
# kubectl's tables have three blanks between columns; with two, most of ours fit into 80 columns.
GAP = "  "


class SafeConsole(Console):
    """SafeConsole is rich's console for untrusted texts. It prints only the control sequences that rich itself made."""

    def __init__(self) -> None:
        super().__init__(markup=False, emoji=False, highlight=False)
        if not self.is_terminal:
            # Programs that read a pipe or a file need whole names and one row per line.
            self.width = UNLIMITED

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints anything. In a pipe or a file, omits the blanks that pad tables to their width."""
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        lines = captured.get().split("\n")
        super().print("\n".join(line.rstrip(" ") for line in lines), end="", soft_wrap=True)

    def render_str(self, text: str, **options: Any) -> Text:
        """Returns a string in the form that will be shown, so that columns get the right width."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


def padded(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Returns a row of a table that is printed row by row, like kubectl's."""
    return "   ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def columns(
    rows: Sequence[Mapping[str, str]], names: Sequence[str] = (), styles: Mapping[str, Mapping[str, str]] | None = None
) -> Text:
    """Returns a table like kubectl's with the named columns (default: all). No cell is cut, even in a narrow terminal.

    `styles` maps a column's name to the style of each possible cell.
    """
    names = names or list(rows[0])
    lines = [list(names), *([one_line(row[name]) for name in names] for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    text = Text(no_wrap=True, overflow="ignore")
    for number, line in enumerate(lines):
        text.append("\n" if number else "")
        filled = max((position for position, cell in enumerate(line) if cell), default=0)
        for position, (cell, width) in enumerate(zip(line, widths, strict=True)):
            style = (styles or {}).get(names[position], {}).get(cell, "") if number else ""
            text.append(cell, style)
            if position < filled:
                text.append(" " * (width - len(cell)) + GAP)
    return text

"""The protocol's limits stand once in the code, and docs/protocol.md shows the same."""

from __future__ import annotations

import re
from pathlib import Path

from trainmaster.wire import limits

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"


def test_the_page_shows_every_limit_as_it_is() -> None:
    table = PAGE.read_text().partition("\n## Limits\n")[2]
    shown = {name: int(value.replace(",", "")) for value, name in re.findall(r"\| ([\d,]+) \| `(\w+)` \|", table)}
    assert shown == {name: value for name, value in vars(limits).items() if name.startswith("MAX_")}

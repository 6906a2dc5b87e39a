"""The code defines each fact of the protocol once, and docs/protocol.md shows the same values."""

from __future__ import annotations

import re
from pathlib import Path

from trainmaster_operator.wire import limits, names
from trainmaster_operator.wire.assignment import FIRST_PORT, LAST_PORT, PORTS
from trainmaster_operator.wire.ranks import SECTIONS
from trainmaster_operator.wire.report import EXIT_BY_REASON, EXIT_DIVERGED, FAILURE_REASONS, STATES

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"


def test_the_page_shows_every_limit_as_it_is() -> None:
    table = PAGE.read_text().partition("\n## Limits\n")[2]
    shown = {name: int(value.replace(",", "")) for value, name in re.findall(r"\| ([\d,]+) \| `(\w+)` \|", table)}
    assert shown == {name: value for name, value in vars(limits).items() if name.startswith("MAX_")}


def test_the_page_names_every_reason_state_section_and_code() -> None:
    page = " ".join(PAGE.read_text().split())
    for word in (*FAILURE_REASONS, *STATES, *SECTIONS):
        assert f"`{word}`" in page
    for reason, code in EXIT_BY_REASON.items():
        assert f"{code} {reason}" in page
    assert f"exit code {EXIT_DIVERGED}" in page
    assert f"one of {PORTS:,} ports from {FIRST_PORT} to {LAST_PORT}" in page


def test_the_page_names_every_label_annotation_header_and_variable() -> None:
    page = PAGE.read_text()
    for name, value in vars(names).items():
        if name.endswith(("_LABEL", "_ANNOTATION", "_HEADER", "_VARIABLE", "_PORT")):
            assert str(value) in page, name

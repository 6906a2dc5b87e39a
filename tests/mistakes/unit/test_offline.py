"""`trainmaster validate` answers each manifest of tests/mistakes as its entry expects."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mistakes.agreement import offline_differences
from tests.mistakes.entries import Entry, all_entries
from tests.mistakes.offline import validate

ENTRIES = all_entries()


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.identifier for entry in ENTRIES])
def test_validate_answers_as_expected(entry: Entry, tmp_path: Path) -> None:
    assert list(offline_differences(entry, validate(entry, tmp_path))) == []

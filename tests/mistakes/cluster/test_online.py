"""kubectl, the API server and the operator answer each manifest of tests/mistakes as its entry expects.

The first test asks about all manifests at once.
"""

from __future__ import annotations

import pytest

from tests.mistakes.agreement import online_differences
from tests.mistakes.entries import Entry, all_entries
from tests.mistakes.online import Answer

ENTRIES = all_entries()

# The first test waits for all answers, which takes a minute on two otherwise idle cores.
pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.identifier for entry in ENTRIES])
def test_a_cluster_answers_as_expected(entry: Entry, answered: dict[str, Answer]) -> None:
    assert list(online_differences(entry, answered[entry.name])) == []

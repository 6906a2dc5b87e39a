"""All manifests of tests/mistakes share one cluster, which answers each of them."""

from __future__ import annotations

import pytest

from tests.mistakes.entries import all_entries
from tests.mistakes.online import Answer, answers, opened_cluster


@pytest.fixture(scope="session")
def answered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """Returns the cluster's answers by the entries' names."""
    with opened_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        return answers(cluster, all_entries(), tmp_path_factory.mktemp("manifests"))

"""docs/migrating.md shows exactly what `trainmaster convert` makes of its manifests."""

from __future__ import annotations

import pytest

from tests.unit.docs.snippets import blocks
from trainmaster.converting import convert


@pytest.mark.parametrize("kind", ["PyTorchJob", "TrainJob"])
def test_the_job_that_the_page_shows_is_what_convert_makes(kind: str) -> None:
    theirs, ours = (block.objects()[0] for block in blocks("migrating.md", "yaml") if kind in block.heading)
    [conversion] = convert([theirs])
    assert conversion.documents == (ours,)
    assert conversion.notes is not None
    assert [note for note in conversion.notes if note.answer.outcome == "refused"] == []

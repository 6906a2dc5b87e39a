"""The jobs on the pages are valid: they are parsed, their pod templates merged, and their children rendered."""

from __future__ import annotations

import pytest

from tests.unit.docs.snippets import OURS, ROOT, Block, blocks, slugs
from trainmaster.cli.convert import OTHER_JOBS
from trainmaster_operator.api.parsing import parse_job
from trainmaster_operator.api.v1alpha1 import JobIdentity
from trainmaster_operator.rendering import Settings, first_assignment, render

SNIPPETS = [block for page in ("pods.md", "migrating.md", "training.md") for block in blocks(page, "yaml")]
PARTS = [block for block in SNIPPETS if not block.text.startswith("apiVersion:")]


@pytest.mark.parametrize("block", SNIPPETS, ids=lambda block: block.name)
def test_a_job_that_a_page_shows_is_valid_and_renders(block: Block) -> None:
    for document in block.objects():
        assert {"apiVersion", "kind", "metadata"} <= set(document)
        if document["kind"] == OURS:
            job = parse_job(document)
            identity = JobIdentity("default", job.name, "00000000-0000-0000-0000-000000000000")
            assert render(identity, job.spec, first_assignment(identity, job.spec), settings=Settings())


def test_most_snippets_show_a_part_of_a_spec() -> None:
    """This shows that the test above has parsed them as jobs, and hasn't skipped them."""
    assert len(PARTS) > 15
    assert all(set(part.objects()[0]["spec"]) > {"image", "command", "workers"} for part in PARTS)


@pytest.mark.parametrize("kind", ["PyTorchJob", "TrainJob"])
def test_a_job_of_another_operator_stands_beside_ours_of_the_same_name_and_size(kind: str) -> None:
    theirs, ours = (block.objects()[0] for block in blocks("migrating.md", "yaml") if kind in block.heading)
    assert (theirs["kind"], ours["kind"]) == (kind, OURS)
    assert theirs["metadata"]["name"] == ours["metadata"]["name"]
    spec = theirs["spec"]
    pods = (
        sum(replicas["replicas"] for replicas in spec["pytorchReplicaSpecs"].values())
        if kind == "PyTorchJob"
        else spec["trainer"]["numNodes"]
    )
    assert ours["spec"]["workers"] == pods


def test_validate_names_only_sections_that_the_page_has() -> None:
    assert {job.section for job in OTHER_JOBS} <= slugs(ROOT / "docs" / "migrating.md")

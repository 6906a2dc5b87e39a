"""`recovery`: the parts of a recovery are named alike in the protocol, in a job's status and in the guide."""

from __future__ import annotations

import re
from pathlib import Path

from trainmaster_operator.api.v1alpha1 import RecoveryTimes
from trainmaster_operator.wire.recovery import Recovery

JOBS = Path(__file__).resolve().parents[3] / "docs" / "jobs.md"


def test_a_status_has_the_protocols_parts_in_their_order() -> None:
    total, _repeated, *parts = RecoveryTimes.model_fields
    assert (total, tuple(parts)) == ("seconds", Recovery._fields)
    sent = Recovery(**dict.fromkeys(Recovery._fields, 1.0)).to_wire()
    assert list(sent) == [RecoveryTimes.model_fields[part].alias for part in parts]


def test_the_guide_explains_each_part() -> None:
    _, _, table = JOBS.read_text().partition("| part | until | what makes it long |\n")
    rows, _, _ = table.partition("\n\n")
    explained = re.findall(r"^\| `([a-z ]+)` \|", rows, re.MULTILINE)
    assert explained == [part.replace("_", " ") for part in Recovery._fields]

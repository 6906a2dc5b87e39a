"""The chart gives the operator neither more nor fewer rights than the cluster tests' operators have asked for.

    TRAINMASTER_TEST_RIGHTS=FOLDER pytest tests/cluster && python -m tests.rights FOLDER

`tests/run.sh` does so after all cluster tests: only the whole suite asks for everything. The operators run as service
accounts with the chart's rights (`tests/cluster/operator_account.py`), so most of what is missing fails a test before;
a right that is given and never used shows here only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.operator_account import VALUES, rendered

# Given although no test asks for it, and why.
EXCEPTIONS: Mapping[tuple[str, str, str], str] = {
    ("trainmaster.dev", "distributedtrainingjobs/finalizers", "update"): (
        "the admission plugin OwnerReferencesPermissionEnforcement asks for it when a child is made; it is no request"
    ),
}


@dataclass(frozen=True, order=True)
class Right:
    """A right allows a verb on a resource; on the object of that `name` only, where one is given."""

    group: str
    resource: str
    verb: str
    name: str = ""

    def __str__(self) -> str:
        what = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {what}" + (f" {self.name}" if self.name else "")

    def covers(self, asked: Right) -> bool:
        same = (self.group, self.resource, self.verb) == (asked.group, asked.resource, asked.verb)
        return same and self.name in ("", asked.name)


def given(roles: Collection[Mapping[str, Any]]) -> Iterator[Right]:
    """Yields the rights that roles give."""
    for role in roles:
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        for name in rule.get("resourceNames", [""]):
                            yield Right(group, resource, verb, name)


def asked_for(folder: Path) -> set[Right]:
    """Returns the rights that the tests' processes recorded."""
    lines = (line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines())
    return {Right(*json.loads(line)) for line in lines}


def problems(rights: Collection[Right], asked: Collection[Right]) -> list[str]:
    """Returns a sentence for each right that is missing, or given for nothing."""
    missing = [one for one in asked if not any(right.covers(one) for right in rights)]
    unused = [
        right
        for right in rights
        if not any(right.covers(one) for one in asked) and (right.group, right.resource, right.verb) not in EXCEPTIONS
    ]
    return [
        *(f"The chart doesn't give the operator what it asks for: {one}." for one in sorted(missing)),
        *(f"The chart gives the operator what no test makes it ask for: {one}." for one in sorted(unused)),
    ]


def main(arguments: list[str]) -> int:
    """Returns the exit code: 1 where a right is missing or unused."""
    (folder,) = arguments
    roles = [one for one in rendered(VALUES, "rbac.yaml") if one["kind"] in ("Role", "ClusterRole")]
    found = problems(list(given(roles)), asked_for(Path(folder)))
    print("\n".join(found) or "The operator asked for all that the chart gives it, and for nothing else.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

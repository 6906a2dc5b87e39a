"""`python -m tests.why` prints the table of situations and answers; `python -m tests.why NAME` prints one answer in
full.
"""

from __future__ import annotations

import json
import sys

from tests.why.answers import answer
from tests.why.situations import all_situations


def main(names: list[str]) -> None:
    """Prints the table."""
    answers = [answer(one) for one in all_situations() if not names or one.name in names or one.job in names]
    for number, one in enumerate(answers, 1):
        verdict = "right" if one.is_right else "WRONG"
        print(f"{number:3} {verdict}  {one.expected.theme}: {one.expected.name}")
        print(f"      a person:  [{one.expected.cause}] {one.expected.person}")
        print(f"      answered:  [{one.diagnosis.cause}] {one.diagnosis.sentence}")
        if names:
            print(json.dumps(one.diagnosis.to_json(), indent=2))
    right = sum(one.is_right for one in answers)
    print(f"{right} of {len(answers)} right")


if __name__ == "__main__":
    main(sys.argv[1:])

"""`make mistakes` asks both sides about every manifest of this package and prints the table."""

from __future__ import annotations

import argparse
import io
import logging
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from tests.mistakes.agreement import offline_differences, online_differences
from tests.mistakes.entries import all_entries
from tests.mistakes.offline import validate
from tests.mistakes.online import answers, opened_cluster
from tests.mistakes.table import table


def main() -> int:
    """Prints the table and returns 1 if an answer isn't the expected one."""
    parser = argparse.ArgumentParser(
        prog="make mistakes",
        description="Shows what people get wrong in a job's manifest, and the sentence that each mistake gets from "
        "`trainmaster validate` and from a cluster. Starts an embedded cluster for the second half (a minute); "
        "KUBEBUILDER_ASSETS, a folder with etcd and kube-apiserver, makes it a real API server.",
    )
    parser.add_argument("--offline", action="store_true", help="ask only `trainmaster validate`, without a cluster")
    parser.add_argument("words", nargs="*", help="only manifests whose theme or name has one of these words")
    options = parser.parse_args()
    entries = [
        entry
        for entry in all_entries()
        if not options.words or any(word in f"{entry.theme} {entry.name}" for word in options.words)
    ]
    # The cluster's controllers warn when a namespace is deleted.
    logging.disable(logging.WARNING)
    log = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="trainmaster-mistakes-") as folder:
        print(f"Asking validate about {len(entries)} manifests ...", file=sys.stderr)
        verdicts = {entry.name: validate(entry, Path(folder)) for entry in entries}
        answered = None
        if not options.offline:
            print("Asking a cluster ...", file=sys.stderr)
            with redirect_stdout(log), opened_cluster(Path(folder)) as cluster:
                answered = answers(cluster, entries, Path(folder))
    wrong = any(
        [*offline_differences(entry, verdicts[entry.name])]
        or (answered is not None and [*online_differences(entry, answered[entry.name])])
        for entry in entries
    )
    if wrong:
        print(log.getvalue(), file=sys.stderr)
    print(table(entries, verdicts, answered), end="")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""`trainmaster crd` prints the custom resource's definition."""

from __future__ import annotations

from trainmaster.cli.program import Part
from trainmaster.cli.terminal import write

app = Part()


@app.command()
def crd() -> None:
    """Print the CustomResourceDefinition.

    To install it: trainmaster crd | kubectl apply --server-side -f -
    """
    from trainmaster_operator.api.crd import crd_yaml

    write(crd_yaml())

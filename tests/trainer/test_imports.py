"""The loop's parts receive what they use: imports have no circles, and no part takes the whole trainer."""

from __future__ import annotations

import grimp

#: Modules that make a trainer, or are one: a run, and the trainer that continues without lost ranks.
ENTRY_POINTS = {"trainloop.run", "trainloop.continued.trainer"}
LARGEST_CIRCLE = 3


def circle_of(graph: grimp.ImportGraph, module: str) -> set[str]:
    """Returns the modules that a module imports and that import it, directly or through others."""
    return graph.find_upstream_modules(module) & graph.find_downstream_modules(module) | {module}


def test_no_circle_of_imports_has_more_than_three_modules() -> None:
    """Imports below TYPE_CHECKING and inside functions count too."""
    graph = grimp.build_graph("trainloop", cache_dir=None)
    circles = {module: circle_of(graph, module) for module in graph.modules}
    assert {name: sorted(circle) for name, circle in circles.items() if len(circle) > LARGEST_CIRCLE} == {}


def test_only_the_entry_points_know_the_trainer() -> None:
    graph = grimp.build_graph("trainloop", cache_dir=None)
    assert graph.find_modules_that_directly_import("trainloop.trainer") == ENTRY_POINTS

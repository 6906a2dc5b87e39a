"""Models have the shapes that people write: nested lists, dicts, experts, tied weights, one layer used repeatedly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.trainer.toy import CLASSES, FEATURES, Toy

WIDTH = 8


class Feed(nn.Module):
    """Adds a residual feed-forward layer; its scale is a parameter of its own that belongs to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.scale = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.down(torch.tanh(self.up(x)))


class Experts(nn.Module):
    """Sends each sample to one of its experts, so a rank's batch doesn't reach all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(Feed() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gates = self.router(x).softmax(1)
        chosen, out = gates.argmax(1), torch.zeros_like(x)
        for index in chosen.unique().tolist():
            mine = chosen == index
            out = out.index_put((mine,), gates[mine, index, None] * self.experts[index](x[mine]))
        return x + out


class Branches(nn.Module):
    """Has parts in a list (as in T5), or in a list of pairs without a forward method."""

    def __init__(self, pairs: bool) -> None:
        super().__init__()
        parts = [nn.ModuleList([Feed(), Feed()]) if pairs else Feed() for _ in range(2)]
        self.layer = nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.layer:
            for one in part if isinstance(part, nn.ModuleList) else [part]:
                x = one(x)
        return x


class Body(nn.Module):
    """Embeds points, applies `layers` in turn, and classifies, if `tied` by the embedding's own weight."""

    def __init__(self, layers: nn.Module, order: list[nn.Module], tied: bool = False) -> None:
        super().__init__()
        self.embed, self.layers = nn.Linear(FEATURES, WIDTH), layers
        self.shift = nn.Parameter(torch.randn(WIDTH))
        self.head = nn.Linear(WIDTH, FEATURES if tied else CLASSES, bias=False)
        if tied:
            self.head.weight = nn.Parameter(self.embed.weight.t().contiguous())
            self.back = nn.Linear(WIDTH, FEATURES)
            self.back.weight = self.head.weight
        self._order = [order]  # in a list of lists: the modules belong to `layers`

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        x = self.embed(points) + self.shift
        for layer in self._order[0]:
            x = layer(x)
        x = self.back(x) + self.head(x) if hasattr(self, "back") else self.head(x)
        return x[:, :CLASSES]


def _listed(make: Callable[[], nn.Module], count: int = 3, **more: Any) -> nn.Module:
    layers = [make() for _ in range(count)]
    return Body(nn.ModuleList(layers), layers, **more)


def _dict() -> nn.Module:
    layers: list[nn.Module] = [Feed(), Feed()]
    return Body(nn.ModuleDict({str(index): layer for index, layer in enumerate(layers)}), layers)


def _stages() -> nn.Module:
    stages = [nn.Sequential(Feed(), Feed()) for _ in range(2)]
    return Body(nn.ModuleList(stages), list(stages))


def _experts_from_zero() -> nn.Module:
    """Makes residual branches begin at zero, as they often do: what is below them is reached, with gradients of
    zero.
    """
    layers = [Experts() for _ in range(2)]
    for expert in (expert for layer in layers for expert in layer.experts):
        nn.init.zeros_(expert.get_parameter("down.weight"))
    return Body(nn.ModuleList(layers), list(layers))


def _one_layer_twice() -> nn.Module:
    layer = Feed()
    return Body(nn.ModuleList([layer, Feed(), layer]), [layer, layer])


def _shared_inside() -> nn.Module:
    layers = [Feed() for _ in range(3)]
    layers[2].up = layers[0].up
    return Body(nn.ModuleList(layers), list(layers))


SHAPES: dict[str, Callable[[], nn.Module]] = {
    "layers": lambda: _listed(Feed),
    "dict": _dict,
    "stages": _stages,
    "parts": lambda: _listed(lambda: Branches(pairs=False), 2),
    "pairs": lambda: _listed(lambda: Branches(pairs=True), 2),
    "experts": lambda: _listed(Experts, 2),
    "experts from zero": _experts_from_zero,
    "experts of the root": Experts,
    "tied": lambda: _listed(Feed, tied=True),
    "one layer twice": _one_layer_twice,
    "a layer shared by two": _shared_inside,
}


class Shaped(Toy):
    """Trains the toy task with a model of SHAPES; `options` are the shape, and the toy's own."""

    def model(self) -> nn.Module:
        shape = self.options["shape"]
        made = SHAPES[shape]()
        if shape == "experts of the root":
            return nn.Sequential(nn.Linear(FEATURES, WIDTH), made, nn.Linear(WIDTH, CLASSES))
        return made


class Planned(Toy):
    """Plans how ranks share its layers: its options are `0`, `2` and `9`, each `columns` or `rows`."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3))

    def parallel_plan(self, model: nn.Module, ranks: int) -> dict[str, Any]:
        # Imported only when used, because it takes a second in each rank.
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

        styles = {"columns": ColwiseParallel, "rows": RowwiseParallel}
        return {name: styles[self.options[name]]() for name in ("0", "2", "9") if name in self.options}

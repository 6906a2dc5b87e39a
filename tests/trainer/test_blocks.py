"""A model's repeated blocks are found in the shapes that people write (`parallel/blocks`)."""

from __future__ import annotations

from torch import nn

from trainloop.parallel.blocks import blocks


class Layer(nn.Module):
    def __init__(self, *experts: nn.Module) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.experts = nn.ModuleList(experts)


def test_nested_blocks_come_before_those_that_contain_them() -> None:
    experts = [nn.Linear(2, 2) for _ in range(4)]
    layers = [Layer(*experts[:2]), Layer(*experts[2:])]
    model = nn.Sequential(nn.Embedding(2, 2), nn.ModuleList(layers))
    assert blocks(model) == [*experts, *layers]


def test_a_block_that_is_there_twice_is_one() -> None:
    layer = Layer()
    assert blocks(nn.ModuleList([layer, layer])) == [layer]


def test_layers_of_a_dict_and_stages_are_blocks() -> None:
    layers = {"0": Layer(), "1": Layer()}
    assert blocks(nn.Sequential(nn.ModuleDict(layers))) == list(layers.values())
    assert blocks(nn.Sequential(*layers.values())) == list(layers.values())


def test_single_layers_of_a_sequential_and_unlike_members_of_a_dict_are_none() -> None:
    assert blocks(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))) == []
    layer = Layer()
    assert blocks(nn.ModuleDict({"tokens": nn.Embedding(2, 2), "h": nn.ModuleList([layer]), "n": Layer()})) == [layer]


def test_a_container_in_a_list_gives_its_members() -> None:
    """A container has no forward of its own, so no hook can be attached to it."""
    pairs = [(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(2)]
    model = nn.ModuleList(nn.ModuleList([*pair, nn.Tanh()]) for pair in pairs)
    assert blocks(model) == [*pairs[0], *pairs[1]]

"""A decoder of today's form (RMSNorm, rotary positions, SwiGLU) as a task of your own; decoder.yaml trains it with
about a billion parameters on one GPU.

Its attention is torch's `scaled_dot_product_attention`, which on a GPU in bf16 is flash attention.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional

from trainloop.settings import Settings
from trainloop.tasks.text import BYTES, LanguageTask, read_text


class DecoderOptions(Settings):
    """These options configure the task; the defaults have 0.99 billion parameters."""

    path: str | None = Field(None, description="A text file, or a directory of .txt files; null is as in `text`.")
    held_out: float = Field(0.05, gt=0, lt=1, description="Fraction of the text, its end, that is for evaluation.")
    context: int = Field(2048, ge=8, description="Tokens that are predicted from each other.")
    vocabulary: int = Field(32768, ge=BYTES, description="Tokens; the text has bytes, a tokenizer's fit too.")
    layers: int = Field(18, ge=1, description="Blocks.")
    width: int = Field(2048, ge=8, description="Width of the model.")
    heads: int = Field(16, ge=1, description="Attention heads.")
    hidden: int = Field(5632, ge=8, description="Inner width of the feed-forward.")


class Block(nn.Module):
    """Adds attention, then feed-forward, each of them behind a norm, to its input."""

    def __init__(self, options: DecoderOptions) -> None:
        super().__init__()
        width, hidden = options.width, options.hidden
        self.heads = options.heads
        self.before_attention, self.before_mlp = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_and_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        samples, length, width = x.shape
        heads = self.query_key_value(self.before_attention(x)).view(samples, length, 3, self.heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(
            rotated(query, rotation), rotated(key, rotation), value, is_causal=True
        )
        x = x + self.out(seen.transpose(1, 2).reshape(samples, length, width))
        gate, up = self.gate_and_up(self.before_mlp(x)).chunk(2, dim=-1)
        added: torch.Tensor = x + self.down(functional.silu(gate) * up)
        return added


def rotated(heads: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Returns queries or keys turned by angles that grow with their position (Su et al. 2021)."""
    cosine, sine = rotation[:, : heads.shape[-2]].to(heads.dtype)
    one, other = heads.chunk(2, dim=-1)
    return torch.cat((one * cosine - other * sine, one * sine + other * cosine), dim=-1)


class Decoder(nn.Module):
    """Computes logits of the next token (samples x length x vocabulary) from tokens (samples x length)."""

    def __init__(self, options: DecoderOptions) -> None:
        super().__init__()
        self.tokens = nn.Embedding(options.vocabulary, options.width)
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.layers))
        self.norm = nn.RMSNorm(options.width)
        size = options.width // options.heads
        rates = 10_000.0 ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
        angles = torch.arange(options.context, dtype=torch.float32)[:, None] * rates
        self.register_buffer("rotation", torch.stack((angles.cos(), angles.sin())), persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # What is added to the input is small at first, the smaller the more of it there is (GPT-2).
                added = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * options.layers) ** 0.5 if added else 0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.rotation)
        return functional.linear(self.norm(x), self.tokens.weight)


class DecoderTask(LanguageTask):
    """This is the task, `decoder:DecoderTask`."""

    Options = DecoderOptions

    def __init__(self, options: DecoderOptions) -> None:
        self.options = options
        super().__init__(read_text(options.path), options.context, options.held_out)

    def model(self) -> nn.Module:
        return Decoder(self.options)

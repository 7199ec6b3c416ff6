"""A transformer encoder for sequences of any length."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from leyden.models import sequence, shape
from leyden.models.attention import Block


class Transformer(nn.Module):
    """Attention over the valid steps, then their mean: (B, T, F padded; B lengths) -> B x num_classes."""

    def __init__(
        self,
        in_shape: Sequence[int],
        num_classes: int,
        width: int = 64,
        layers: int = 2,
        heads: int = 4,
        dropout: float = 0.1,
    ):
        super().__init__()
        self.embed = nn.Linear(shape.features(in_shape), width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: tuple[Tensor, Tensor]) -> Tensor:
        values, lengths = x
        mask = sequence.valid(lengths, values.shape[1])[:, None, None]
        values = self.embed(values)
        values = self.dropout(values + positions(values))
        for block in self.blocks:
            values = block(values, mask)
        return self.head(sequence.mean(self.norm(values), lengths))


def positions(values: Tensor) -> Tensor:
    """T, W of sines and cosines of the step, with periods from 2 pi to 20,000 pi steps (arXiv:1706.03762)."""
    steps, width = values.shape[1:]
    frequency = torch.exp(torch.arange((width + 1) // 2, device=values.device) * (-2 * math.log(1e4) / width))
    angle = torch.arange(steps, device=values.device)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], -1)[:, :width].to(values.dtype)

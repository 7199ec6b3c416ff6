"""A vision transformer for small images (Dosovitskiy et al. 2021, arXiv:2010.11929)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from . import shape
from .attention import Block, sinusoids


class ViT(nn.Module):
    """Attention over patches, then their mean: B, C, H, W of `in_shape` -> B x num_classes."""

    def __init__(
        self,
        in_shape: Sequence[int],
        num_classes: int,
        patch: int = 4,
        width: int = 64,
        layers: int = 4,
        heads: int = 4,
        dropout: float = 0.1,
        activation: str = "gelu",
    ):
        super().__init__()
        planes, *sides = shape.picture(in_shape)
        rows, columns = (-(-side // patch) for side in sides)
        pad = nn.ZeroPad2d((0, columns * patch - sides[1], 0, rows * patch - sides[0]))  # to whole patches
        self.embed = nn.Sequential(pad, nn.Conv2d(planes, width, patch, stride=patch), nn.Flatten(2))
        self.positions = nn.Parameter(grid(rows, columns, width))
        self.dropout = nn.Dropout(dropout)
        blocks = (Block(width, heads, dropout, activation) for _ in range(layers))
        self.body = nn.Sequential(*blocks, nn.LayerNorm(width))
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.dropout(self.embed(x).transpose(1, 2) + self.positions)
        return self.head(self.body(tokens).mean(1))


def grid(rows: int, columns: int, width: int) -> Tensor:
    """Initial positions, rows * columns x W: half of each is of the row, half of the column."""
    row = sinusoids(rows, width // 2)[:, None].expand(-1, columns, -1)
    column = sinusoids(columns, width - width // 2).expand(rows, -1, -1)
    return torch.cat([row, column], -1).flatten(0, 1)

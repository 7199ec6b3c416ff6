"""A transformer encoder for sequences of any length."""

from collections.abc import Sequence

from torch import Tensor, nn

from . import shape
from .attention import Block, sinusoids


class Transformer(nn.Module):
    """Attention over the valid steps, then their mean: (B, T, F padded; B lengths) -> B x num_classes."""

    def __init__(
        self,
        in_shape: Sequence[int | None],
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
        mask = shape.valid(lengths, values.shape[1])[:, None, None]
        values = self.embed(values)
        positions = sinusoids(values.shape[1], values.shape[2], values.device).to(values.dtype)
        values = self.dropout(values + positions)
        for block in self.blocks:
            values = block(values, mask)
        return self.head(shape.mean(self.norm(values), lengths))

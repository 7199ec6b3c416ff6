"""The transformer block and the position encoding, for sequences and pictures."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .activation import act


class Block(nn.Module):
    """Pre-norm attention and dense layers (arXiv:1706.03762, arXiv:2002.04745): B, T, W -> B, T, W."""

    def __init__(self, width: int, heads: int, dropout: float, activation: str = "gelu"):
        super().__init__()
        if width % heads:
            raise ValueError(f"`width` must be a multiple of `heads`; got `{width}` and `{heads}`")
        self.heads, self.dropout = heads, dropout
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Sequential(nn.Linear(width, width), nn.Dropout(dropout))
        dense = nn.Linear(width, 4 * width), act(activation), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), *dense, nn.Dropout(dropout))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """`mask` is bool, B, 1, 1, T: true for valid steps."""
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


def sinusoids(steps: int, width: int, device: torch.device | None = None) -> Tensor:
    """T, W of sines and cosines of the step, in periods from 2 pi to 20,000 pi steps."""
    frequency = torch.exp(torch.arange((width + 1) // 2, device=device) * (-2 * math.log(1e4) / width))
    angle = torch.arange(steps, device=device)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], -1)[:, :width]

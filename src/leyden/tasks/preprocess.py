"""From a float batch to what the model sees; its constants travel in the checkpoint."""

import torch
from torch import Tensor, nn


class Standardize(nn.Module):
    """(x - mean) / std by channel: dimension 1 of pictures (B, C, H, W), the last one of tables and sequences."""

    def __init__(self, kind: str, mean: list[float], std: list[float]):
        super().__init__()
        shape = (-1, 1, 1) if kind == "image" else (-1,)
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(shape))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(shape))

    def forward(self, x: Tensor | tuple[Tensor, Tensor]) -> Tensor | tuple[Tensor, Tensor]:
        if isinstance(x, Tensor):
            return (x - self.mean) / self.std
        values, lengths = x  # padded sequences
        return (values - self.mean) / self.std, lengths

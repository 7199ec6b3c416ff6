"""Padded sequences: which steps are real, and their mean. `lengths` is B of int64; values after it do not count."""

import torch
from torch import Tensor


def valid(lengths: Tensor, steps: int) -> Tensor:
    """B -> B, T of bool: true where the step is part of the sequence; an empty one counts as one step."""
    return torch.arange(steps, device=lengths.device) < lengths.clamp(min=1)[:, None]


def mean(values: Tensor, lengths: Tensor) -> Tensor:
    """B, T, F -> B, F: the mean over the valid steps."""
    padding = ~valid(lengths, values.shape[1])[..., None]
    return values.masked_fill(padding, 0.0).sum(1) / lengths.clamp(min=1)[:, None]

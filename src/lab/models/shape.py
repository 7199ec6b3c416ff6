"""The shape of a sample, and the lengths of padded sequences.

`in_shape` has no batch dimension; None is a length that varies. `lengths` is B of int64; what follows is padding.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def picture(in_shape: Sequence[int]) -> tuple[int, int, int]:
    """C, H, W; ValueError if the samples are no pictures."""
    if len(in_shape) != 3:
        raise ValueError(f"this model takes pictures C x H x W, but a sample is {spell(in_shape)}")
    channels, height, width = in_shape
    return channels, height, width


def features(in_shape: Sequence[int | None]) -> int:
    """F of sequences T x F; ValueError if the samples are no sequences."""
    if len(in_shape) != 2 or in_shape[0] is not None or in_shape[1] is None:
        raise ValueError(f"this model takes sequences T x F, but a sample is {spell(in_shape)}")
    return in_shape[1]


def size(in_shape: Sequence[int | None]) -> int:
    """The number of values in a sample; ValueError if it varies."""
    if None in in_shape:
        raise ValueError(f"this model takes samples of one size, but a sample is {spell(in_shape)}")
    return math.prod(length for length in in_shape if length is not None)


def spell(in_shape: Sequence[int | None]) -> str:
    """The shape as text, and the models that take it."""
    kinds = {3: "mlp, cnn, resnet, vit or torchvision", 2: "rnn or transformer"}
    text = " x ".join("T" if length is None else str(length) for length in in_shape)
    return f"{text}; type model={kinds.get(len(in_shape), 'mlp')}"


def valid(lengths: Tensor, steps: int) -> Tensor:
    """B -> B, T of bool: true where the step is part of the sequence; an empty one counts as one step."""
    return torch.arange(steps, device=lengths.device) < lengths.clamp(min=1)[:, None]


def mean(values: Tensor, lengths: Tensor) -> Tensor:
    """B, T, F -> B, F: the mean over the valid steps."""
    padding = ~valid(lengths, values.shape[1])[..., None]
    return values.masked_fill(padding, 0.0).sum(1) / lengths.clamp(min=1)[:, None]

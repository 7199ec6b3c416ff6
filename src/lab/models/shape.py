"""The shape of a sample, without its batch and with None for a length that varies, and lengths of padded sequences."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def picture(in_shape: Sequence[int]) -> tuple[int, int, int]:
    """C, H, W; ValueError if the samples are no pictures."""
    if len(in_shape) != 3:
        raise mistake("pictures C x H x W", in_shape)
    channels, height, width = in_shape
    return channels, height, width


def features(in_shape: Sequence[int | None]) -> int:
    """F of sequences T x F; ValueError if the samples are no sequences."""
    if len(in_shape) != 2 or in_shape[0] is not None or in_shape[1] is None:
        raise mistake("sequences T x F", in_shape)
    return in_shape[1]


def size(in_shape: Sequence[int | None]) -> int:
    """The number of values in a sample; ValueError if it varies."""
    if None in in_shape:
        raise mistake("samples of one size", in_shape)
    return math.prod(length for length in in_shape if length is not None)


def mistake(takes: str, in_shape: Sequence[int | None]) -> ValueError:
    """What to say to samples of another shape: the models that take them."""
    models = {3: "mlp, cnn, resnet, vit or torchvision", 2: "rnn or transformer"}.get(len(in_shape), "mlp")
    shape = " x ".join("T" if length is None else str(length) for length in in_shape)
    return ValueError(f"this model takes {takes}, but a sample is {shape}; type model={models}")


def valid(lengths: Tensor, steps: int) -> Tensor:
    """B -> B, T of bool: true where a step is no padding; an empty sequence counts as one step."""
    return torch.arange(steps, device=lengths.device) < lengths.clamp(min=1)[:, None]


def mean(values: Tensor, lengths: Tensor) -> Tensor:
    """B, T, F -> B, F: the mean over the valid steps."""
    padding = ~valid(lengths, values.shape[1])[..., None]
    return values.masked_fill(padding, 0.0).sum(1) / lengths.clamp(min=1)[:, None]

"""What data says of itself in numbers."""

from typing import Any

import torch
from torch import Tensor


def of_targets(y: Tensor) -> dict[str, Any]:
    """How many numbers a target has, and their mean and standard deviation."""
    y = y.double().reshape(len(y), -1)
    std = y.std(0, correction=0)
    return {
        "outputs": y.shape[1],
        "target_mean": y.mean(0).tolist(),
        "target_std": torch.where(std > 0, std, 1.0).tolist(),
    }


def moments(x: Tensor) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel (dimension 1) in the scale of `to_float`."""
    channels = x.transpose(0, 1).flatten(1)
    if x.dtype == torch.uint8:  # by counting: exact, and the same bits for any number of threads
        values = torch.arange(256, dtype=torch.float64) / 255
        weights = torch.stack([channel.bincount(minlength=256) for channel in channels]).double()
        weights /= weights.sum(1, keepdim=True)
        mean = weights @ values
        std = (weights @ values.square() - mean.square()).clamp(min=0).sqrt()
    else:
        mean, std = channels.double().mean(1), channels.double().std(1, correction=0)
    return mean.tolist(), torch.where(std > 0, std, 1.0).tolist()

"""Samples in memory: a batch of them is one index operation."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from torchvision.transforms import v2

from leyden.resume import exact


def to_float(x: Tensor) -> Tensor:
    """A raw batch as float: uint8 becomes 0..1, float stays."""
    return x.float() / 255 if x.dtype == torch.uint8 else x


def transformed(x: Tensor, transforms: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
    """A sample, or a batch, after transforms of torchvision."""
    for transform in transforms:
        x = transform(to_float(x) if isinstance(transform, v2.Normalize) else x)
    return x


class Samples(Dataset):
    """Samples of one shape, with transforms of torchvision, one at a time; or a list of sequences of T x F.

    A key is epoch * length + index, as `exact.Order` gives it. A batch is (x, y, keys); of sequences x is a pair of
    values, B x T x F padded with zeros, and lengths, B.
    """

    def __init__(self, x: Any, y: Tensor, transforms: Sequence[Callable[[Tensor], Tensor]] = (), seed: int = 0):
        self.x, self.y, self.transforms, self.seed = x, y, list(transforms), seed
        self.lengths = torch.tensor([len(sequence) for sequence in x]) if isinstance(x, list) else None

    def __len__(self) -> int:
        return len(self.y)

    def __getitems__(self, keys: list[int]) -> tuple[Any, ...]:
        key = torch.tensor(keys)
        index = key % len(self)
        if self.lengths is not None:
            values = pad_sequence([self.x[i] for i in index.tolist()], batch_first=True)
            return (values, self.lengths[index]), self.y[index], key
        if not self.transforms:
            return self.x.index_select(0, index), self.y[index], key  # a tenth of the time of x[index]
        x = []
        for i, k in zip(index.tolist(), keys, strict=True):
            with exact.isolated(self.seed, k):
                x.append(torch.as_tensor(transformed(self.x[i], self.transforms)).as_subclass(Tensor))
        return torch.stack(x), self.y[index], key

    def subset(self, index: Tensor) -> "Samples":
        x = self.x[index] if self.lengths is None else [self.x[i] for i in index.tolist()]
        return Samples(x, self.y[index], self.transforms, self.seed)


def moments(x: Tensor) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel (dimension 1), in the scale of `to_float`; 1 for a deviation of 0."""
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

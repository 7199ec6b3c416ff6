"""Samples in memory or on disk: a batch of them is one index operation."""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from torchvision.transforms import v2

from leyden.resume import exact

LEVELS = torch.arange(256, dtype=torch.float64) / 255


def to_float(x: Tensor) -> Tensor:
    """A raw batch as float: uint8 becomes 0..1, float stays."""
    return x.float() / 255 if x.dtype == torch.uint8 else x


def transformed(x: Tensor, transforms: Sequence[Callable]) -> Tensor:
    """A sample, or a batch, after transforms of torchvision."""
    for transform in transforms:
        x = transform(to_float(x) if isinstance(transform, v2.Normalize) else x)
    return x


class Samples(Dataset):
    """Samples of one shape, each after the transforms, or sequences of T x F, a list or `OnDisk`.

    A key is epoch * length + index, as `exact.Order` gives it. A batch is (x, y, keys), as a DataModule takes it.
    """

    def __init__(self, x: Any, y: Tensor, transforms: Sequence[Callable] = (), seed: int = 0):
        self.x, self.y, self.transforms, self.seed = x, y, transforms, seed
        self.lengths = torch.tensor(list(map(len, x))) if isinstance(x, list) else getattr(x, "lengths", None)

    def __len__(self) -> int:
        return len(self.y)

    def __getitems__(self, keys: list[int]) -> tuple:
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
        x = [self.x[i] for i in index.tolist()] if isinstance(self.x, list) else self.x[index]
        return Samples(x, self.y[index])


class OnDisk:
    """Samples of `shape`, N x ..., that `read(rows)` of a child reads when they are asked for.

    As of a tensor, an int gives a sample, another index a part, and index_select reads a batch.
    """

    read: Callable[[Tensor], Tensor]

    def __init__(self, shape: Sequence[int], dtype: torch.dtype = torch.uint8):
        self.shape, self.dtype, self.rows = tuple(shape), dtype, torch.arange(shape[0])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int):
            return self.read(self.rows[[index]])[0]
        part = copy(self)
        part.rows = self.rows[index]
        return part

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        return self.read(self.rows[index])


def moments(parts: Iterable[Tensor]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel (dimension 1) after `to_float`; 1 for a deviation of 0.

    The parts need not be in memory together: they are merged as by Chan et al. (1979).
    """
    total, mean, squares = 0, torch.tensor(0.0), torch.tensor(0.0)
    for part in parts:
        channels = part.transpose(0, 1).flatten(1)
        count = channels.shape[1]
        if part.dtype == torch.uint8:  # by counting: exact
            counts = torch.stack([channel.bincount(minlength=256) for channel in channels]).double()
            middle = counts @ LEVELS / count
            variance = counts @ LEVELS.square() / count - middle.square()
        else:
            variance, middle = torch.var_mean(channels.double(), 1, correction=0)

        total += count
        apart = middle - mean
        mean = mean + apart * (count / total)
        squares = squares + variance * count + apart.square() * (count * (total - count) / total)

    std = (squares / total).clamp(min=0).sqrt()
    return mean.tolist(), torch.where(std > 0, std, 1.0).tolist()

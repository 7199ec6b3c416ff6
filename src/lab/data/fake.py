"""Random pictures of any shape, for tests and benchmarks."""

from typing import Any

import torch
from torch import Tensor

from leyden import require
from leyden.data.augment import whole
from leyden.data.datamodule import DataModule


class Fake(DataModule):
    """Noise with a faint pattern of its class."""

    def __init__(self, shape: list[int], num_classes: int = 10, num_samples: int = 1000, **loader: Any):
        super().__init__(**loader)
        self.num_classes = whole("data.num_classes", num_classes, 1)
        self.num_samples = whole("data.num_samples", num_samples, 1)
        require(bool(shape) and all(side >= 1 for side in shape), "data.shape", "whole numbers from 1 up", shape)
        self.shape, self.classes = shape, [str(label) for label in range(num_classes)]

    def read(self, split: str) -> tuple[Tensor, Tensor] | None:
        if split != "train":
            return None
        source = torch.Generator().manual_seed(0)
        noise = torch.randint(0, 192, (self.num_samples, *self.shape), generator=source, dtype=torch.uint8)
        patterns = torch.randint(0, 64, (self.num_classes, *self.shape), generator=source, dtype=torch.uint8)
        labels = torch.arange(self.num_samples) % self.num_classes
        return noise + patterns[labels], labels

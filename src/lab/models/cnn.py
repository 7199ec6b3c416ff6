"""A small convolutional network for images of any size."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from . import shape
from .activation import act, kaiming_

SMALLEST = 8  # pixels; a shorter side is not halved


class CNN(nn.Module):
    """Blocks of 3 x 3 convolutions, then the mean over the picture: B, C, H, W -> B x num_classes."""

    def __init__(
        self,
        in_shape: Sequence[int],
        num_classes: int,
        channels: Sequence[int] = (32, 64, 128),
        dropout: float = 0.1,
        activation: str = "relu",
    ):
        super().__init__()
        planes, *sides = shape.picture(in_shape)
        layers: list[nn.Module] = []
        for width in channels:
            layers.append(nn.Conv2d(planes, width, 3, padding=1, bias=False))
            stride = tuple(2 if side >= SMALLEST else 1 for side in sides)
            if max(stride) > 1:
                layers.append(nn.MaxPool2d(stride))
            layers += [nn.BatchNorm2d(width), act(activation)]
            planes, sides = width, [side // s for side, s in zip(sides, stride, strict=True)]

        self.body = nn.Sequential(*layers).apply(kaiming_)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout))
        self.head = nn.Linear(planes, num_classes)
        self.to(memory_format=torch.channels_last)  # faster on a CPU

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.body(x)))

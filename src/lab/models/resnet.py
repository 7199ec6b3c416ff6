"""A residual network for small images (He et al. 2016, arXiv:1512.03385)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from . import shape
from .activation import act, kaiming_


def conv(planes: int, width: int, size: int, stride: int = 1) -> nn.Sequential:
    """A convolution without bias, and its BatchNorm."""
    return nn.Sequential(nn.Conv2d(planes, width, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(width))


class Block(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut: B, C, H, W -> B, width, H / stride, W / stride."""

    def __init__(self, planes: int, width: int, stride: int, activation: str):
        super().__init__()
        self.residual = nn.Sequential(conv(planes, width, 3, stride), act(activation), conv(width, width, 3))
        nn.init.zeros_(self.residual[-1].get_parameter("1.weight"))  # it starts as its shortcut (arXiv:1706.02677)
        same = planes == width and stride == 1
        self.shortcut = nn.Identity() if same else conv(planes, width, 1, stride)
        self.act = act(activation)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.residual(x) + self.shortcut(x))


class ResNet(nn.Module):
    """A 3 x 3 stem, stages of residual blocks, the mean over the picture: B, C, H, W -> B x num_classes."""

    def __init__(
        self,
        in_shape: Sequence[int],
        num_classes: int,
        channels: Sequence[int] = (32, 64, 128),
        blocks: int = 1,
        dropout: float = 0.0,
        activation: str = "relu",
    ):
        super().__init__()
        planes = channels[0]
        layers: list[nn.Module] = [conv(shape.picture(in_shape)[0], planes, 3), act(activation)]
        for stage, width in enumerate(channels):
            for block in range(blocks):
                layers.append(Block(planes, width, 2 if stage > 0 and block == 0 else 1, activation))
                planes = width

        self.body = nn.Sequential(*layers).apply(kaiming_)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout))
        self.head = nn.Linear(planes, num_classes)
        self.to(memory_format=torch.channels_last)  # faster on a CPU

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.body(x)))

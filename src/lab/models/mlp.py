"""A multilayer perceptron for inputs of any shape."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from . import shape
from .activation import act, kaiming_


class MLP(nn.Module):
    """Dense layers with dropout between them: B x in_shape -> B x num_classes; `hidden=[]` is a linear model."""

    def __init__(
        self,
        in_shape: Sequence[int | None],
        num_classes: int,
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.1,
        activation: str = "relu",
    ):
        super().__init__()
        widths = [shape.size(in_shape), *hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), act(activation), nn.Dropout(dropout)]
        self.body = nn.Sequential(*layers).apply(kaiming_)
        self.head = nn.Linear(widths[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))

import pytest
import torch
from torch import nn

from lab.models.activation import act, kaiming_
from lab.models.cnn import CNN
from lab.models.mlp import MLP
from lab.models.resnet import ResNet


def test_names():
    assert [type(act(name)) for name in ("relu", "gelu", "silu")] == [nn.ReLU, nn.GELU, nn.SiLU]
    assert act("relu") is not act("relu")
    with pytest.raises(ValueError, match="relu, gelu, silu"):
        act("nope")


@pytest.mark.parametrize(
    "net", [MLP((1, 8, 8), 3), CNN((3, 8, 8), 3), ResNet((3, 8, 8), 3)], ids=lambda net: type(net).__name__
)
def test_weights_have_variance_two_over_fan_in(net):
    layers = [layer for layer in net.body.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]
    assert layers
    for layer in layers:
        fan_in, count = layer.weight[0].numel(), layer.weight.numel()
        deviation = layer.weight.std() * (fan_in / 2) ** 0.5
        assert abs(deviation - 1) < 5 / (2 * count) ** 0.5  # five standard errors
        assert layer.bias is None or not layer.bias.any()


def test_the_scale_survives_depth():
    torch.manual_seed(0)
    net = nn.Sequential(*[module for _ in range(20) for module in (nn.Linear(256, 256), nn.ReLU())]).apply(kaiming_)
    x = torch.randn(64, 256)
    assert 0.3 < net(x).square().mean() / x.square().mean() < 3

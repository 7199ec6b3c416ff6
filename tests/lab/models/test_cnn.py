import pytest
import torch

from lab.models.cnn import CNN


@pytest.mark.parametrize(("size", "left"), [((8, 8), (4, 4)), ((28, 28), (7, 7)), ((1, 40), (1, 5)), ((3, 3), (3, 3))])
def test_only_long_sides_are_halved(size, left):
    assert CNN((1, *size), 2).body(torch.randn(2, 1, *size)).shape[2:] == left


def test_needs_pictures():
    with pytest.raises(ValueError, match="model=mlp"):
        CNN([10], 2)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_activation(activation):
    net = CNN((1, 8, 8), 2, activation=activation)
    assert activation in {type(module).__name__.lower() for module in net.modules()}

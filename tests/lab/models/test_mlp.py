import pytest
import torch

from lab.models.mlp import MLP


def test_table_rows():
    assert MLP([10], 1)(torch.randn(3, 10)).shape == (3, 1)


def test_linear_without_hidden_layers():
    net = MLP([4], 2, hidden=[])
    x = torch.randn(3, 4)
    assert torch.equal(net(x), net.head(x))


def test_dropout_only_in_training():
    net, x = MLP([50], 3, dropout=0.5), torch.randn(2, 50)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))


def test_unknown_activation():
    with pytest.raises(ValueError, match="must be one of relu, gelu, silu, squared_relu; got `rleu`"):
        MLP([4], 2, activation="rleu")

import pytest
import torch

from lab.models.resnet import Block, ResNet


def test_stages_halve_the_picture():
    net = ResNet((3, 32, 32), 10, channels=(4, 8, 16), blocks=2)
    assert net.body(torch.randn(2, 3, 32, 32)).shape == (2, 16, 8, 8)
    assert sum(isinstance(module, Block) for module in net.modules()) == 6


def test_a_block_begins_as_its_shortcut():
    net = ResNet((1, 8, 8), 2, channels=(4, 4))
    block = net.body[2]
    x = torch.randn(3, 4, 8, 8)
    torch.testing.assert_close(block(x), x.relu())


def test_a_block_adds_its_residual():
    block = Block(4, 6, 2, "relu").eval()
    x = torch.randn(3, 4, 9, 9)
    torch.testing.assert_close(block(x), (block.residual(x) + block.shortcut(x)).relu())


def test_needs_pictures():
    with pytest.raises(ValueError, match="model=mlp"):
        ResNet([10], 2)

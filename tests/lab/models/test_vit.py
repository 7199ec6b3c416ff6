import pytest
import torch

from lab.models.vit import ViT, grid


@pytest.mark.parametrize(("size", "tokens"), [((8, 8), 4), ((9, 8), 6), ((1, 1), 1), ((28, 28), 49)])
def test_one_token_for_each_patch(size, tokens):
    assert ViT((1, *size), 2, patch=4).embed(torch.randn(2, 1, *size)).shape == (2, 64, tokens)


def test_positions_differ():
    assert len(grid(4, 5, 16).unique(dim=0)) == 20


def test_where_a_patch_is_matters():
    net, x = ViT((1, 8, 8), 3).eval(), torch.randn(1, 1, 8, 8)
    assert not torch.allclose(net(x), net(x.roll(4, dims=3)), atol=1e-4)


def test_needs_pictures():
    with pytest.raises(ValueError, match="model=mlp"):
        ViT([10], 2)

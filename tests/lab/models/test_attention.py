import pytest
import torch

from lab.models.attention import Block, sinusoids


def test_order_does_not_matter_without_positions():
    block, x, order = Block(16, 4, 0.0).eval(), torch.randn(2, 5, 16), torch.randperm(5)
    torch.testing.assert_close(block(x[:, order]), block(x)[:, order], rtol=1e-5, atol=1e-5)


def test_masked_steps_are_not_seen():
    block, x = Block(16, 2, 0.0).eval(), torch.randn(1, 5, 16)
    mask = (torch.arange(5) < 3)[None, None, None]
    torch.testing.assert_close(block(x, mask)[:, :3], block(x[:, :3]), rtol=1e-5, atol=1e-5)


def test_no_dropout_in_eval():
    block, x = Block(16, 2, 0.5), torch.randn(1, 5, 16)
    assert not torch.equal(block(x), block(x))
    block.eval()
    assert torch.equal(block(x), block(x))


def test_heads_divide_the_width():
    with pytest.raises(ValueError, match="`width` must be a multiple of `heads`; got `10` and `4`"):
        Block(10, 4, 0.0)


@pytest.mark.parametrize("width", [1, 7, 8])
def test_positions(width):
    table = sinusoids(50, width)
    assert table.shape == (50, width) and table.abs().max() <= 1
    torch.testing.assert_close(table[:, 0], torch.arange(50.0).sin())
    assert torch.equal(sinusoids(20, width), table[:20])

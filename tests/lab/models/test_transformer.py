import pytest
import torch

from lab.models.transformer import Transformer


def test_padding_and_company_do_not_matter():
    net = Transformer([None, 3], 4).eval()
    values, lengths = torch.randn(5, 9, 3), torch.tensor([9, 1, 4, 8, 2])
    logits = net((values, lengths))
    assert logits.shape == (5, 4)
    for value, length, expected in zip(values, lengths, logits, strict=True):
        alone = net((value[None, :length], length[None]))[0]
        padded = net((torch.cat([value[None, :length], torch.zeros(1, 6, 3)], 1), length[None]))[0]
        torch.testing.assert_close(alone, expected, rtol=0, atol=1e-6)
        torch.testing.assert_close(padded, expected, rtol=0, atol=1e-6)


def test_gradients_reach_all():
    net = Transformer([None, 3], 4)
    net((torch.randn(3, 5, 3), torch.tensor([5, 3, 2]))).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in net.parameters())


def test_order_matters():
    net, values, lengths = Transformer([None, 3], 4).eval(), torch.randn(1, 6, 3), torch.tensor([6])
    assert not torch.allclose(net((values, lengths)), net((values.flip(1), lengths)), atol=1e-4)


@pytest.mark.slow
def test_any_length():
    assert Transformer([None, 2], 3)((torch.randn(1, 3000, 2), torch.tensor([3000]))).isfinite().all()


def test_empty_sequence_is_finite():
    assert Transformer([None, 3], 2)((torch.zeros(2, 4, 3), torch.tensor([0, 4]))).isfinite().all()


@pytest.mark.slow
def test_exports_with_any_batch_and_length():
    net = Transformer([None, 3], 4).eval()
    batch, time = torch.export.Dim("batch"), torch.export.Dim("time")
    example = ((torch.randn(2, 5, 3), torch.tensor([5, 2])),)
    program = torch.export.export(net, example, dynamic_shapes=(({0: batch, 1: time}, {0: batch}),))
    x = (torch.randn(3, 11, 3), torch.tensor([11, 1, 7]))
    torch.testing.assert_close(program.module()(x), net(x))


def test_needs_sequences():
    with pytest.raises(ValueError, match="model=mlp, cnn"):
        Transformer([1, 8, 8], 2)

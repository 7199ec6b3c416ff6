import itertools

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lab.models.rnn import CELLS, RNN, reverse

KINDS = [
    dict(zip(("cell", "layers", "bidirectional", "pooling"), kind, strict=True))
    for kind in itertools.product(("gru", "lstm"), (1, 2), (False, True), ("mean", "last"))
]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))


@each_kind
def test_padding_and_company_do_not_matter(kind):
    net = RNN([None, 3], 4, hidden=8, **kind)
    values, lengths = torch.randn(5, 9, 3), torch.tensor([9, 1, 4, 8, 2])
    logits = net((values, lengths))
    assert logits.shape == (5, 4)
    for value, length, expected in zip(values, lengths, logits, strict=True):
        alone = net((value[None, :length], length[None]))[0]
        padded = net((torch.cat([value[None, :length], torch.zeros(1, 6, 3)], 1), length[None]))[0]
        torch.testing.assert_close(alone, expected, rtol=0, atol=1e-6)
        torch.testing.assert_close(padded, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("cell", CELLS)
def test_the_numbers_of_packed_sequences(cell):
    net = RNN([None, 3], 2, cell=cell, hidden=8)
    packed = CELLS[cell](3, 8, batch_first=True, bidirectional=True)
    packed.load_state_dict(
        net.forth[0].state_dict() | {name + "_reverse": value for name, value in net.back[0].state_dict().items()}
    )
    values, lengths = torch.randn(4, 6, 3), torch.tensor([6, 2, 5, 1])
    steps, _ = packed(pack_padded_sequence(values, lengths, batch_first=True, enforce_sorted=False))
    expected = pad_packed_sequence(steps, batch_first=True)[0].sum(1) / lengths[:, None]
    torch.testing.assert_close(net((values, lengths)), net.head(expected), rtol=0, atol=1e-6)


@each_kind
def test_gradients_reach_all(kind):
    net = RNN([None, 3], 4, hidden=8, **kind)
    net((torch.randn(3, 5, 3), torch.tensor([5, 3, 2]))).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in net.parameters())


@pytest.mark.parametrize("cell", CELLS)
def test_gates_start_orthogonal(cell):
    for gate in RNN([None, 3], 2, cell=cell, hidden=8).back[0].weight_hh_l0.split(8):
        torch.testing.assert_close(gate @ gate.T, torch.eye(8))


def test_turn():
    values = torch.arange(8).view(2, 4, 1)
    assert reverse(values, torch.tensor([3, 1]))[..., 0].tolist()[0][:3] == [2, 1, 0]
    lengths = torch.tensor([2, 4])
    assert torch.equal(reverse(reverse(values, lengths), lengths), values)


def test_dropout_only_in_training():
    net, x = RNN([None, 3], 2, layers=2, dropout=0.5), (torch.randn(2, 5, 3), torch.tensor([5, 2]))
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))


def test_empty_sequence_is_finite():
    assert RNN([None, 3], 2)((torch.zeros(2, 4, 3), torch.tensor([0, 4]))).isfinite().all()


@pytest.mark.parametrize("wrong", [{"cell": "rnn"}, {"pooling": "max"}])
def test_unknown_options(wrong):
    with pytest.raises(ValueError, match="gru or lstm"):
        RNN([None, 3], 2, **wrong)


def test_needs_sequences():
    with pytest.raises(ValueError, match="model=mlp, cnn"):
        RNN([1, 8, 8], 2)


@pytest.mark.filterwarnings("ignore")
def test_traces_with_any_length():
    net = RNN([None, 3], 4, hidden=8, layers=2).eval()
    traced = torch.jit.trace(net, [(torch.randn(2, 5, 3), torch.tensor([5, 2]))])
    x = (torch.randn(3, 11, 3), torch.tensor([11, 1, 7]))
    torch.testing.assert_close(traced(x), net(x))

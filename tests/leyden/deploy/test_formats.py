"""Recurrent networks as scans, against the originals."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from lab.models.rnn import RNN
from leyden import UserError
from leyden.deploy.formats import Scanned, with_scans


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "bias"), [(nn.GRU, False), (nn.LSTM, True)])
def test_a_scan_has_equal_numbers(cell, bias):
    torch.manual_seed(0)
    original, x = cell(3, 5, bias=bias, batch_first=True), torch.randn(4, 7, 3)
    (out, last), (its, ended) = original(x), Scanned(original)(x)
    assert torch.allclose(out, its, atol=1e-6)
    for mine, other in zip([last] if cell is nn.GRU else last, [ended] if cell is nn.GRU else ended, strict=True):
        assert torch.allclose(mine, other, atol=1e-6)


@pytest.mark.slow
def test_a_model_of_both_directions():
    recurrent = RNN([None, 3], 4, hidden=5)
    other = with_scans(deepcopy(recurrent))
    assert not any(type(part) is nn.GRU for name, part in other.named_modules() if not name.endswith("rnn"))
    x = torch.randn(3, 6, 3), torch.tensor([6, 1, 4])
    assert torch.allclose(recurrent(x), other(x), atol=1e-6)


@pytest.mark.parametrize("option", [{"num_layers": 2}, {"bidirectional": True}, {"batch_first": False}])
def test_what_has_no_scan_is_refused(option):
    with pytest.raises(UserError, match="one layer, one direction and batch_first"):
        with_scans(nn.Sequential(nn.LSTM(3, 5, **({"batch_first": True} | option))))

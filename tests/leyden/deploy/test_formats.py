"""Recurrent networks as scans, against the originals."""

import pytest
import torch
from torch import nn

from lab.models.rnn import RNN
from leyden.deploy.formats import Scanned, with_scans


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "options"),
    [(nn.GRU, {"bias": False, "batch_first": True}), (nn.LSTM, {"num_layers": 2, "bidirectional": True})],
)
def test_a_scan_has_equal_numbers(cell, options):
    torch.manual_seed(0)
    original, x = cell(3, 5, **options), torch.randn(4, 7, 3)
    (out, last), (its, ended) = original(x), Scanned(original)(x)
    assert torch.allclose(out, its, atol=1e-6)
    for mine, other in zip([last] if cell is nn.GRU else last, [ended] if cell is nn.GRU else ended, strict=True):
        assert torch.allclose(mine, other, atol=1e-6)


@pytest.mark.slow
def test_a_model_is_copied_only_where_it_has_one():
    plain, recurrent = nn.Linear(2, 2), RNN([None, 3], 4, hidden=5)
    assert with_scans(plain) is plain
    other = with_scans(recurrent)
    assert not any(type(part) is nn.GRU for name, part in other.named_modules() if not name.endswith("rnn"))
    x = torch.randn(3, 6, 3), torch.tensor([6, 1, 4])
    assert torch.allclose(recurrent(x), other(x), atol=1e-6) and isinstance(recurrent.forth[0], nn.GRU)

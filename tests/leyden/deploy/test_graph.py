"""Recurrent networks as scans, and the resize, against the originals."""

import pytest
import torch
from torch import nn

from lab.models.rnn import RNN
from leyden.data.decode import decode
from leyden.deploy.graph import Resize, Scanned, with_scans


@pytest.mark.slow
@pytest.mark.parametrize("cell", [nn.GRU, nn.LSTM])
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False, "batch_first": True}]
)
def test_a_scan_has_equal_numbers(cell, options):
    torch.manual_seed(0)
    original = cell(3, 5, **options)
    x, directions = torch.randn(4, 7, 3), original.num_layers * (1 + original.bidirectional)
    batch = len(x) if original.batch_first else x.shape[1]
    given = torch.randn(directions, batch, 5)
    for state in (None, (given, given) if cell is nn.LSTM else given):
        (out, last), (its, ended) = original(x, state), Scanned(original)(x, state)
        assert torch.allclose(out, its, atol=1e-6)
        for mine, other in zip([last] if cell is nn.GRU else last, [ended] if cell is nn.GRU else ended, strict=True):
            assert torch.allclose(mine, other, atol=1e-6)


def test_a_model_is_copied_only_where_it_has_one():
    plain, recurrent = nn.Linear(2, 2), RNN([None, 3], 4, hidden=5)
    assert with_scans(plain) is plain
    other = with_scans(recurrent)
    assert not any(type(part) is nn.GRU for name, part in other.named_modules() if not name.endswith("rnn"))
    x = torch.randn(3, 6, 3), torch.tensor([6, 1, 4])
    assert torch.allclose(recurrent(x), other(x), atol=1e-6) and isinstance(recurrent.forth[0], nn.GRU)


def test_the_resize_is_that_of_the_decoder(tmp_path):
    from PIL import Image

    x = torch.randint(0, 256, (3, 50, 70), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    Image.fromarray(x.permute(1, 2, 0).numpy()).save(tmp_path / "a.png")
    there = decode(tmp_path / "a.png", (20, 90)).int()
    here = Resize([20, 90])(x[None])[0]
    assert here.dtype == torch.uint8 and (here.int() - there).abs().max() <= 1

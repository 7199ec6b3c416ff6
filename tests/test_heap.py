import pytest
import torch

from leyden import heap


@pytest.mark.skipif(not heap.used(), reason="the C library does not say")
def test_what_is_given_out_is_counted():
    before = heap.used()
    kept = [torch.empty(2**20) for _ in range(8)]
    assert 8 * 2**22 <= heap.used() - before < 9 * 2**22
    kept.clear()
    assert heap.used() - before < 2**22

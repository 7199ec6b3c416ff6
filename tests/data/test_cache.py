import pickle

import numpy as np
import pytest
import torch

from leyden import UserError
from leyden.data.cache import Cache, fill

SHAPE = (5, 3, 4, 2)
ROWS = np.arange(120, dtype=np.uint8).reshape(SHAPE)


def test_rows_come_back_and_stay_as_they_are(tmp_path):
    cache = Cache(tmp_path / "a.u8", SHAPE)
    assert not cache.there
    fill(cache.path, SHAPE, lambda keep: [keep(None if i == 2 else row) for i, row in enumerate(ROWS)])
    assert cache.there and not Cache(cache.path, (6, 3, 4, 2)).there
    for copy in (cache, pickle.loads(pickle.dumps(cache))):
        rows = copy[torch.tensor([4, 2, 4])]
        assert torch.equal(rows[0], torch.from_numpy(ROWS[4])) and not rows[1].any() and torch.equal(rows[0], rows[2])
        rows.zero_()
        assert torch.equal(copy[torch.tensor([4])][0], torch.from_numpy(ROWS[4]))
    assert len(pickle.dumps(cache)) < 500


def test_what_a_killed_writer_left_is_replaced(tmp_path):
    part = tmp_path / "a.part"
    part.write_bytes(b"half" * 1000)
    fill(part, SHAPE, lambda keep: [keep(row) for row in ROWS])
    assert part.read_bytes() == ROWS.tobytes()


def test_a_full_disk_is_known_before(tmp_path):
    with pytest.raises(UserError, match=r"data.cache=true needs 10000000000.0 GB in .*; set data_dir=<folder>"):
        fill(tmp_path / "a.part", (10**16, 1, 10, 100), pytest.fail)
    assert not list(tmp_path.iterdir())

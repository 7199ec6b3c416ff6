import os

import numpy as np
import pytest
from PIL import Image

from leyden.data.pictures import Files, Names
from leyden.data.scan import Scan

MANY = ["a.jpg", "", "犬/猫 '\".png", "x" * 200, os.fsdecode(b"\xff\xfe.gif")]


def test_names_come_back_as_they_were():
    names = Names(MANY)
    assert [names[row] for row in range(len(names))] == MANY
    assert names == Names(MANY) != Names(MANY[1:]) and len(Names()) == 0


def test_a_hundred_thousand_names_are_small():
    names = Names(f"class {i % 100}/a photograph with a long name {i:06}.jpg" for i in range(100_000))
    assert names.text.nbytes + names.ends.nbytes < 8e6


def scan(root, names):
    for number, name in enumerate(names):
        if not (root / name).exists():
            Image.new("RGB", (6, 4), (number, 2 * number, 200)).save(root / name)
    return Scan(Files(root, Names(names), (4, 4), 3, "white"))


def test_it_knows_what_is_in_a_picture(tmp_path):
    found = scan(tmp_path, ["0.png", "1.png", "2.png"])
    kept = []
    found.look(found.unknown, kept.append)
    assert found.sums.tolist() == [[16, 16 * i, 32 * i, 3200, 16 * i**2, 64 * i**2, 640_000] for i in range(3)]
    assert [x.shape for x in kept] == [(3, 4, 4)] * 3 and not len(found.unknown)
    mean, std = found.moments(np.array([0, 2]))
    assert mean == pytest.approx([1 / 255, 2 / 255, 200 / 255]) and std == pytest.approx(
        [1 / 255, 2 / 255, 1], abs=1e-6
    )


def test_other_names_and_an_other_order_are_recalled(tmp_path):
    first = scan(tmp_path, ["a.png", "b.png", "c.png", "d.png"])
    first.look(first.unknown)
    first.remember(tmp_path / "memory.npz")
    os.utime(tmp_path / "c.png", (1, 1))
    second = scan(tmp_path, ["new.png", "d.png", "c.png", "a.png"])
    second.recall(tmp_path / "memory.npz")
    assert second.unknown.tolist() == [0, 2]
    assert (second.digest[[1, 3]] == first.digest[[3, 0]]).all() and (second.sums[[1, 3]] == first.sums[[3, 0]]).all()
    second.look(second.unknown)
    assert second.key != first.key and not second.why


def test_what_is_gone_is_not_taken_for_known(tmp_path):
    found = scan(tmp_path, ["a.png", "b.png"])
    (tmp_path / "b.png").unlink()
    for _ in range(2):
        found = Scan(found.files)
        found.recall(tmp_path / "memory.npz")
        found.look(found.unknown)
        found.remember(tmp_path / "memory.npz")
        assert list(found.why) == [1] and "No such file" in found.why[1] and found.stat[1].tolist() == [-1, -1]

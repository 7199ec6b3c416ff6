import logging
import os
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from leyden import files
from leyden.data import pictures
from leyden.data.pictures import Pictures, Scan

MANY = ["a.jpg", "犬/猫 '\".png", "x" * 200, os.fsdecode(b"\xff\xfe.gif")]


def test_names_come_back_as_they_were():
    found = Pictures("root", MANY, (4, 4), 3, "white")
    assert [found.name(row) for row in range(len(MANY))] == MANY and found.path(0) == "root/a.jpg"


def test_a_hundred_thousand_names_are_small():
    names = [f"class {i % 100}/a photograph with a long name {i:06}.jpg" for i in range(100_000)]
    assert len(pickle.dumps(Pictures("root", names, (4, 4), 3, "white"))) < 6e6


@pytest.fixture
def scan(tmp_path):
    """The scan of some small pictures, which are made where they are not there."""

    def make(*names):
        for number, name in enumerate(names):
            if not (tmp_path / name).exists():
                Image.new("RGB", (6, 4), (number, 2 * number, 200)).save(tmp_path / name)
        return Scan(Pictures(tmp_path, list(names), (4, 4), 3, "white"))

    return make


def test_it_knows_what_is_in_a_picture(scan, tmp_path):
    found = scan("0.png", "1.png", "2.png")
    found.update(tmp_path / "memory.npz")
    assert found.sums.tolist() == [[16, 16 * i, 32 * i, 3200, 16 * i**2, 64 * i**2, 640_000] for i in range(3)]
    assert len({digest.tobytes() for digest in found.digest}) == 3 and not found.errors
    mean, std = found.moments(np.array([0, 2]))
    assert mean == pytest.approx([1 / 255, 2 / 255, 200 / 255])
    assert std == pytest.approx([1 / 255, 2 / 255, 1], abs=1e-6)


def test_other_names_and_another_order_are_recalled(scan, tmp_path, monkeypatch):
    first = scan("a.png", "b.png", "c.png", "d.png")
    first.update(tmp_path / "memory.npz")
    os.utime(tmp_path / "c.png", (1, 1))
    seen, look = [], Scan.look
    monkeypatch.setattr(Scan, "look", lambda self, row: seen.append(row) or look(self, row))
    second = scan("new.png", "d.png", "c.png", "a.png")
    second.update(tmp_path / "memory.npz")
    assert sorted(seen) == [0, 2]
    assert (second.digest[[1, 2, 3]] == first.digest[[3, 2, 0]]).all()
    assert (second.sums[[1, 2, 3]] == first.sums[[3, 2, 0]]).all()


def test_what_is_gone_is_not_taken_for_known(scan, tmp_path):
    found = scan("a.png", "b.png")
    (tmp_path / "b.png").unlink()
    for _ in range(2):
        found = Scan(found.files)
        found.update(tmp_path / "memory.npz")
        assert list(found.errors) == [1] and "No such file" in found.errors[1] and found.stat[1].tolist() == [-1, -1]


def test_a_cache_holds_what_the_files_hold(scan, tmp_path):
    found = scan("a.png", "bad.png", "c.png")
    (tmp_path / "bad.png").write_text("no picture")
    memory, some = tmp_path / "memory.npz", torch.tensor([2, 0, 2])
    found.update(memory)
    (tmp_path / ".memory-old.u8.part").write_bytes(b"left by a writer that was killed")
    expected = found.files.index_select(0, some)
    for _ in range(2):  # written, and found again
        found.write_cache(memory)
        for copy in (found.files, pickle.loads(pickle.dumps(found.files))):
            x = copy.index_select(0, some)
            assert torch.equal(x, expected) and not copy[1].any()
            x.zero_()
            assert torch.equal(copy.index_select(0, some), expected)
        assert len(pickle.dumps(found.files)) < 1500 and not list(tmp_path.glob("*.part"))
        found.files.cache = None


def test_a_disk_that_fills_up_is_left_without_the_part(scan, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        scan("a.png").write_cache(tmp_path / "memory.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_results_come_in_turn_and_a_long_look_says_how_far_it_is(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(pictures, "REPORT_S", -1)
    threads = torch.get_num_threads()
    assert list(pictures.in_turn(lambda row: 2 * row, range(1000))) == list(range(0, 2000, 2))
    assert torch.get_num_threads() == threads and "decoded 768 of 1000 pictures" in caplog.text

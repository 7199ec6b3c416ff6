import os
import pickle

import pytest
import torch
from PIL import Image

from leyden import files
from leyden.data import image_folder
from leyden.data.decode import decode
from leyden.data.image_folder import ImageFolder, Pictures

MANY = ["a.jpg", "犬/猫 '\".png", "x" * 200, os.fsdecode(b"\xff\xfe.gif")]
SETTINGS = (4, 4), 3, "white"


@pytest.fixture
def make(tmp_path):
    """Make some small pictures where they are not there; returns their names."""

    def put(*names):
        for number, name in enumerate(names):
            if not (tmp_path / name).exists():
                Image.new("RGB", (6, 4), (number, 2 * number, 200)).save(tmp_path / name)
        return list(names)

    return put


def test_names_come_back_as_they_were():
    found = Pictures("root", MANY, *SETTINGS)
    assert found.files(found.rows) == MANY
    assert found.files(found[torch.tensor([2, 0])].rows) == [MANY[2], MANY[0]]


def test_a_hundred_thousand_names_are_small():
    names = [f"class {i % 100}/a photograph with a long name {i:06}.jpg" for i in range(100_000)]
    assert len(pickle.dumps(Pictures("root", names, *SETTINGS))) < 7e6


def test_a_look_knows_what_is_in_a_picture(make, tmp_path):
    found = list(map(ImageFolder(tmp_path, size=4).look, make("0.png", "1.png", "2.png")))
    assert [entry[3] for entry in found] == [
        [16, 16 * i, 32 * i, 3200, 16 * i**2, 64 * i**2, 640_000] for i in range(3)
    ]
    assert len({entry[2] for entry in found}) == 3


def test_a_cache_holds_what_the_files_hold(make, tmp_path):
    found, some = Pictures(tmp_path, make("a.png", "b.png", "c.png"), *SETTINGS), torch.tensor([2, 0, 2])
    (tmp_path / ".memory-old.u8.part").write_bytes(b"left by a writer that was killed")
    expected = torch.stack([decode(tmp_path / name, *SETTINGS) for name in ("c.png", "a.png", "c.png")])
    assert torch.equal(found.index_select(0, some), expected)
    for _ in range(2):  # written, and found again
        found = Pictures(tmp_path, ["a.png", "b.png", "c.png"], *SETTINGS)
        found.write_cache(tmp_path / "memory.json", ["1", "2", "3"])
        for copy in (found, pickle.loads(pickle.dumps(found))):
            x = copy.index_select(0, some)
            assert torch.equal(x, expected) and torch.equal(copy[some][1], expected[1])
            x.zero_()
            assert torch.equal(copy.index_select(0, some), expected)
        assert len(pickle.dumps(found)) < 1500 and not list(tmp_path.glob(".*.part"))


def test_a_disk_that_fills_up_is_left_without_the_part(make, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        Pictures(tmp_path, make("a.png"), *SETTINGS).write_cache(tmp_path / "memory.json", ["1"])
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_results_come_in_turn():
    threads = torch.get_num_threads()
    assert list(image_folder.in_turn(lambda row: 2 * row, range(1000))) == list(range(0, 2000, 2))
    assert torch.get_num_threads() == threads

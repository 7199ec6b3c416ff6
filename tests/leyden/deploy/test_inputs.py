"""What is found below a path, and what of arrays is taken."""

import numpy as np
import pytest

from leyden import UserError
from leyden.deploy.graph import Metadata
from leyden.deploy.inputs import of_path

IMAGE = Metadata("image", {"image": ["batch", 1, 2, 3]}, {"probs": ["batch", 2]}, dtype="uint8")
TABLE = Metadata("table", {"row": ["batch", 2]}, {"values": ["batch", 1]})


def test_a_folder_in_the_order_of_names(tmp_path):
    for name in ("b.png", "a.PNG", ".c.png", "d.txt", "x/z.png", "x/a.png", ".h/e.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert list(of_path(str(tmp_path), IMAGE)) == ["a.PNG", "b.png", "x/a.png", "x/z.png"]


@pytest.mark.parametrize(
    ("metadata", "arrays", "said"),
    [
        (IMAGE, {"x": np.zeros((4, 1, 2, 3), np.uint8)}, None),
        (IMAGE, {"x": np.zeros((4, 3, 2), np.uint8)}, "uint8 of batch x 1 x 2 x 3; got uint8 of 4 x 3 x 2"),
        (IMAGE, {"x": np.zeros((4, 2, 3, 1), np.uint8)}, None),
        (IMAGE, {"x": np.zeros((4, 1, 2, 3))}, "must hold uint8 of .*; got float64"),
        (IMAGE, {"a": np.zeros(3), "b": np.zeros(3)}, "must hold numbers, a .npz file as x"),
        (TABLE, {"x": np.ones((2, 2), int)}, None),
        (TABLE, {"x": np.array([["a", "b"]])}, "must hold numbers"),
    ],
)
def test_batches(tmp_path, metadata, arrays, said):
    np.savez(tmp_path / "b.npz", **arrays)
    if said:
        with pytest.raises(UserError, match=said):
            of_path(str(tmp_path / "b.npz"), metadata)
        return
    samples = of_path(str(tmp_path / "b.npz"), metadata)
    for index, (name, x) in enumerate(samples.items()):
        assert np.array_equal(x.numpy().squeeze(), arrays["x"][index].squeeze())
        assert name.endswith(f"b.npz[{index}]")
    assert len(samples) == len(arrays["x"])


@pytest.mark.parametrize("lengths", [[0.5, 1], [[1], [2]], [1], [-1, 2], [1, 4], [np.nan, 1]])
def test_lengths_that_are_none_are_refused(tmp_path, lengths):
    takes = Metadata("sequence", {"values": ["batch", "time", 2]}, {"probs": ["batch", 2]})
    np.savez(tmp_path / "s.npz", x=np.ones((2, 3, 2)), lengths=np.array(lengths))
    with pytest.raises(UserError, match=r"lengths of .* must hold 2 whole numbers from 1 to 3"):
        of_path(str(tmp_path / "s.npz"), takes)
    np.savez(tmp_path / "s.npz", x=np.ones((2, 3, 2)), lengths=np.array([1, 3]))
    assert list(map(len, of_path(str(tmp_path / "s.npz"), takes).values())) == [1, 3]


def test_rows_by_place(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,\n4,x\n")
    one, two, bad = of_path(str(tmp_path / "t.csv"), TABLE).values()
    assert one.tolist() == [1, 2] and two[0] == 3 and two[1].isnan()
    assert bad.startswith("Line 4 of ") and bad.endswith(": column b must be a number as in training; got 'x'.")
    for text, said in (
        ("1,2\n3,4\n", "2, with a header; got 1, 2"),
        ("a\n1\n", "2, with a header; got a"),
        ("a,b\n1\n", "fewer cells"),
    ):
        (tmp_path / "t.csv").write_text(text)
        with pytest.raises(UserError, match=said):
            of_path(str(tmp_path / "t.csv"), TABLE)


def test_a_damaged_file_among_others_is_a_sample_that_cannot_be_read(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"nothing")
    np.save(tmp_path / "b.npy", np.ones((1, 2)))
    found = of_path(str(tmp_path), TABLE)
    assert found["b.npy"].tolist() == [1, 1] and "cannot be read" in found["a.npy"]
    with pytest.raises(UserError, match="cannot be read"):
        of_path(str(tmp_path / "a.npy"), TABLE)

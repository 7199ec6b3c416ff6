"""What is found below a path, and what of arrays is taken."""

import numpy as np
import pytest

from leyden import UserError
from leyden.deploy.graph import Metadata
from leyden.deploy.inputs import matching_files, of_path

IMAGE = Metadata("image", {"image": ["batch", 1, 2, 3]}, {"probs": ["batch", 2]}, dtype="uint8")
TABLE = Metadata("table", {"row": ["batch", 2]}, {"values": ["batch", 1]})


def test_a_folder_in_the_order_of_names(tmp_path):
    for name in ("b.png", "a.PNG", ".c.png", "d.txt", "x/z.png", "x/a.png", ".h/e.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [name for name, _ in matching_files(str(tmp_path), "image")] == ["a.PNG", "b.png", "x/a.png", "x/z.png"]


@pytest.mark.parametrize(
    ("metadata", "arrays", "said"),
    [
        (IMAGE, {"x": np.zeros((4, 1, 2, 3), np.uint8)}, None),
        (IMAGE, {"x": np.zeros((4, 3, 2), np.uint8)}, "uint8 of batch x 1 x 2 x 3, as .*; got uint8 of 4 x 3 x 2"),
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
    for index, sample in enumerate(samples):
        assert np.array_equal(sample.x.numpy().squeeze(), arrays["x"][index].squeeze())
        assert sample.name.endswith(f"b.npz[{index}]")
    assert len(samples) == len(arrays["x"])


@pytest.mark.parametrize("lengths", [[0.5, 1], [[1], [2]], [1], [-1, 2], [1, 4], [np.nan, 1]])
def test_lengths_that_are_none_are_refused(tmp_path, lengths):
    takes = Metadata("sequence", {"values": ["batch", "time", 2]}, {"probs": ["batch", 2]})
    np.savez(tmp_path / "s.npz", x=np.ones((2, 3, 2)), lengths=np.array(lengths))
    with pytest.raises(UserError, match=r"lengths of .* must hold 2 whole numbers from 1 to 3"):
        of_path(str(tmp_path / "s.npz"), takes)
    np.savez(tmp_path / "s.npz", x=np.ones((2, 3, 2)), lengths=np.array([1, 3]))
    assert [len(sample.x) for sample in of_path(str(tmp_path / "s.npz"), takes)] == [1, 3]


def test_rows_by_place(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,\n4,x\n")
    one, two, bad = of_path(str(tmp_path / "t.csv"), TABLE)
    assert one.x.tolist() == [1, 2] and two.x[0] == 3 and two.x[1].isnan()
    assert bad.x.startswith("Line 4 of ") and bad.x.endswith(": column b must be a number; got 'x'.")
    for text, said in (
        ("1,2\n3,4\n", "a header and 2 columns"),
        ("a\n1\n", "2 columns; got a"),
        ("a,b\n1\n", "fewer cells"),
    ):
        (tmp_path / "t.csv").write_text(text)
        with pytest.raises(UserError, match=said):
            of_path(str(tmp_path / "t.csv"), TABLE)


def test_a_damaged_file_among_others_is_a_sample_that_cannot_be_read(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"nothing")
    np.save(tmp_path / "b.npy", np.ones((1, 2)))
    bad, good = of_path(str(tmp_path), TABLE)
    assert good.x.tolist() == [1, 1] and bad.name == "a.npy" and "cannot be read" in bad.x
    with pytest.raises(UserError, match="cannot be read"):
        of_path(str(tmp_path / "a.npy"), TABLE)

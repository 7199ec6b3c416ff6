import pickle

import numpy as np
import pytest
import torch

from leyden import UserError
from leyden.data.folders import SequenceFolder, load
from leyden.run import build


def steps(length, columns=3):
    return np.arange(length * columns, dtype=np.float32).reshape(length, columns)


def put(path, values):
    """Write a sequence, text or bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(values, str | bytes):
        path.write_bytes(values.encode() if isinstance(values, str) else values)
    else:
        np.save(path, values)
    return path


def fill(root, classes=("rise", "fall"), count=4):
    for name in classes:
        for i in range(count):
            put(root / name / f"{i}.npy", steps(i + 1))
    return root


def test_files_are_read_as_they_are(tmp_path):
    put(tmp_path / "10" / "a.npy", steps(2))
    put(tmp_path / "2" / "b10.npy", steps(5).astype(">i2"))
    put(tmp_path / "2" / "b9.CSV", "0,1,2\r\n3,4,5\r\n6,7,8.5\r\n")
    put(tmp_path / "2" / "notes.txt", "not data")
    put(tmp_path / ".hidden" / "a.npy", b"")
    put(tmp_path / "2" / "._b9.npy", b"")
    put(tmp_path / "readme.npy", b"")
    data = SequenceFolder(root=tmp_path)
    x, y = data.read("train")
    assert data.classes == ["2", "10"] and y.tolist() == [0, 0, 1]
    assert [len(sequence) for sequence in x] == [3, 5, 2]
    assert x[0].dtype == torch.float32 and x[0][2].tolist() == [6, 7, 8.5]
    assert torch.equal(x[1], torch.from_numpy(steps(5)))
    assert data.read("val") is None and data.read("test") is None


def test_splits_are_cut_or_have_folders_of_their_own(tmp_path):
    data = SequenceFolder(root=fill(tmp_path / "cut", count=10), val_fraction=0.2, test_fraction=0.2)
    assert {split: len(samples) for split, samples in data.splits.items()} == {"train": 12, "val": 4, "test": 4}
    fill(tmp_path / "own" / "train")
    fill(tmp_path / "own" / "test", classes=["fall"], count=3)
    data = SequenceFolder(root=tmp_path / "own", val_fraction=0.25)
    assert {split: len(samples) for split, samples in data.splits.items()} == {"train": 6, "val": 2, "test": 3}
    assert data.splits["test"].y.tolist() == [0, 0, 0] and data.facts["classes"] == ["fall", "rise"]


def test_a_class_may_be_called_train(tmp_path):
    assert SequenceFolder(root=fill(tmp_path, classes=("plane", "train"))).classes == ["plane", "train"]


def test_a_config_builds_it(tmp_path, configure, monkeypatch):
    fill(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    data = build.data(configure("data=sequence_folder", "data.root=mine"))
    assert data.facts["shape"] == [None, 3] and data.facts["counts"] == [3, 3]
    with pytest.raises(UserError, match="root"):
        build.data(configure("data=sequence_folder"))


@pytest.mark.parametrize(
    "text",
    ["1,2\n3,4\n", "a,b\n1,2\n3,4", '"a","n2"\r\n1,2\r\n\r\n3,"4"\r\n', "\ufeff1, 2\n3, 4", ",\n1,2\n3e0,4.0\n"],
)
def test_csv_with_and_without_a_header(text, tmp_path):
    assert load(put(tmp_path / "a.csv", text)).tolist() == [[1, 2], [3, 4]]
    assert load(put(tmp_path / "one.csv", "info\n1\n2")).tolist() == [[1], [2]]


class Trap:
    def __reduce__(self):
        return pytest.fail, ("unpickled",)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.npy", steps(0), r"shape \[0, 3\], not numbers of T x F, T > 0"),
        ("a.npy", np.zeros(5), r"shape \[5\], not numbers of T x F"),
        ("a.npy", np.zeros((2, 3), dtype=complex), "holds complex128"),
        ("a.npy", np.array([[1, 2], [np.inf, 3]]), "NaN or infinity at step 1"),
        ("a.npy", np.array([[1e300, 2]]), "NaN or infinity"),
        ("a.npy", b"", "cannot be read"),
        ("a.npy", b"\x93NUMPY\x01\x00\x04\x00((((", "cannot be read"),
        ("a.npy", pickle.dumps(Trap()), "cannot be read"),
        ("a.csv", "", "not numbers of T x F, T > 0"),
        ("a.csv", "a,b\n", "not numbers of T x F, T > 0"),
        ("a.csv", "1,2\n\n3,oops\n", "'oops'"),
        ("a.csv", "1,b\n3,4\n", "'b'"),  # not a header, which would lose a step
        ("a.csv", "1,2\n3,\n", "convert string ''"),
        ("a.csv", "1,2\n3,4,5\n6,7,8\n", "columns changed from 2 to 3"),
        ("a.csv", "x;y\n1;2\n", "'1;2'"),
        ("a.csv", "NaN,nan\n1,2\n", "NaN or infinity at step 0"),
        ("a.csv", b"\xff\xfe1\x00,\x002\x00", "cannot be read"),
    ],
)
def test_a_bad_file_is_named(name, content, problem, tmp_path):
    path = put(tmp_path / name, content)
    with pytest.raises(UserError, match=problem) as caught:
        load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_truncated_array_and_pickled_objects_are_named(tmp_path):
    path = put(tmp_path / "a.npy", steps(100))
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(UserError, match=r"a.npy cannot be read"):
        load(path)
    np.save(path, np.array([[Trap()]]), allow_pickle=True)
    with pytest.raises(UserError, match=r"a.npy cannot be read"):
        load(path)


def own(root, split, *place):
    """A good folder of train, and one more sequence of five columns."""
    put((fill(root / "train").parent / split).joinpath(*place), steps(3, 5))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda root: None, "root does not exist; set data.root="),
        (lambda root: fill(root, classes=["only"]), "has samples of one class only, only"),
        (
            lambda root: [(fill(root) / name).mkdir() for name in "ab"],
            r"no .npy or .csv file of the classes a, b;",
        ),
        (lambda root: own(root, "train", "rise", "3.npy"), r"train.rise.3.npy holds .* \[3, 5\], not numbers of T x 3"),
        (lambda root: own(root, "val", "rise", "0.npy"), r"val.rise.0.npy holds .* \[3, 5\], not numbers of T x 3"),
        (lambda root: own(root, "val", "sit", "0.npy"), r"val has the classes sit that train does not have"),
        (lambda root: own(root, "val", "0.npy"), "val has no .npy or .csv file of the classes"),
    ],
)
def test_a_bad_folder_is_named(make, problem, tmp_path):
    make(tmp_path / "root")
    with pytest.raises(UserError, match=problem):
        SequenceFolder(root=tmp_path / "root").facts  # noqa: B018

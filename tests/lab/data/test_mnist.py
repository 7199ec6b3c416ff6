import gzip
import hashlib
import struct

import pytest
import torch
from torchvision import datasets

from lab.data.downloaded import MNIST, FashionMNIST
from leyden import UserError


def idx(values):
    """A uint8 tensor as MNIST's files hold it: zeros, type, dimensions, sizes (big endian), values."""
    return struct.pack(f">HBB{values.dim()}I", 0, 8, values.dim(), *values.shape) + values.numpy().tobytes()


def pictures(count):
    return torch.randint(0, 256, (count, 28, 28), generator=torch.Generator().manual_seed(count)).to(torch.uint8)


def contents(train=20, test=10):
    """The four files by name."""
    return {
        f"{split}-{name}": idx(values)
        for split, count in (("train", train), ("t10k", test))
        for name, values in (
            ("images-idx3-ubyte", pictures(count)),
            ("labels-idx1-ubyte", (torch.arange(count) % 10).to(torch.uint8)),
        )
    }


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def pack(monkeypatch, reader=datasets.MNIST):
    """Small archives, and a reader that expects their checksums."""
    archives = {f"{name}.gz": gzip.compress(content) for name, content in contents().items()}
    checksums = [(name, hashlib.md5(content).hexdigest()) for name, content in archives.items()]
    monkeypatch.setattr(reader, "resources", checksums)
    monkeypatch.setattr(reader, "mirrors", ["http://127.0.0.1:9/"])  # where nobody listens
    monkeypatch.setenv("no_proxy", "*")
    return archives


@pytest.mark.parametrize("kind", [MNIST, FashionMNIST])
def test_files_are_read_as_they_are(kind, tmp_path):
    write(tmp_path / kind.__name__ / "raw", contents())
    data = kind(data_dir=str(tmp_path), val_fraction=0.2)
    assert {split: len(samples) for split, samples in data.splits.items()} == {"train": 16, "val": 4, "test": 10}
    x, y = data.read("test")
    assert x.dtype == torch.uint8 and torch.equal(x, pictures(10)[:, None])
    assert y.dtype == torch.int64 and y.tolist() == list(range(10))
    assert data.facts["shape"] == [1, 28, 28] and data.facts["classes"] == kind.reader.classes
    assert data.read("val") is None


def test_archives_are_unpacked(tmp_path, monkeypatch):
    write(tmp_path / "MNIST" / "raw", pack(monkeypatch))
    assert torch.equal(MNIST(data_dir=tmp_path).read("train")[0], pictures(20)[:, None])


@pytest.mark.parametrize("kept", [0, 10, 500])
def test_a_damaged_file_is_named(kept, tmp_path, monkeypatch):
    archives = pack(monkeypatch)
    files = contents()
    files["t10k-images-idx3-ubyte"] = files["t10k-images-idx3-ubyte"][:kept]
    write(tmp_path / "MNIST" / "raw", files)
    with pytest.raises(UserError, match="damaged") as caught:
        MNIST(data_dir=tmp_path).facts  # noqa: B018
    assert f"; put {', '.join(archives)} from " in str(caught.value)
    assert str(caught.value).endswith(f"into the empty folder {tmp_path / 'MNIST' / 'raw'}.")
    for path in (tmp_path / "MNIST" / "raw").iterdir():
        path.unlink()
    write(tmp_path / "MNIST" / "raw", archives)  # as the sentence says
    assert len(MNIST(data_dir=tmp_path).splits["test"]) == 10


def test_a_damaged_archive_is_named(tmp_path, monkeypatch):
    archives = pack(monkeypatch)
    archives["train-labels-idx1-ubyte.gz"] = archives["train-labels-idx1-ubyte.gz"][:-9]
    write(tmp_path / "MNIST" / "raw", archives)
    with pytest.raises(UserError, match=r"damaged .* put .*train-labels-idx1-ubyte.gz"):
        MNIST(data_dir=tmp_path).facts  # noqa: B018


def test_pictures_and_labels_must_be_equally_many(tmp_path):
    write(tmp_path / "MNIST" / "raw", contents() | {"t10k-labels-idx1-ubyte": idx(torch.zeros(7, dtype=torch.uint8))})
    with pytest.raises(UserError, match="10 samples but 7 targets for test"):
        MNIST(data_dir=tmp_path).facts  # noqa: B018


def test_labels_must_be_classes(tmp_path):
    write(tmp_path / "MNIST" / "raw", contents() | {"train-labels-idx1-ubyte": idx(torch.arange(20).to(torch.uint8))})
    with pytest.raises(UserError, match="labels from 0 to 19"):
        MNIST(data_dir=tmp_path).facts  # noqa: B018

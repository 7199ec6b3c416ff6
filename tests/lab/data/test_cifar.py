import hashlib
import io
import pickle
import tarfile

import numpy as np
import pytest
import torch
from torchvision import datasets

from lab.data.downloaded import CIFAR10, CIFAR100
from leyden import UserError


def batch(key, start, classes):
    """One pickled batch of six pictures, each channel of each a constant, as CIFAR's files hold them."""
    rows = np.repeat(np.arange(start, start + 18, dtype=np.uint8).reshape(6, 3), 1024, axis=1)
    return pickle.dumps({"data": rows, key: [(start + i) % classes for i in range(6)]}, protocol=2)


def contents(reader):
    """The files of a small copy by name; the reader is told their checksums, in place of those of the real files."""
    names = [name for name, _ in reader.train_list + reader.test_list]
    classes, key = (10, "labels") if reader is datasets.CIFAR10 else (100, "fine_labels")
    files = {name: batch(key, 18 * place, classes) for place, name in enumerate(names)}
    meta = {reader.meta["key"]: [f"class {label}" for label in range(classes)]}
    return files | {reader.meta["filename"]: pickle.dumps(meta, protocol=2)}


@pytest.fixture(params=[CIFAR10, CIFAR100])
def small(request, tmp_path, monkeypatch):
    """The class of a set and the files of a small copy of it, unpacked in tmp_path."""
    reader = request.param.reader
    files = contents(reader)
    md5 = {name: hashlib.md5(content).hexdigest() for name, content in files.items()}
    for expected in ("train_list", "test_list"):
        monkeypatch.setattr(reader, expected, [[name, md5[name]] for name, _ in getattr(reader, expected)])
    monkeypatch.setattr(reader, "meta", reader.meta | {"md5": md5[reader.meta["filename"]]})
    monkeypatch.setattr(reader, "url", "http://127.0.0.1:9/")  # where nobody listens
    monkeypatch.setenv("no_proxy", "*")
    (tmp_path / reader.base_folder).mkdir()
    for name, content in files.items():
        (tmp_path / reader.base_folder / name).write_bytes(content)
    return request.param, files


def test_files_are_read_as_they_are(small, tmp_path):
    kind, files = small
    data = kind(data_dir=str(tmp_path))
    x, y = data.read("train")
    assert x.dtype == torch.uint8 and x.shape == (6 * (len(files) - 2), 3, 32, 32) and x.is_contiguous()
    assert torch.equal(x[:, :, 5, 7].flatten(), torch.arange(len(x) * 3).to(torch.uint8))
    assert all(len(channel.unique()) == 1 for channel in x.flatten(0, 1))
    assert y.dtype == torch.int64 and data.read("val") is None
    assert data.classes[3] == "class 3" and len(data.facts["classes"]) == data.facts["outputs"]
    assert len(data.splits["test"]) == 6


def test_an_archive_is_unpacked(small, tmp_path, monkeypatch):
    kind, files = small
    folder = kind.reader.base_folder
    with tarfile.open(tmp_path / kind.reader.filename, "w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
            (tmp_path / folder / name).write_bytes(b"damaged")  # what is unpacked is replaced
    archive = (tmp_path / kind.reader.filename).read_bytes()
    monkeypatch.setattr(kind.reader, "tgz_md5", hashlib.md5(archive).hexdigest())
    assert len(kind(data_dir=tmp_path).splits["test"]) == 6


def test_a_damaged_file_is_named_and_never_unpickled(small, tmp_path):
    kind, _ = small
    path = tmp_path / kind.reader.base_folder / kind.reader.train_list[0][0]
    path.write_bytes(b"cos\nabort\n(tR.")  # would end this process
    with pytest.raises(UserError, match="damaged") as caught:
        kind(data_dir=tmp_path).facts  # noqa: B018
    assert f"; put {kind.reader.filename} from " in str(caught.value)


def test_a_missing_file_is_asked_for(small, tmp_path):
    kind, _ = small
    (tmp_path / kind.reader.base_folder / kind.reader.meta["filename"]).unlink()
    (tmp_path / kind.reader.base_folder / kind.reader.test_list[0][0]).unlink()
    with pytest.raises(UserError, match=rf"cannot be downloaded .*; put {kind.reader.filename} .* into {tmp_path}\."):
        kind(data_dir=tmp_path).facts  # noqa: B018

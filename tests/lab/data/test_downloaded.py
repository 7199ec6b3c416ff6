import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from test_mnist import pack, pictures, write
from torchvision import datasets

from lab.data.downloaded import CIFAR10, CIFAR100, MNIST, FashionMNIST
from leyden import UserError
from leyden.run import build

SETS = {"mnist": MNIST, "fashion_mnist": FashionMNIST, "cifar10": CIFAR10, "cifar100": CIFAR100}


class Requests(SimpleHTTPRequestHandler):
    seen = []

    def log_message(self, form, *arguments):
        self.seen.append(self.path)


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A server of small archives of MNIST; gives the list of what was asked for."""
    write(tmp_path / "mirror", pack(monkeypatch))
    handler = type("Handler", (Requests,), {"seen": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=tmp_path / "mirror")) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setattr(datasets.MNIST, "mirrors", [f"http://127.0.0.1:{server.server_port}/"])
        yield handler.seen
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", SETS)
def test_a_config_builds_its_set(name, configure):
    data = build.data(configure(f"data={name}", "data_dir=somewhere"))
    assert type(data) is SETS[name] and data.data_dir.is_absolute() and data.data_dir.name == "somewhere"


@pytest.mark.parametrize("kind", SETS.values())
def test_a_failed_download_says_which_files_belong_where(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(kind.reader, "mirrors", ["http://127.0.0.1:9/"], raising=False)
    monkeypatch.setattr(kind.reader, "url", "http://127.0.0.1:9/", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(UserError, match=r"cannot be downloaded .*[Rr]efused") as caught:
        kind(data_dir=tmp_path / "new").facts  # noqa: B018
    cifar = issubclass(kind, CIFAR10)
    files = [kind.reader.filename] if cifar else [name for name, _ in kind.reader.resources]
    folder = tmp_path / "new" / ("" if cifar else f"{kind.__name__}/raw")
    assert f"put {', '.join(files)} from http" in str(caught.value) and str(caught.value).endswith(f"{folder}.")
    assert "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    pack(monkeypatch)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=rf"missing or damaged in {tmp_path / 'file'} "):
        MNIST(data_dir=tmp_path / "file").facts  # noqa: B018


def test_of_several_processes_one_downloads(tmp_path, mirror):
    MNIST(data_dir=tmp_path / "alone").read("train")
    once = sorted(mirror)
    mirror.clear()
    with ThreadPoolExecutor(3) as pool:
        read = list(pool.map(lambda split: MNIST(data_dir=tmp_path / "shared").read(split), ["train", "test", "train"]))
    assert sorted(mirror) == once and {Path(path).name for path in once} == {
        p.name for p in (tmp_path / "mirror").iterdir()
    }
    assert [len(x) for x, _ in read] == [20, 10, 20] and torch.equal(read[0][0], pictures(20)[:, None])

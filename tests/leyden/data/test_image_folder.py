import json
import os
import pickle
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torchvision.transforms import v2

from leyden import UserError
from leyden.data import image_folder
from leyden.data.decode import decode
from leyden.data.image_folder import ImageFolder
from leyden.run import build, configs, paths

PHOTOS = [Image.fromarray(picture) for picture in load_sample_images().images]
SCRIPTS = ["Церковь", "花", "زهرة", 'plain flower\'s "best"']


def cut(number, side=40):
    """A part of one of two real photographs, another one for each number."""
    left, top = 37 * number % (640 - side), 53 * number % (427 - side)
    return PHOTOS[number % 2].crop((left, top, left + side, top + side))


def put(path, number=0, **keywords):
    path.parent.mkdir(parents=True, exist_ok=True)
    cut(number).save(path, **keywords)
    return path


def fill(root, classes=("temple", "flower"), count=10, ending=".jpg"):
    for label, name in enumerate(classes):
        for i in range(count):
            put(root / name / f"{i}{ending}", 2 * i + label)
    return root


@pytest.fixture
def data(tmp_path):
    """The data module of a folder, with a place of its own to remember things."""

    def make(root, **keywords):
        return ImageFolder(root=root, **{"size": 16, "data_dir": tmp_path / "data", "num_workers": 0} | keywords)

    return make


def sizes(found):
    return {split: len(samples) for split, samples in found.splits.items()}


def everything(found, split="train"):
    samples = found.splits[split]
    return samples.__getitems__(list(range(len(samples))))


def names(found, split="train"):
    pictures = found.splits[split].x
    return pictures.files(pictures.rows)


# what is read


def test_one_folder_is_cut_and_folders_of_splits_are_kept(data, tmp_path):
    found = data(fill(tmp_path / "cut"))
    assert sizes(found) == {"train": 14, "val": 3, "test": 3}
    every = [name for split in found.splits for name in names(found, split)]
    assert sorted(every) == sorted(f"{name}/{i}.jpg" for name in ("flower", "temple") for i in range(10))
    assert found.splits["train"].y.bincount().tolist() == [7, 7]
    own = tmp_path / "own"
    fill(own / "train"), fill(own / "val", count=2), fill(own / "test", count=3)
    assert sizes(data(own)) == {"train": 20, "val": 4, "test": 6}


def test_pixels_labels_and_facts_are_those_of_the_files(data, tmp_path):
    root = fill(tmp_path / "root")
    found = data(root, size=[12, 20])
    x, y, keys = everything(found)
    assert x.shape == (14, 3, 12, 20) and x.dtype == torch.uint8 and keys.tolist() == list(range(14))
    for i, name in enumerate(names(found)):
        assert torch.equal(x[i], decode(root / name, (12, 20)))
        assert found.classes[y[i]] == name.split("/")[0]
    facts = found.facts
    assert facts["kind"] == "image" and facts["shape"] == [3, 12, 20] and facts["classes"] == ["flower", "temple"]
    assert facts["counts"] == [7, 7] and facts["outputs"] == 2
    assert torch.allclose(torch.tensor(facts["mean"]), (x / 255).mean((0, 2, 3)), atol=1e-6)
    assert torch.allclose(torch.tensor(facts["std"]), (x / 255).std((0, 2, 3), correction=0), atol=1e-6)
    assert data(root, channels=1).facts["shape"] == [1, 16, 16]


def test_classes_come_from_train_in_the_order_of_their_numbers(data, tmp_path):
    fill(tmp_path / "root" / "train", ["10", "2", "9 lives"], count=2)
    fill(tmp_path / "root" / "test", ["10"], count=2)
    found = data(tmp_path / "root", val_fraction=0.0)
    assert found.facts["classes"] == ["2", "9 lives", "10"] and found.splits["test"].y.tolist() == [2, 2]


def test_a_run_keeps_the_classes_that_it_was_trained_with(data, tmp_path):
    root = fill(tmp_path / "root", ["b", "c"])
    assert data(root, classes=["c", "b"]).facts["classes"] == ["c", "b"]
    fill(root, ["a"])
    with pytest.raises(UserError, match=r"has the classes a that train does not have"):
        data(root, classes=["b", "c"]).facts  # noqa: B018


@pytest.mark.parametrize("name", [*SCRIPTS, "n" * 200])
def test_names_of_any_script_with_spaces_and_quotes(name, data, tmp_path):
    root = fill(tmp_path / name, [name, "other"], count=3)
    put(root / name / f"{name}.jpg")
    found = data(root, val_fraction=0.0, test_fraction=0.0)
    assert found.facts["classes"] == sorted([name, "other"]) and sizes(found)["train"] == 7
    assert f"{name}/{name}.jpg" in names(found)


def test_what_is_hidden_or_no_picture_is_left_out(data, tmp_path, caplog):
    caplog.set_level("INFO")
    root = fill(tmp_path / "root", count=2)
    for name in ("flower/.DS_Store", "flower/._0.jpg", ".ipynb_checkpoints/0.jpg", "flower/.thumbs/0.jpg", "loose.jpg"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"")
    (root / "flower" / "notes.TXT").write_text("no picture")
    (root / "flower" / "README").write_text("no picture")
    put(root / "flower" / "deep" / "er" / "IMG_1.JPG")
    found = data(root, val_fraction=0.0, test_fraction=0.0)
    assert found.facts["classes"] == ["flower", "temple"] and sizes(found)["train"] == 5
    assert "flower/deep/er/IMG_1.JPG" in names(found)
    assert "2 files of other kinds" in caplog.text and "flower/README" in caplog.text


def test_links_to_files_and_classes_are_followed(data, tmp_path):
    root = fill(tmp_path / "root", count=2)
    fill(tmp_path / "elsewhere", ["more"], count=3)
    (root / "more").symlink_to(tmp_path / "elsewhere" / "more")
    (root / "flower" / "one.jpg").symlink_to(root / "temple" / "0.jpg")
    (root / "flower" / "up").symlink_to(root)
    (tmp_path / "link").symlink_to(root)
    for place in (root, tmp_path / "link"):
        assert data(place).listing["train"][1] == [0] * (2 + 1) + [1] * 3 + [2] * 2


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda root: None, "root does not exist; set data.root="),
        (lambda root: root.mkdir(), "has no training samples"),
        (lambda root: fill(root, ["only"]), "has samples of one class only, only"),
        (lambda root: (fill(root) / "bare").mkdir(), r"has no picture of the classes bare; add some, or delete"),
        (lambda root: put(fill(root) / "raw" / "a.heic", format="JPEG"), r"no picture of the classes raw;"),
        (
            lambda root: (fill(root / "train"), fill(root / "val", ["flower", "flowers"])),
            r"val has the classes flowers that train does not have",
        ),
        (
            lambda root: (fill(root / "train"), fill(root / "test", ["Temple"])),
            r"test has the classes Temple that train does not have",
        ),
        (lambda root: (fill(root / "train"), put(root / "val" / "0.jpg")), "val has no picture of the classes"),
    ],
)
def test_a_bad_folder_is_named(make, problem, data, tmp_path):
    make(tmp_path / "root")
    with pytest.raises(UserError, match=problem):
        data(tmp_path / "root").facts  # noqa: B018


@pytest.mark.parametrize(
    ("keywords", "problem"),
    [
        ({"size": 0}, "`data.size` must be a side in pixels or .*; got `0`"),
        ({"size": "big"}, "`data.size` must be .*; got `big`"),
        ({"size": [1, 2, 3]}, "data.size.*got"),
        ({"channels": 4}, "`data.channels` must be 1 for grey or 3 for colour; got `4`"),
        ({"on_bad_file": "ignore"}, "`data.on_bad_file` must be error or skip; got `ignore`"),
        ({"size": None}, "null needs transforms of train and eval, and no cache; got `None`"),
    ],
)
def test_a_bad_setting_is_named(keywords, problem, data, tmp_path):
    with pytest.raises(UserError, match=problem):
        data(tmp_path, **keywords)


# what cannot be decoded


def spoil(root):
    """Three bad files in a good folder."""
    whole = (root / "flower" / "1.jpg").read_bytes()
    (root / "flower" / "1.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "flower" / "2.jpg").write_bytes(b"")
    (root / "temple" / "a b.PNG").write_text("a text")
    return root


def test_all_bad_files_are_listed_before_training(data, tmp_path):
    root = spoil(fill(tmp_path / "root"))
    (root / "temple" / "gone.jpg").symlink_to(root / "nowhere.jpg")
    with pytest.raises(UserError, match=r"4 of 22 pictures in .*root cannot be decoded; .*on_bad_file=skip") as caught:
        data(root).facts  # noqa: B018
    for line in (
        "flower/1.jpg: ",
        "flower/2.jpg: cannot identify image file",
        "temple/a b.PNG: cannot identify",
        "temple/gone.jpg: No ",
    ):
        assert f"\n  {line}" in str(caught.value)


@pytest.mark.parametrize("cache", [False, True])
def test_bad_files_are_skipped_if_asked_and_noted(cache, data, tmp_path, caplog):
    caplog.set_level("INFO")
    root = spoil(fill(tmp_path / "root"))
    for _ in range(2):  # they are not remembered: what is wrong with a file may not be in its content
        caplog.clear()
        found = data(root, on_bad_file="skip", cache=cache, val_fraction=0.0, test_fraction=0.0)
        x, y, _ = everything(found)
        assert y.tolist() == [0] * 8 + [1] * 10
        assert all(torch.equal(x[i], decode(root / name, (16, 16))) for i, name in enumerate(names(found)))
        assert found.notes["skipped"]["count"] == 3 and len(found.notes["skipped"]["files"]) == 3
        assert "3 of 21 pictures in" in caplog.text and "flower/2.jpg: cannot identify image file" in caplog.text
    put(root / "flower" / "2.jpg", 4)
    assert len(data(root, on_bad_file="skip", cache=cache, val_fraction=0, test_fraction=0).splits["train"]) == 19


def test_a_file_that_is_lost_later_is_named_in_a_sentence(data, tmp_path):
    root = fill(tmp_path / "root")
    found = data(root, num_workers=1)
    found.facts  # noqa: B018
    shutil.rmtree(root / "temple")
    with pytest.raises(UserError) as caught:
        list(found.train_dataloader())
    assert str(caught.value).endswith("jpg cannot be decoded: No such file or directory.") and "\n" not in str(
        caught.value
    )


# what is remembered


def looks(monkeypatch):
    """The names of the files that are looked at from now on."""
    seen, in_turn = [], image_folder.in_turn
    names = lambda items: [item for item in items if isinstance(item, str)]  # noqa: E731
    monkeypatch.setattr(image_folder, "in_turn", lambda f, items: seen.extend(names(items)) or in_turn(f, items))
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("cache", [False, True])
def test_the_second_start_looks_at_nothing_and_finds_the_same(cache, data, tmp_path, monkeypatch):
    root, seen = fill(tmp_path / "root"), looks(monkeypatch)
    first = data(root, cache=cache)
    facts, fingerprint = first.facts, first.fingerprint
    assert len(seen) == 20
    second = data(root, cache=cache)
    assert second.facts == facts and second.fingerprint == fingerprint and len(seen) == 20
    assert not cache or {path.suffix for path in (tmp_path / "data" / "image_folder").iterdir()} == {
        ".json",
        ".lock",
        ".u8",
    }
    assert data(root, cache=not cache).fingerprint == fingerprint
    assert sorted(path.name for path in root.iterdir()) == ["flower", "temple"], "nothing is put among the photographs"


@pytest.mark.slow
@pytest.mark.parametrize("cache", [False, True])
def test_what_has_changed_is_noticed(cache, data, tmp_path, monkeypatch):
    root = fill(tmp_path / "root")
    before = data(root, cache=cache)
    pixels, prints = everything(before)[0].clone(), before.fingerprint
    seen = looks(monkeypatch)
    name = names(before)[3]
    size = (root / name).stat().st_size
    cut(99).save(root / name, quality=95)
    (root / name).write_bytes((root / name).read_bytes()[: 10**6].ljust(size, b"\0"))  # of the same size or longer
    after = data(root, cache=cache)
    x, _, _ = everything(after)
    assert seen == [name]
    assert torch.equal(x[3], decode(root / name, (16, 16))) and not torch.equal(x[3], pixels[3])
    assert after.fingerprint != prints
    put(root / "flower" / "0a.jpg", 5), (root / "temple" / "9.jpg").unlink()
    again = data(root, cache=cache, val_fraction=0.0, test_fraction=0.0)
    x, _, _ = everything(again)
    assert all(torch.equal(x[i], decode(root / name, (16, 16))) for i, name in enumerate(names(again)))
    assert len(list((tmp_path / "data" / "image_folder").glob("*.u8"))) == cache, "an old cache is deleted"


@pytest.mark.slow
def test_a_damaged_memory_is_made_anew(data, tmp_path):
    root = fill(tmp_path / "root")
    facts = data(root).facts
    for content in (b"", b"no text \xff", None):
        (path,) = (tmp_path / "data" / "image_folder").glob("*.json")
        path.write_bytes(path.read_bytes()[:-100] if content is None else content)
        assert data(root).facts == facts


def test_without_a_place_to_write_it_says_so(data, tmp_path):
    (tmp_path / "file").write_text("no folder")
    root = fill(tmp_path / "root")
    with pytest.raises(UserError, match=r"file/image_folder cannot be written .*; set data_dir=<folder>"):
        data(root, data_dir=tmp_path / "file").facts  # noqa: B018


def test_another_size_or_background_is_another_cache(data, tmp_path):
    root = fill(tmp_path / "root", ending=".png")
    Image.new("RGBA", (20, 20), (0, 0, 0, 0)).save(root / "flower" / "0.png")
    for keywords in ({"size": 16}, {"size": [16, 20]}, {"background": "black"}, {"channels": 1}):
        found = data(root, cache=True, val_fraction=0, test_fraction=0, **keywords)
        x, _, _ = everything(found)
        settings = {"size": 16, "channels": 3, "background": "white"} | keywords
        size = settings["size"] if isinstance(settings["size"], list) else [settings["size"]] * 2
        assert torch.equal(
            x[0], decode(root / names(found)[0], tuple(size), settings["channels"], settings["background"])
        )


# workers, transforms, memory


@pytest.mark.parametrize("cache", [False, True])
def test_workers_give_the_same_batches(cache, data, tmp_path):
    root = fill(tmp_path / "root")
    alone, helped = (data(root, cache=cache, num_workers=n, batch_size=4) for n in (0, 2))
    for one, other in zip(alone.train_dataloader(), helped.train_dataloader(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert data(root, num_workers="auto", cache=True).train_dataloader().num_workers == 0
    assert data(root, num_workers="auto").train_dataloader().num_workers >= 1


def test_transforms_of_torchvision_take_whole_photographs(data, tmp_path):
    root = fill(tmp_path / "root")
    put(root / "flower" / "wide.jpg"), PHOTOS[0].save(root / "flower" / "wide.jpg")
    train, test = [v2.RandomResizedCrop(24)], [v2.Resize(32), v2.CenterCrop(24)]
    found = data(root, size=None, train_transforms=train, eval_transforms=test)
    assert found.facts["shape"] == [3, 24, 24] and everything(found)[0].shape[1:] == (3, 24, 24)
    assert torch.equal(everything(found)[0], everything(found)[0]), "a function of the key"
    with pytest.raises(UserError, match="transforms of data give samples that make no batch"):
        keywords = {"eval_transforms": [v2.Resize(24)], "val_fraction": 0, "test_fraction": 0}
        data(root, size=None, train_transforms=train, **keywords).facts  # noqa: B018


def test_it_is_small_to_send_to_a_worker(data, tmp_path):
    found = data(fill(tmp_path / "root", count=100))
    assert len(pickle.dumps(found.splits["train"])) < 20_000
    again = pickle.loads(pickle.dumps(data(tmp_path / "root", cache=True).splits["train"]))
    assert torch.equal(again.x[0], found.splits["train"].x[0])


# two at once, and an end by force

BUILD = """
import sys
from leyden.data import decode, image_folder
if sys.argv[3] == "slow":
    decoded = decode.decode
    def slow(*arguments):
        print("looking", flush=True)
        __import__("time").sleep(0.1)
        return decoded(*arguments)
    image_folder.decode = slow
data = image_folder.ImageFolder(root=sys.argv[1], data_dir=sys.argv[2], size=16, cache=True)
x, y, _ = data.splits["train"].__getitems__(list(range(len(data.splits["train"]))))
print(data.fingerprint, int(x.long().sum()), flush=True)
"""


def build_apart(root, folder, speed="fast"):
    line = [sys.executable, "-c", BUILD, str(root), str(folder), speed]
    environment = os.environ | {"PYTHONPATH": str(paths.PROJECT / "src")}
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.slow
def test_two_that_build_one_cache_at_once_do_no_harm(data, tmp_path):
    root = fill(tmp_path / "root")
    both = [build_apart(root, tmp_path / "data", "slow") for _ in range(2)]
    said = [process.communicate()[0].splitlines() for process in both]
    found = data(root, cache=True)
    expected = f"{found.fingerprint} {int(everything(found)[0].long().sum())}"
    assert [lines[-1] for lines in said] == [expected, expected]
    assert sorted(len(lines) for lines in said) == [1, 41], "one looks and writes, the other waits and reads"


@pytest.mark.slow
def test_a_killed_builder_leaves_nothing_that_is_taken_for_whole(data, tmp_path):
    root = fill(tmp_path / "root")
    killed = build_apart(root, tmp_path / "data", "slow")
    for _ in range(25):  # 20 of the first look, the others for the cache
        killed.stdout.readline()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not list((tmp_path / "data" / "image_folder").glob("*.u8"))
    found = data(root, cache=True, val_fraction=0, test_fraction=0)
    x, _, _ = everything(found)
    assert all(torch.equal(x[i], decode(root / name, (16, 16))) for i, name in enumerate(names(found)))


# whole runs


def test_a_config_builds_it_and_a_run_notes_what_it_skipped(tmp_path, configure, monkeypatch):
    from train import train

    spoil(fill(tmp_path / "mine"))
    keys = [
        "data=image_folder",
        "data.root=mine",
        "data.size=16",
        "data.num_workers=0",
        f"data_dir={tmp_path / 'data'}",
    ]
    monkeypatch.chdir(tmp_path)
    cfg = configure(*keys, "data.on_bad_file=skip", "model=mlp", "trainer.max_epochs=1", "data.batch_size=8")
    train(cfg)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["skipped"]["count"] == 3 and "cannot identify" in record["skipped"]["files"]["flower/2.jpg"]
    assert "flower/2.jpg: cannot identify image file" in (tmp_path / "run" / "train.log").read_text()
    stored = configs.stored(tmp_path / "run")
    assert stored.facts.classes == ["flower", "temple"] and build.data(stored).classes == ["flower", "temple"]
    with pytest.raises(UserError, match="root is needed"):
        build.data(configure("data=image_folder"))


@pytest.mark.slow
def test_a_benchmark_times_its_loader(tmp_path, configure):
    from benchmark import benchmark

    keys = [
        f"data.root={fill(tmp_path / 'root')}",
        f"data_dir={tmp_path / 'data'}",
        "data.size=16",
        "data.batch_size=4",
    ]
    cfg = configure("data=image_folder", "model=mlp", *keys, "rounds=1", "steps=2", config="benchmark")
    benchmark(cfg)
    assert json.loads((tmp_path / "run" / "benchmark.json").read_text())["seconds_per_batch"]["data alone"][0] > 0

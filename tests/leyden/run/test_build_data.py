"""No command tests a run on what it was trained on: neither after a change of the data, nor by another draw."""

import json
import os

import numpy as np
import pytest
import torch
from PIL import Image

from leyden.data.datamodule import DataModule
from leyden.files import read_json
from leyden.run import build, configs, paths
from leyden.run.run import Run

CONF = paths.PROJECT / "tests" / "foreign" / "conf"
QUICK = ["trainer.max_epochs=1", "logger=[]", "threads=1", "data.batch_size=8", "data.num_workers=0"]


# data that changes


def add_pictures(root, label, count):
    (root / label).mkdir(parents=True, exist_ok=True)
    have = len(list((root / label).iterdir()))
    for number in range(have, have + count):
        pixels = np.random.default_rng([ord(label), number]).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / label / f"{number}.png")


def add_sequences(root, label, count):
    (root / label).mkdir(parents=True, exist_ok=True)
    have = len(list((root / label).iterdir()))
    for number in range(have, have + count):
        values = np.random.default_rng([ord(label), number]).random((5, 2))
        np.save(root / label / f"{number}.npy", values)


def add_rows(file, label, count):
    rows = file.read_text().splitlines() if file.exists() else ["a,b,form"]
    draw = np.random.default_rng(len(rows))
    rows += [f"{draw.random():.4f},{'xy'[number % 2]},{label}" for number in range(count)]
    file.write_text("\n".join(rows) + "\n")


KINDS = {
    "image_folder": (add_pictures, "data.root", ["data.size=8", "model=mlp", "model.hidden=[4]"]),
    "sequence_folder": (add_sequences, "data.root", ["model=rnn", "model.hidden=4"]),
    "table": (add_rows, "data.path", ["model=mlp", "model.hidden=[4]"]),
}


@pytest.fixture
def typed(script, tmp_path):
    """As `script`, in a folder of logs of this test; gives the status and all that was said."""

    def run(name, *arguments):
        status, out, err = script(f"{name}.py", *arguments, f"log_dir='{tmp_path}/logs'")
        assert "Traceback" not in err, err
        return status, out + err

    return run


def made(kind, where):
    """Data of a kind, and the arguments that train on it."""
    add, key, options = KINDS[kind]
    add(where, "a", 20), add(where, "b", 20)
    folder = f"data_dir='{where.parent}'"
    target = ["data.target=form"] if kind == "table" else []
    return [f"data={kind}", f"{key}='{where}'", folder, *target, *options, *QUICK]


def take_out(kind, where):
    if kind == "table":
        where.write_text("".join(where.read_text().splitlines(True)[:-1]))
    else:
        max((where / "b").iterdir(), key=lambda path: int(path.stem)).unlink()


def files(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["table", "image_folder", pytest.param("sequence_folder", marks=pytest.mark.stress)])
def test_a_changed_data_set_is_refused_wherever_a_run_goes_on(kind, typed, tmp_path):
    where, run = tmp_path / "set", tmp_path / "logs" / "train" / "a"
    assert typed("train", *made(kind, where), "name=a")[0] == 0
    record = Run(run).record
    assert record["split_sizes"] == {"train": 28, "val": 6, "test": 6}
    assert set(record["cut_splits"]) == {"train", "val", "test"}
    commands = {
        "eval": ["run=a"],
        "predict": ["run=a", "split=test", f"output={tmp_path}/o.csv"],
        "export": ["run=a", "format=state_dict"],
    }
    assert typed("eval", "run=a")[0] == 0

    KINDS[kind][0](where, "b", 1)
    before = files(run)
    for name, keys in commands.items():
        status, said = typed(name, *keys)
        assert status == 2 and "now: {'train': 29, 'val': 6, 'test': 6}; then: {'train': 28," in said, said
        assert "exact=false" in said and files(run) == before, name
    take_out(kind, where)
    assert typed("eval", "run=a")[0] == 0

    take_out(kind, where)
    for keys in (["rerun=a", "name=b"], ["resume=a", "trainer.max_epochs=2"]):
        status, said = typed("train", *keys)
        assert status == 2 and "now: {'train': 27," in said and "facts" not in said, said
    assert typed("train", "rerun=a", "data.split_seed=1", "name=c")[0] == 0  # the user asks for another split

    for name, keys in commands.items():
        status, said = typed(name, *keys, "exact=false")
        assert status == 0 and "going on, as exact=false says" in said, said
    for path in [*(tmp_path / "logs").glob("eval/*/run.json"), *(tmp_path / "logs").glob("predict/*/run.json")]:
        evaluated = read_json(path)
        if evaluated["status"] == "finished" and "exact=false" in evaluated["command"]:
            assert evaluated["exact"] is False and "now: {'train': 27" in evaluated["not_exact"]
        elif evaluated["status"] == "finished":
            assert "exact" not in evaluated
    assert typed("train", "rerun=a", "name=d", "exact=false")[0] == 0
    facts = configs.stored(run).facts
    assert typed("train", "resume=a", "trainer.max_epochs=2", "exact=false")[0] == 0
    record = Run(run).record
    assert record["exact"] is False and "data_fingerprint" in record["not_exact"]
    assert configs.stored(run).facts == facts  # those that the model was built with


@pytest.mark.slow
def test_splits_of_the_users_own_may_change(typed, tmp_path):
    root = tmp_path / "set"
    add_pictures(root / "train", "a", 20), add_pictures(root / "train", "b", 20)
    add_pictures(root / "test", "a", 5), add_pictures(root / "test", "b", 5)
    options = ["data=image_folder", f"data.root='{root}'", f"data_dir='{tmp_path}'", *KINDS["image_folder"][2]]
    assert typed("train", *options, *QUICK, "name=a")[0] == 0
    add_pictures(root / "train", "a", 1)
    status, said = typed("eval", "run=a")
    assert status == 0 and "on 10 samples" in said, said
    for split in ("val", "train"):  # val is cut from train
        assert typed("eval", "run=a", f"split={split}")[0] == 2
    add_pictures(root / "val", "a", 5), add_pictures(root / "val", "b", 5)  # now it is not, but it was
    assert typed("eval", "run=a", "split=train")[0] == 2 and typed("eval", "run=a", "split=test")[0] == 0


@pytest.mark.slow
def test_another_cut_of_the_same_data_is_refused(typed, tmp_path):
    where = tmp_path / "set"
    assert typed("train", *made("table", where), "name=a")[0] == 0
    for key in ("data.split_seed=1", "data.test_fraction=0.5", "data.fold=1"):
        assert typed("eval", "run=a", key)[0] == 2
    moved = where.rename(tmp_path / "moved")
    assert typed("eval", "run=a", f"data.path='{moved}'", "seed=7")[0] == 0


def renamed(kind, where):
    """The same files, of which one category or class has another name, which stands elsewhere among all."""
    if kind == "table":
        where.write_text(where.read_text().replace(",x,", ",z,"))
    else:
        (where / "a").rename(where / "c")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("table", "The data has other classes or columns"),
        pytest.param("image_folder", "has the classes c that train does not have", marks=pytest.mark.slow),
    ],
)
def test_other_categories_are_refused_in_any_case(kind, said, typed, tmp_path):
    where, folder = tmp_path / "set", tmp_path / "logs" / "train" / "a"
    assert typed("train", *made(kind, where), "name=a")[0] == 0
    renamed(kind, where)
    before = files(folder)
    for name, *keys in (
        ["eval"],
        ["eval", "split=train"],
        ["predict", "split=test", f"output={tmp_path}/o.csv"],
        ["export", "format=state_dict"],
    ):
        status, what = typed(name, "run=a", *keys, "exact=false")
        assert status == 2 and said in what, what
    status, what = typed("train", "resume=a", "trainer.max_epochs=2", "exact=false")
    assert status == 2 and said in what and files(folder) == before, what
    assert typed("train", "rerun=a", "exact=false")[0] == 0  # a new model, of the data as it is now


class Drawn(DataModule):
    """Splits that its own `read` draws."""

    def read(self, split):
        order = np.random.permutation(30)
        part = dict(zip(("train", "val", "test"), np.split(order, [20, 25]), strict=True))[split]
        return torch.from_numpy(part).float()[:, None], torch.from_numpy(part) % 2


def test_what_read_draws_is_one_draw():
    np.random.seed(3)
    first = Drawn()
    seen = torch.cat([part.x for part in first.splits.values()]).flatten()
    assert seen.sort().values.tolist() == list(range(30))
    assert Drawn().fingerprint == first.fingerprint != Drawn(seed=1).fingerprint
    assert first.notes["cut_splits"] == []


# splits that are drawn


def noted(file):
    """The splits that were loaded since the last look: how often each, and its indices, one for all."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.unlink()
    found = {line["split"]: {tuple(other["indices"]) for other in lines if other["split"] == line["split"]}
             for line in lines}  # fmt: skip
    assert all(len(parts) == 1 for parts in found.values()), "a split was cut in two ways"
    return {split: parts.pop() for split, parts in found.items()}


WAYS = ("Cut", "Permuted", "Shuffled", "Early", "Late", "Prepared")
DRAWN = ["task=cuts", "data=cuts", "objective=val/loss", "trainer.max_epochs=1", "logger=[]", "threads=1", "name=a"]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["Unguarded", *WAYS])
def test_a_split_that_is_drawn_is_one_split(way, typed, tmp_path):
    file = tmp_path / "notes"
    own = ["--config-dir", str(CONF), f"data._target_=foreign.cuts.{way}", f"data.notes='{file}'"]
    status, said = typed("train", *own, *DRAWN)
    assert status == 0, said
    splits = noted(file)
    assert sorted(sum(splits.values(), ())) == list(range(120)) and splits["train"] != tuple(range(70))

    torch.manual_seed(1), np.random.seed(1)  # whatever was drawn before
    trust = "trusted=[foreign]"
    for name, *keys in (
        ("eval", "run=a", trust),
        ("eval", "run=a", trust, "split=val", "seed=5"),
        ("predict", "run=a", trust, "split=test", f"output={tmp_path}/o.csv"),
        ("train", "resume=a", trust, "trainer.max_epochs=2"),
        ("train", "rerun=a", trust),
        ("train", "rerun=a", trust, "seed=5"),
    ):
        status, said = typed(name, *keys)
        assert status == 0, said
        again = noted(file)
        same = "rerun=a" not in keys or "seed=5" not in keys
        assert again and (again.items() <= splits.items()) is same, keys


@pytest.mark.slow
def test_loaders_that_are_made_anew_draw_the_same_after_a_resume(typed, tmp_path):
    own = ["--config-dir", str(CONF), "data._target_=foreign.cuts.Late", f"data.notes='{tmp_path / 'notes'}'"]
    keys = [*own, *DRAWN[:-1], "trainer.reload_dataloaders_every_n_epochs=1"]
    assert typed("train", *keys, "name=whole", "trainer.max_epochs=3")[0] == 0
    assert typed("train", *keys, "name=part", "trainer.max_epochs=2")[0] == 0
    assert typed("train", "resume=part", "trusted=[foreign]", "trainer.max_epochs=3")[0] == 0
    whole, part = (Run(tmp_path / "logs/train" / name).metrics for name in ("whole", "part"))
    assert whole["weights_sha256"] == part["weights_sha256"] and whole["test"] == part["test"]


@pytest.mark.slow
def test_two_processes_cut_as_one_does(command, tmp_path):
    file = tmp_path / "notes"
    line = [
        "train.py",
        "--config-dir",
        str(CONF),
        "data._target_=foreign.cuts.Permuted",
        f"data.notes='{file}'",
        *DRAWN,
    ]
    env = os.environ | {"PYTHONPATH": str(CONF.parents[1])}
    trained = command(*line, "trainer=ddp", env=env)
    assert trained.returncode == 0, trained.stderr
    ranks = {json.loads(line)["rank"] for line in file.read_text().splitlines()}
    splits = noted(file)
    assert ranks == {"0", "1"} and sorted(sum(splits.values(), ())) == list(range(120))
    evaluated = command("eval.py", "run=a", "trusted=[foreign]", env=env)
    assert evaluated.returncode == 0, evaluated.stderr
    assert noted(file) == {"test": splits["test"]}


def test_the_draws_of_the_model_stay_as_they_were(configure, tmp_path):
    from lightning import seed_everything

    keys = [f"hydra.searchpath=['file://{CONF}']", "task=cuts", "data=cuts", f"data.notes='{tmp_path / 'notes'}'"]
    cfg = configure(*keys, "data._target_=foreign.cuts.Early")
    for at in range(2):
        seed_everything(at)
        expected = torch.rand(1), np.random.rand(1)
        seed_everything(at)
        build.data(cfg).setup("fit")
        assert (torch.rand(1), np.random.rand(1)) == expected


def test_training_loaders_that_are_made_anew_draw_anew(configure, tmp_path):
    keys = [f"hydra.searchpath=['file://{CONF}']", "task=cuts", "data=cuts", f"data.notes='{tmp_path / 'notes'}'"]
    data = build.data(configure(*keys, "data._target_=foreign.cuts.Late"))

    def parts(epoch, every):
        data.trainer = type("Trainer", (), {"world_size": 1, "reload_dataloaders_every_n_epochs": every})
        data.trainer.current_epoch = epoch
        return [sorted(loader().dataset.indices) for loader in (data.train_dataloader, data.val_dataloader)]

    first = parts(0, 0)
    assert parts(3, 0) == first == parts(0, 1)
    assert parts(1, 1)[0] == parts(1, 1)[0] != first[0] and parts(1, 1)[1] == first[1]
    assert parts(2, 2)[0] == parts(3, 2)[0] != parts(1, 2)[0]


def test_loaders_without_a_trainer(configure, tmp_path):
    keys = [f"hydra.searchpath=['file://{CONF}']", "task=cuts", "data=cuts", f"data.notes='{tmp_path / 'notes'}'"]
    datamodule, _ = build.parts(configure(*keys))
    datamodule.setup("test")
    assert sum(len(batch) for (batch,) in datamodule.test_dataloader()) == 30

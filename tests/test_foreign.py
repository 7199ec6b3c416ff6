"""Tasks and data that know nothing of leyden train and evaluate here, with their own YAMLs."""

import csv
import os
import runpy
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor
from omegaconf import OmegaConf
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, WeightedRandomSampler

from foreign.partials import DataModule, LitModule
from foreign.segmentation import Segmentation, Shapes
from foreign.stream import Forecast, Swings
from leyden import UserError
from leyden.files import read_json
from leyden.launch import overrides, plan
from leyden.resume import exact
from leyden.run import configs, paths, trust
from leyden.run.run import Run

CONF = Path(__file__).parent / "foreign" / "conf"
OBJECTIVES = {"hdf5": "val/accuracy", "segmentation": "val/iou", "gan": "val/energy", "stream": "val/mse"}
OBJECTIVES |= {"partials": "val/acc", "nodes": "val/acc"}
pytestmark = pytest.mark.slow


@pytest.fixture
def train(configure, tmp_path):
    """Train one of the experiments in this process; returns its run directory."""

    def run(name: str, *keys: str, folder: str = "run") -> Path:
        from train import train

        paths = [f"hydra.searchpath=['file://{CONF}']", f"data_dir='{tmp_path}'"]
        cfg = configure(*paths, f"experiment={name}", *keys, folder=folder)
        train(cfg)
        return Path(cfg.run_dir)

    return run


@pytest.fixture
def interrupted(train, configure, monkeypatch):
    """Train one of the experiments with an interruption in its second epoch; returns its run directory."""

    def run(name: str, *keys: str) -> Path:
        from leyden.resume.keeper import Keeper
        from train import train as again

        before, calls = Keeper.on_train_batch_end, []

        def interrupt(self, trainer, *arguments):
            before(self, trainer, *arguments)
            calls.append(1)
            if len(calls) == trainer.num_training_batches + 3 or (name == "stream" and len(calls) == 11):
                raise InterruptedError

        monkeypatch.setattr(Keeper, "on_train_batch_end", interrupt)
        with pytest.raises(InterruptedError):
            train(name, "checkpoint.every_n_steps=2", *keys)
        run = Path(configure().run_dir)
        cfg = configs.stored(run)
        cfg.update({"run_dir": str(run), "resume": str(run), "trusted": ["foreign", "test_foreign"]})
        again(cfg)
        return run

    return run


@pytest.fixture
def evaluate(tmp_path):
    """Evaluate a run in this process; returns the results."""

    def run(directory: Path, **keys: object) -> dict:
        from eval import evaluate

        start = plan.plan([f"run='{directory}'", f"log_dir='{tmp_path}'"], "eval")
        tree = overrides.without_hydra(start.config.tree)
        tree.update(keys, run_dir=str(start.directory))
        return evaluate(tree)

    return run


@pytest.mark.parametrize("name", OBJECTIVES)
def test_it_trains_and_evaluates(train, evaluate, name):
    run = train(name)
    record, metrics = (read_json(run / file) for file in ("run.json", "metrics.json"))
    assert record["status"] == "finished" and metrics["best"]["monitor"] == OBJECTIVES[name]
    assert (run / "checkpoints" / "last.ckpt").exists() and metrics["test"]["checkpoint"] == "checkpoints/best.ckpt"
    assert not {"model", "optimizer", "scheduler"} & set(configs.stored(run))
    reason = "Swings is an IterableDataset, which alone knows its order" if name == "stream" else None
    assert (record["exact"], record["not_exact"]) == (reason is None, reason)

    with pytest.raises(UserError, match=r"foreign\.\w+\.\w+.*'trusted=\[foreign\]'"):
        evaluate(run)
    again = evaluate(run, trusted=["foreign"])
    assert again.items() <= {**metrics["test"], "samples": None}.items() and any("/" in key for key in again)
    val = evaluate(run, trusted=["foreign"], split="val")[OBJECTIVES[name]]
    assert val == metrics["best"]["value"] or name == "gan"  # which draws noise
    with pytest.raises(UserError, match="split=val"):
        evaluate(run, trusted=["foreign"], split="train")

    twin = Run(train(name, folder="twin")).metrics
    assert twin["weights_sha256"] == metrics["weights_sha256"]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_it_goes_on_exactly_or_says_why_not(train, interrupted, name):
    whole = Run(train(name, "checkpoint.every_n_steps=2", folder="whole")).metrics
    run = interrupted(name)
    found, record = (read_json(run / file) for file in ("metrics.json", "run.json"))
    assert record["status"] == "finished" and len(record["resumes"]) == 1
    if record["exact"]:
        assert all(found[name] == whole[name] for name in ("weights_sha256", "best", "train", "val", "test"))
    else:
        assert name == "stream" and "IterableDataset" in record["not_exact"]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_commands(name, tmp_path, monkeypatch, capsys):
    """As typed, but in this process, which has imported torch."""
    folders = [f"log_dir='{tmp_path / 'logs'}'", f"data_dir='{tmp_path}'"]
    options = [f"task={name}", f"data={name}", f"objective={OBJECTIVES[name]}", "debug=fast", "threads=1"]
    options += ["checkpoint.mode=min"] * (name == "gan")
    for line in (
        ["train.py", "--config-dir", str(CONF), *options, *folders],
        ["eval.py", "run=latest", "trusted=[foreign]", folders[0]],
    ):
        monkeypatch.setattr(sys, "argv", [str(paths.PROJECT / "src" / line[0]), *line[1:]])
        runpy.run_path(sys.argv[0], run_name="__main__")
        assert OBJECTIVES[name].replace("val", "test") in capsys.readouterr().out


def test_a_package_is_found_by_its_path(command):
    line = ["train.py", "--config-dir", str(CONF), "experiment=gan", "debug=fast", "threads=1"]
    trained = command(*line, env=os.environ | {"PYTHONPATH": str(CONF.parents[1])})
    assert trained.returncode == 0, trained.stderr


def test_a_package_that_is_not_there(train):
    stored = OmegaConf.create({"task": {"_target_": "nowhere.Net"}, "trusted": ["nowhere"], "resume": "run"})
    with pytest.raises(UserError, match=r"^The stored config wants nowhere\.Net, .*'nowhere'"):
        trust.checked(stored, stored.task)
    with pytest.raises(UserError, match=r"^task \(nowhere\.Net\) cannot be built: .*'nowhere'"):
        train("gan", "task._target_=nowhere.Net")


class Blind(Forecast):
    """Has no validation."""

    validation_step = LightningModule.validation_step


class Silent(Forecast):
    """Logs nothing in validation."""

    def validation_step(self, batch, batch_idx):
        self.loss(batch)


@pytest.mark.parametrize("task", ["Blind", "Silent"])
@pytest.mark.parametrize("sanity", [0, 2])
def test_without_a_metric_the_last_weights_are_tested(train, task, sanity):
    run = train("stream", f"task._target_=test_foreign.{task}", f"trainer.num_sanity_val_steps={sanity}")
    metrics, log = Run(run).metrics, (run / "train.log").read_text()
    assert metrics["best"] == {} and metrics["test"]["checkpoint"] is None and metrics["test"]["test/mse"] > 0
    assert log.count("val/mse was never logged") == 1 and "tested the last weights" in log
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["last.ckpt"]


@pytest.mark.parametrize("sanity", [0, 2])
def test_an_objective_that_is_not_logged(train, sanity):
    with pytest.raises(UserError, match=r"objective=val/iuo is not logged; choose one of .*val/iou"):
        train("segmentation", "objective=val/iuo", "checkpoint.mode=max", f"trainer.num_sanity_val_steps={sanity}")


def test_several_optimizer_steps_in_a_batch_do_not_outrun_a_save(train, monkeypatch):
    from leyden.resume.keeper import Keeper

    saved = []
    monkeypatch.setattr(Keeper, "save", lambda self, trainer, name: saved.append((name, trainer.global_step)))
    with pytest.raises(UserError, match="no checkpoint"):  # nothing was written
        train("gan", "checkpoint.every_n_steps=5", "trainer.max_epochs=1")
    assert [step for name, step in saved if name == "last.ckpt"] == [6, 10, 16]


def test_two_ranks_log_and_decide_as_one_process_does(train, command, tmp_path):
    """With values that differ between ranks, of 101 samples, and other best epochs on each."""
    one, line = train("uneven"), ["train.py", "--config-dir", str(CONF), "experiment=uneven", "trainer=ddp"]
    ran = command(*line, "data.batch_size=10", "timeout=60", env=os.environ | {"PYTHONPATH": str(CONF.parents[1])})
    assert ran.returncode == 0, ran.stderr
    (two,) = (tmp_path / "logs" / "train").iterdir()
    expected, *ranks = (read_json(run / f"seen{n}.json") for run, n in ((one, 0), (two, 0), (two, 1)))
    assert expected["val/mean"] == 50 and expected["val/sum"] == 5050 and expected["epochs"] == 3
    assert (ranks[0]["weight"], ranks[0]["bias"]) == (ranks[1]["weight"], ranks[1]["bias"])
    for seen in ranks:
        assert {*seen} == {*expected}
        for name in {*seen} - {"val/rank", "train/both_step"}:  # which each rank has for itself
            assert seen[name] == pytest.approx(expected[name], rel=1e-6), name
    alone, both = (Run(run).metrics for run in (one, two))
    assert both["best"] == pytest.approx(alone["best"]) and both["best"]["epoch"] == 0
    assert both["test"] == alone["test"] and both["test"]["test/mean/dataloader_idx_0"] == 50
    assert [path.name for path in (two / "user").iterdir()] == ["best-epoch=0.ckpt"]
    rows = [(run / "metrics.csv").read_text().splitlines() for run in (one, two)]
    assert len(rows[0]) == len(rows[1]) and Run(two).record["exact"]


class Backwards(SequentialSampler):
    def __iter__(self):
        return reversed(range(len(self.data_source)))


class Pairs(BatchSampler):
    pass


@pytest.mark.parametrize(
    ("loader", "named"),
    [
        (partial(DataLoader, range(9)), None),
        (partial(DataLoader, range(9), shuffle=True, batch_size=2), None),
        (partial(DataLoader, range(9), batch_size=None), None),
        (partial(DataLoader, range(9), sampler=WeightedRandomSampler([1.0] * 9, 9)), None),
        (partial(DataLoader, range(9), sampler=exact.Order(9)), None),
        (partial(DataLoader, range(9), sampler=Backwards(range(9))), "Backwards"),
        (partial(DataLoader, range(9), batch_sampler=Pairs(RandomSampler(range(9)), 2, False)), "Pairs"),
        (partial(DataLoader, Swings(0, 9, 0, 1)), "Swings"),
        (partial(list, range(9)), "list"),
    ],
)
def test_whose_order_can_be_found_again(loader, named):
    reason = exact.why_not(loader())
    assert reason is None if named is None else named in reason


class Sized(Shapes):
    def __init__(self, batch_size=16):
        super().__init__(batch_size)
        self.facts["shape"] = torch.zeros(3)


class Namesake(Shapes):
    """Has attributes that leyden's own datamodule has, too."""

    def __init__(self):
        super().__init__()
        self.transforms, self.batch_size = nn.Identity(), {"train": 16}

    def train_dataloader(self):
        return DataLoader(self.splits[0], 16)

    val_dataloader = test_dataloader = train_dataloader


class Sampling(Segmentation):
    """Has an attribute that leyden's own tasks have, too."""

    samples = torch.zeros(3)


def test_names_are_free(train):
    targets = ["data._target_=test_foreign.Namesake", "task._target_=test_foreign.Sampling"]
    run = train("segmentation", *targets, "~data.batch_size")
    assert Run(run).metrics["test"]["samples"] is None


def test_facts_are_plain(train):
    with pytest.raises(UserError, match="facts\\.shape"):
        train("segmentation", "data._target_=test_foreign.Sized")


@pytest.fixture
def typed(tmp_path, script):
    """As `script`, on a run of theirs."""
    return lambda name, *arguments: script(name, *arguments, "trusted=[foreign]", f"log_dir='{tmp_path}'")


@pytest.mark.parametrize("name", OBJECTIVES)
def test_they_predict_and_export_or_say_why_not(train, typed, tmp_path, name):
    run = train(name, "trainer.max_epochs=1")
    status, said, sentence = typed("predict.py", f"run={run}", "split=test", f"output={tmp_path}/o.csv")
    if name in ("partials", "nodes"):
        assert status == 0, sentence
        status, _, sentence = typed("predict.py", f"run={run}", f"input={tmp_path}")
    elif name in ("hdf5", "segmentation"):
        assert status == 0, sentence
        with open(tmp_path / "o.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        assert status == 0 and len(rows) == {"hdf5": 49, "segmentation": 41}[name] and rows[3]["name"] == "3"
        assert set(rows[0]) == {"name", "error", *{"hdf5": ["form", "prob"], "segmentation": ["ground"]}[name]}
        if name == "segmentation":
            masks = np.load(tmp_path / "o.npz")["mask"]
            assert masks.shape == (41, 16, 16) and float(rows[7]["ground"]) == pytest.approx((masks[7] == 0).mean())
            assert "output=" in typed("predict.py", f"run={run}", "split=test")[2]  # no place for arrays
        status, _, sentence = typed("predict.py", f"run={run}", f"input={tmp_path}")
    assert status == 2 and len(sentence.splitlines()) == 1 and ("split=test" in sentence or "predict_step" in sentence)

    status, said, sentence = typed("export.py", f"run={run}", f"output={tmp_path}/a.onnx")
    if name in ("hdf5", "stream", "partials", "nodes"):
        inputs = dict.fromkeys(("partials", "nodes"), "{'x': ['batch', 8]}")
        inputs |= {"hdf5": "{'wave': ['batch', 32], 'phase': ['batch']}", "stream": "{'seen': ['batch', 16, 1]}"}
        assert status == 0 and inputs[name] in said and (tmp_path / "a.onnx").exists()
    else:
        assert status == 2 and "example_input" in sentence and len(sentence.splitlines()) == 1


class Asking(LitModule):
    """Asks the trainer for what ModelCheckpoint says, and has loaders and callbacks of its own."""

    def configure_callbacks(self):
        return [LearningRateMonitor()]

    def on_test_start(self):
        asked = self.trainer.checkpoint_callback
        folder = Path(asked.dirpath)
        assert asked.best_model_path == str(folder / "best.ckpt") and asked.last_model_path == str(folder / "last.ckpt")
        best = torch.load(asked.best_model_path, weights_only=True)["leyden"]["best"]["value"]
        assert asked.best_model_score.item() == pytest.approx(best)
        assert self.trainer.log_dir == self.logger.log_dir == str(folder.parent / "tensorboard")

    def training_step(self, batch, batch_idx):
        return super().training_step(batch["a"], batch_idx) + super().training_step(batch["b"], batch_idx)

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        super().test_step(batch, batch_idx)


class Several(DataModule):
    def train_dataloader(self):
        return {"a": super().train_dataloader(), "b": super().train_dataloader()}

    def test_dataloader(self):
        return [super().test_dataloader(), super().val_dataloader()]


def test_what_modules_ask_for_and_several_loaders(train, evaluate, interrupted):
    keys = ["task._target_=test_foreign.Asking", "data._target_=test_foreign.Several", "logger=[tensorboard]"]
    run = train("partials", *keys, folder="whole")
    assert "by class" not in (run / "train.log").read_text()
    assert "test/acc/dataloader_idx_1 0." in (run / "train.log").read_text()
    again = interrupted("partials", *keys)
    names = ("weights_sha256", "best", "train", "val", "test")
    assert Run(again).record["exact"] and all(Run(again).metrics[name] == Run(run).metrics[name] for name in names)


def test_lightning_reads_our_checkpoints(train, tmp_path):
    run = train("segmentation")
    best, last = Run(run).best, Run(run).last
    module = Segmentation.load_from_checkpoint(best, num_classes=3)
    before = torch.load(best, weights_only=True)["state_dict"]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    trainer = Trainer(
        max_epochs=3, accelerator="cpu", logger=False, default_root_dir=tmp_path, enable_progress_bar=False
    )
    trainer.fit(module, Shapes(), ckpt_path=last)
    assert (trainer.current_epoch, trainer.global_step) == (3, 24)

"""A run that is stopped anywhere and goes on in this process: the same numbers as an unbroken one."""

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning import LightningModule
from lightning.pytorch.callbacks import Callback
from omegaconf import OmegaConf, open_dict
from torchmetrics import MaxMetric, MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassPrecision, MulticlassRecall

import stress_resume
from leyden.resume import checkpoints
from leyden.run import build
from leyden.run.run import Run

SMALL = [
    "data=fake",
    "data.num_samples=140",
    "data.shape=[1,8,8]",
    "data.batch_size=16",
    "model=mlp",
    "model.dropout=0.2",
    "trainer.log_every_n_steps=2",
]  # 6 batches an epoch, 2 of validation


class Interruption(Exception):
    pass


@pytest.fixture
def broken(configure, monkeypatch, tmp_path):
    """Train with a stop at the n-th call of a hook, and go on; the run's directory."""

    def run(keys: list[str], hook: str, n: int, change=lambda cfg: None) -> Path:
        from train import train

        calls = []

        class Stopper(Callback):
            pass

        def call(self, trainer, *_):
            calls.append(trainer.global_step)
            if len(calls) == n and not trainer.sanity_checking:
                raise Interruption

        setattr(Stopper, hook, call)
        watchers = build.watchers
        cfg = configure(*keys, folder=f"{hook}{n}")
        change(cfg)
        with monkeypatch.context() as patch:
            patch.setattr(build, "watchers", lambda cfg: put(watchers(cfg), Stopper()))
            with pytest.raises(Interruption):
                train(cfg)
        again = OmegaConf.load(Path(cfg.run_dir) / "config.yaml")
        again.run_dir, again.resume, again.trusted = cfg.run_dir, cfg.run_dir, cfg.trusted
        train(again)
        return Path(cfg.run_dir)

    return run


def put(callbacks, more):
    return [callbacks[0], more, *callbacks[1:]]


def come_to_the_same(broken, configure, keys, stops, change=lambda cfg: None):
    from train import train

    cfg = configure(*keys, folder="whole")
    change(cfg)
    train(cfg)
    whole = stress_resume.results(Path(cfg.run_dir))
    for hook, n in stops:
        found = stress_resume.results(broken(keys, hook, n, change))
        wrong = stress_resume.differences(found, whole)
        assert not wrong, "\n".join(f"{hook} {n}: {found[part]}\n{whole[part]}" for part in wrong)


STOPS = [("on_train_batch_end", 9), ("on_validation_batch_end", 5), ("on_train_epoch_end", 2)]
CASES = {
    "accumulation, average and bf16": [
        "trainer.accumulate_grad_batches=2",
        "trainer.val_check_interval=4",
        "callbacks=[ema]",
        "callbacks.ema.decay=0.5",
        "trainer.precision=bf16-mixed",
        "checkpoint.every_n_steps=1",
    ],
    "plateau, and validation inside an accumulation": [
        "scheduler=plateau",
        "scheduler.patience=0",
        "trainer.accumulate_grad_batches=4",
        "trainer.val_check_interval=3",
        "checkpoint.every_n_steps=1",
    ],
    "plateau, and validations that do not count epochs": [
        "scheduler=plateau",
        "scheduler.patience=0",
        "trainer.val_check_interval=4",
        "trainer.check_val_every_n_epoch=null",
        "checkpoint.every_n_steps=1",
    ],
    "watchers and a found rate": [
        "callbacks=[gradients,finite,lr_finder]",
        "callbacks.gradients.every_n_steps=2",
        "callbacks.lr_finder.num_training_steps=30",
        "callbacks.lr_finder.use=true",
        "checkpoint.every_n_steps=2",
    ],
    "a found batch size": [
        "callbacks=[batch_size_finder]",
        "callbacks.batch_size_finder.use=true",
        "callbacks.batch_size_finder.init_val=2",
        "callbacks.batch_size_finder.max_val=8",
        "checkpoint.every_n_steps=3",
    ],
    "no validation data": ["data.val_fraction=0", "checkpoint.every_n_steps=3"],
    "a training monitor, and validation every second epoch": [
        "checkpoint.monitor=train/loss",
        "trainer.check_val_every_n_epoch=2",
        "checkpoint.every_n_steps=4",
    ],
    "transforms, augmentation and workers": [
        "data.train_transforms=[{_target_: torchvision.transforms.v2.RandomHorizontalFlip}]",
        "data.augment=[{_target_: leyden.data.augment.ShiftCrop, pixels: 1}]",
        "data.num_workers=1",
        "data.balanced=true",
        "checkpoint.every_n_steps=2",
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_stop_anywhere_changes_nothing(broken, configure, case):
    keys = [*SMALL, "trainer.max_epochs=2", *CASES[case]]
    validated = not any(word in case for word in ("no validation", "second", "inside"))
    stops = STOPS[:1] if "workers" in case else [stop for stop in STOPS if validated or "validation" not in stop[0]]
    come_to_the_same(broken, configure, keys, stops)


@pytest.mark.slow
def test_a_frozen_body_thaws_in_its_epoch(broken, configure):
    keys = [
        *SMALL,
        "trainer.max_epochs=3",
        "callbacks=[freeze]",
        "callbacks.freeze.until_epoch=1",
        "checkpoint.every_n_steps=2",
    ]
    come_to_the_same(broken, configure, keys, [("on_train_batch_end", 4), ("on_train_batch_end", 9)])


@pytest.mark.slow
def test_early_stopping_that_has_fired_fires_again(broken, configure):
    keys = [*SMALL, "trainer.max_epochs=9", "callbacks=[early_stopping]", "callbacks.early_stopping.patience=1"]
    come_to_the_same(broken, configure, [*keys, "optimizer.lr=1e-30"], [("on_train_end", 1), ("on_test_start", 1)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "stops"),
    [
        (9, [("on_train_batch_end", 6), ("on_train_end", 1)]),
        (12, [("on_validation_batch_end", 5), ("on_train_end", 1)]),
    ],
)
def test_the_last_of_max_steps(broken, configure, steps, stops):
    """In mid-epoch, and right before a validation, which is not lost."""
    keys = [*SMALL, f"trainer.max_steps={steps}", "trainer.max_epochs=4", "checkpoint.every_n_steps=4"]
    come_to_the_same(broken, configure, keys, [*stops, ("on_test_start", 1)])


@pytest.mark.slow
def test_a_run_at_its_end_has_the_averaged_weights(broken, configure):
    """No step is trained after the stop; the hash of the weights is still that of the average."""
    keys = [*SMALL, "trainer.max_epochs=1", "callbacks=[ema]", "callbacks.ema.decay=0.5"]
    come_to_the_same(broken, configure, keys, [("on_test_start", 1)])


class Plain(LightningModule):
    """A task of another kind: it averages with self.log, and with a metric of torchmetrics."""

    def __init__(self, model, num_classes: int = 10):
        super().__init__()
        self.model, self.accuracy = model, MulticlassAccuracy(num_classes)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.model(x)
        loss = torch.nn.functional.cross_entropy(logits, y)
        self.accuracy(logits, y)
        self.log("train/loss", loss, on_step=False, on_epoch=True)
        self.log("train/worst", loss, on_step=True, on_epoch=True, reduce_fx="max")
        self.log("train/accuracy", self.accuracy, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.slow
def test_what_a_task_of_another_kind_averages_goes_on(broken, configure):
    def change(cfg):
        cfg.task, cfg.trusted = {"_target_": f"{__name__}.Plain", "model": "${model}"}, [__name__]
        cfg.objective = "val/loss"

    keys = [*SMALL, "trainer.max_epochs=2", "checkpoint.every_n_steps=4"]
    come_to_the_same(broken, configure, keys, [("on_train_batch_end", 5), ("on_validation_batch_end", 3)], change)


class Recipes(Plain):
    """Keeps what it averages in attributes, metrics and a running average of its own, and draws in its step."""

    def __init__(self, model):
        super().__init__(model)
        self.outputs, self.running, self.lowest = [], None, float("inf")
        self.mean, self.largest = MeanMetric(), MaxMetric()
        self.several = MetricCollection([MulticlassPrecision(10), MulticlassRecall(10)])  # of one state

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.outputs.append(loss * torch.rand(()))
        self.running = 0.9 * (self.running or loss.item()) + 0.1 * loss.item() * np.random.rand()
        self.mean.update(loss * random.random())
        self.largest.update(loss)
        self.several.update(self.model(batch[0]), batch[1])
        return loss

    def on_train_epoch_end(self):
        self.log("train/own_mean", torch.stack(self.outputs).mean())
        self.log_dict({"train/running": self.running, "train/mean": self.mean.compute()})
        self.log("train/largest", self.largest.compute())
        self.log_dict({f"train/{name}": value for name, value in self.several.compute().items()})
        self.outputs.clear()
        self.mean.reset(), self.largest.reset(), self.several.reset()

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            self.lowest = min(self.lowest, float(self.outputs[-1]) if self.outputs else self.lowest)
            self.log("val/lowest", self.lowest)


class Losses(Callback):
    """Counts and means of its own, without a state_dict."""

    def __init__(self):
        self.counts, self.sum = Counter(), 0.0

    def on_train_batch_end(self, trainer, task, outputs, batch, batch_idx):
        self.counts[batch_idx % 2] += 1
        self.sum += float(outputs["loss"]) * self.counts[0]

    def on_train_epoch_end(self, trainer, task):
        task.log("train/by_callback", self.sum)


@pytest.mark.slow
def test_attributes_of_the_users_own_go_on(broken, configure, monkeypatch):
    """A mean over the epoch counts the batches before a stop, too."""
    watchers = build.watchers
    monkeypatch.setattr(build, "watchers", lambda cfg: put(watchers(cfg), Losses()))

    def change(cfg):
        cfg.task, cfg.trusted = {"_target_": f"{__name__}.Recipes", "model": "${model}"}, [__name__]
        cfg.objective = "val/loss"

    keys = [*SMALL, "trainer.max_epochs=2", "checkpoint.every_n_steps=3"]
    stops = [("on_train_batch_end", 5), ("on_train_batch_end", 10), ("on_validation_batch_end", 3)]
    come_to_the_same(broken, configure, keys, [*stops, ("on_train_epoch_end", 2)], change)
    run = Path(configure(folder="whole").run_dir)
    assert Run(run).record["exact"]
    assert Run(run).metrics["train"]["train/own_mean"] > 0


class Manual(Plain):
    """Two optimizers that step in turn, while gradients of the other add up, and a schedule of its own."""

    def __init__(self, model):
        super().__init__(model)
        self.automatic_optimization, self.scale = False, torch.nn.Parameter(torch.ones(()))

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        loss = torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1]) * self.scale
        self.manual_backward(loss)
        optimizer = second if batch_idx % 2 else first
        optimizer.step(), optimizer.zero_grad()
        self.lr_schedulers().step()
        self.log("train/loss", loss, on_step=False, on_epoch=True)

    def configure_optimizers(self):
        second = torch.optim.SGD([self.scale], 0.1, momentum=0.9)
        first = torch.optim.Adam(self.model.parameters(), 0.01)
        return [first, second], [torch.optim.lr_scheduler.StepLR(second, 2, 0.5)]


CALLBACKS = {
    "EMAWeightAveraging": {"decay": 0.9},
    "GradientAccumulationScheduler": {"scheduling": {0: 1, 1: 4}},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CALLBACKS, "Manual"])
def test_what_lightning_has_of_its_own_goes_on(broken, configure, name):
    def change(cfg):
        task = "Manual" if name == "Manual" else "Plain"
        cfg.task, cfg.trusted = {"_target_": f"{__name__}.{task}", "model": "${model}"}, [__name__]
        cfg.objective = "val/loss"
        if name in CALLBACKS:
            with open_dict(cfg):
                cfg.callbacks = {"it": {"_target_": f"lightning.pytorch.callbacks.{name}", **CALLBACKS[name]}}

    keys = [*SMALL, "trainer.max_epochs=3", "checkpoint.every_n_steps=2"]
    come_to_the_same(broken, configure, keys, [("on_train_batch_end", 9), ("on_train_epoch_end", 2)], change)


@pytest.mark.slow
def test_a_plateau_does_not_step_twice_when_max_steps_are_raised(configure):
    """The run ends with a validation, which the longer one does again."""
    from train import train

    keys = [*SMALL, "scheduler=plateau", "scheduler.patience=0", "trainer.max_epochs=4", "optimizer.lr=0.3"]
    whole, short = (configure(*keys, f"trainer.max_steps={n}", folder=str(n)) for n in (24, 12))
    train(whole), train(short)
    again = OmegaConf.load(Path(short.run_dir) / "config.yaml")
    again.run_dir = again.resume = short.run_dir
    again.trainer.max_steps = 24
    train(again)
    found, expected = (stress_resume.results(Path(cfg.run_dir)) for cfg in (short, whole))
    assert found["metrics"] == expected["metrics"] and found["rows"] == expected["rows"]


class Streams(Plain):
    def training_step(self, batch, batch_idx):
        self.stream = iter([])
        return super().training_step(batch, batch_idx)


def test_an_average_of_lightning_that_does_not_go_on_is_named(configure):
    from train import train

    cfg = configure(*SMALL, "trainer.max_epochs=1")
    with open_dict(cfg):
        swa = {"_target_": "lightning.pytorch.callbacks.StochasticWeightAveraging", "swa_lrs": 0.01}
        cfg.callbacks = {"swa": swa}
    cfg.task, cfg.trusted = {"_target_": f"{__name__}.Plain", "model": "${model}"}, [__name__]
    cfg.objective = "val/loss"
    train(cfg)
    assert "StochasticWeightAveraging" in Run(Path(cfg.run_dir)).record["not_exact"]


def test_what_cannot_go_on_is_named(configure, monkeypatch):
    from train import train

    cfg = configure(*SMALL, "trainer.max_epochs=1")
    cfg.task, cfg.trusted = {"_target_": f"{__name__}.Streams", "model": "${model}"}, [__name__]
    cfg.objective = "val/loss"
    train(cfg)
    record = Run(Path(cfg.run_dir)).record
    assert not record["exact"] and "task.stream (list_iterator)" in record["not_exact"]


COMPILED = ["task.compile=true", "model.hidden=[16]", "model.dropout=0", "trainer.max_epochs=2", "threads=1"]


@pytest.mark.slow
def test_what_is_compiled_does_not_depend_on_what_was_seen(broken, configure):
    """A run that goes on sees a validation batch first, or a batch of another size."""
    keys = [*SMALL, *COMPILED, "data.drop_last=false", "checkpoint.every_n_steps=1"]
    come_to_the_same(broken, configure, keys, [("on_train_batch_end", 4)])


def test_a_checkpoint_says_where_it_is(train):
    run = train("checkpoint.every_n_steps=2", "trainer.accumulate_grad_batches=2")
    for name in ("best.ckpt", "last.ckpt"):
        entry = checkpoints.read(run / "checkpoints" / name)["leyden"]
        assert entry["phase"] == "fit" and entry["resumable"] and entry["world_size"] == 1
        assert len(entry["running"]) == 1 and all((run / "tensorboard" / file).exists() for file in entry["files"])
    assert Run(run).record["exact"]

import csv
import os
import signal
from pathlib import Path

import lightning
import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from leyden import UserError
from leyden.resume import checkpoints
from leyden.resume.keeper import Keeper
from leyden.run import build
from leyden.run.run import Run


def content(run, name):
    return checkpoints.read(run / "checkpoints" / name)


def test_best_belongs_to_its_value(train):
    run = train("trainer.max_epochs=4")
    best, metrics = content(run, "best.ckpt"), Run(run).metrics
    with open(run / "metrics.csv") as file:
        values = [float(row["val/acc"]) for row in csv.DictReader(file) if row["val/acc"]]
    assert metrics["best"]["value"] == max(values) == pytest.approx(best["leyden"]["metrics"]["val/acc"])
    assert metrics["best"]["epoch"] == max(epoch for epoch, value in enumerate(values) if value == max(values))
    assert metrics["weights_sha256"] == checkpoints.sha256(content(run, "last.ckpt")["state_dict"])


def test_nothing_is_saved_inside_an_accumulation(train, monkeypatch):
    saved, whole = [], lightning.Trainer.save_checkpoint

    def save(self, path, *arguments):
        batches = self.fit_loop.epoch_loop.batch_idx + 1
        saved.append((os.path.basename(path), batches % 3 == 0 or batches == self.num_training_batches))
        whole(self, path, *arguments)

    monkeypatch.setattr(lightning.Trainer, "save_checkpoint", save)
    train("trainer.accumulate_grad_batches=3", "trainer.val_check_interval=1", "checkpoint.every_n_steps=1")
    assert all(aligned for name, aligned in saved if name == "last.ckpt")
    assert {name for name, _ in saved} == {"best.ckpt", "last.ckpt"}


def test_weights_found_inside_an_accumulation_are_those_validated(train, monkeypatch):
    """With a rate of zero for the best, a later step must not leak into best.ckpt."""
    seen = {}
    consider = Keeper.consider

    def watch(self, trainer, training=False):
        before = self.best.get("step"), self.best.get("value")
        consider(self, trainer, training)
        if (self.best.get("step"), self.best.get("value")) != before:
            seen["hash"] = checkpoints.sha256(trainer.lightning_module.state_dict())

    monkeypatch.setattr(Keeper, "consider", watch)
    run = train("trainer.accumulate_grad_batches=4", "trainer.val_check_interval=1", "data.batch_size=8")
    assert checkpoints.sha256(content(run, "best.ckpt")["state_dict"]) == seen["hash"]


def test_mode_min_and_nan(tmp_path):
    class Trainer:
        callback_metrics, current_epoch, world_size = {}, 0, 1

    keeper = Keeper(tmp_path, "val/loss", "min", write=False)
    for value in (2.0, float("nan"), 1.0, 1.5):
        Trainer.callback_metrics = {"val/loss": torch.tensor(value)}
        keeper.consider(Trainer)
    assert keeper.best["value"] == 1.0


def test_a_misspelt_monitor_is_found_before_training(train, monkeypatch):
    steps = []
    monkeypatch.setattr(lightning.Trainer, "save_checkpoint", lambda *_: steps.append(1))
    with pytest.raises(UserError, match=r"checkpoint.monitor=val/accuracy.*val/acc"):
        train("checkpoint.monitor=val/accuracy")
    with pytest.raises(UserError, match=r"objective=val/accuracy"):
        train("objective=val/accuracy", "checkpoint.monitor=val/loss", folder="other")
    assert not steps


@pytest.mark.parametrize("monitor", ["train/loss", "train/acc", "val/f1_macro"])
def test_other_monitors(train, monitor):
    assert Run(train(f"checkpoint.monitor={monitor}")).metrics["best"]["monitor"] == monitor


def test_without_validation_the_last_weights_are_tested(train):
    run = train("data.val_fraction=0")
    metrics = Run(run).metrics
    assert metrics["best"] == {} and metrics["test"]["checkpoint"] is None and metrics["test"]["samples"] == 18
    assert not (run / "checkpoints" / "best.ckpt").exists()
    assert "the last weights" in (run / "train.log").read_text()


def test_without_checkpointing_nothing_is_written(train):
    run = train("trainer.enable_checkpointing=false")
    assert not (run / "checkpoints").exists()
    assert Run(run).metrics["test"]["checkpoint"] is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_saves_at_the_next_step_and_leaves(train, configure, monkeypatch, number):
    from lab.tasks.classification import Classification

    step = Classification.training_step

    def training_step(self, batch, batch_idx):
        if self.trainer.global_step == 3 and batch_idx == 3:
            os.kill(os.getpid(), number)
        return step(self, batch, batch_idx)

    monkeypatch.setattr(Classification, "training_step", training_step)
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as left:
        train()
    assert left.value.code == 128 + number
    assert signal.getsignal(number) == before
    run = Path(configure().run_dir)
    assert Run(run).record["status"] == "stopped"
    assert content(run, "last.ckpt")["global_step"] == 4


def test_checkpoints_are_plain_data(train):
    run = train("scheduler=plateau", "callbacks=[early_stopping]")
    for name in ("best.ckpt", "last.ckpt"):
        checkpoint = torch.load(run / "checkpoints" / name, weights_only=True)
        assert checkpoint["leyden"]["step"] == checkpoint["global_step"]
        assert not any("_orig_mod" in key or key.startswith("module.") for key in checkpoint["state_dict"])


def test_a_signal_in_a_validation_does_not_wait_for_its_end(train, configure, monkeypatch):
    from lab.tasks.classification import Classification

    step, seen = Classification.validation_step, []

    def validation_step(self, batch, batch_idx):
        seen.append(batch_idx)
        if not self.trainer.sanity_checking and batch_idx == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, batch, batch_idx)

    monkeypatch.setattr(Classification, "validation_step", validation_step)
    with pytest.raises(SystemExit) as left:
        train("data.val_fraction=0.5", "trainer.num_sanity_val_steps=0")
    assert left.value.code == 128 + signal.SIGTERM and seen == [0, 1]
    run = Path(configure().run_dir)
    assert Run(run).record["status"] == "stopped"
    assert content(run, "last.ckpt")["global_step"] > 0


@pytest.mark.parametrize("keys", [[], ["trainer.gradient_clip_val=0.01", "trainer.precision=bf16-mixed"]])
def test_a_window_that_an_epoch_cannot_fill_is_the_mean_of_what_it_has(train, keys):
    """An epoch has 5 batches."""
    sums = [
        Run(train(f"trainer.accumulate_grad_batches={n}", *keys, folder=str(n))).metrics["weights_sha256"]
        for n in (5, 10)
    ]
    assert sums[0] == sums[1]


def test_each_window_is_the_mean_of_its_batches(train, monkeypatch):
    """Of the 5 batches of an epoch the second window of 3 has two; with a rate of zero all gradients are comparable."""
    found = {1: [], 3: []}

    class Gradients(Keeper):
        def on_before_optimizer_step(self, trainer, task, optimizer):
            super().on_before_optimizer_step(trainer, task, optimizer)
            gradients = [parameter.grad.flatten() for parameter in task.parameters()]
            found[trainer.accumulate_grad_batches].append(torch.cat(gradients))

    monkeypatch.setattr(build, "Keeper", Gradients)
    for n in found:
        train(f"trainer.accumulate_grad_batches={n}", "trainer.max_epochs=1", "optimizer.lr=0", folder=str(n))
    each = found[1]
    for window, batches in zip(found[3], (each[:3], each[3:]), strict=True):
        torch.testing.assert_close(window, torch.stack(batches).mean(0))


@pytest.mark.parametrize(
    ("keys", "count"),
    [
        (["trainer.val_check_interval=2"], 4),
        (["trainer.val_check_interval=2", "trainer.accumulate_grad_batches=3"], 4),
        (["trainer.val_check_interval=3", "trainer.check_val_every_n_epoch=null"], 3),
        (["trainer.val_check_interval=2", "trainer.check_val_every_n_epoch=2"], 2),
        (["trainer.val_check_interval=2", "task.monitor=train/loss"], 2),
    ],
)
def test_a_plateau_sees_each_value_of_what_it_watches_once(train, monkeypatch, keys, count):
    """In 2 epochs of 5 batches."""
    seen, step = [], ReduceLROnPlateau.step

    def watch(self, value, *rest):
        seen.append(float(value))
        step(self, value, *rest)

    monkeypatch.setattr(ReduceLROnPlateau, "step", watch)
    run = train("scheduler=plateau", *keys)
    name = "train/loss" if "task.monitor=train/loss" in keys else "val/acc"
    with open(run / "metrics.csv") as file:
        values = [float(row[name]) for row in csv.DictReader(file) if row[name]]
    assert seen == values and len(values) == count
    assert Run(run).record["exact"]


@pytest.mark.parametrize("watcher", ["scheduler=plateau", "callbacks=[early_stopping]"])
def test_what_watches_validation_needs_one(train, monkeypatch, watcher):
    steps = []
    monkeypatch.setattr(Keeper, "on_before_backward", lambda *_: steps.append(1))
    with pytest.raises(UserError, match="There is no validation, but a callback or the scheduler watches val/acc"):
        train(watcher, "trainer.limit_val_batches=0")
    assert not steps

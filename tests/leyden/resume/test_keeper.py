import csv
import os
import signal
from pathlib import Path

import lightning
import pytest
import torch

from leyden import UserError
from leyden.resume import checkpoints
from leyden.resume.keeper import Keeper
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

    def watch(self, trainer):
        before = self.best.get("step"), self.best.get("value")
        consider(self, trainer)
        if (self.best.get("step"), self.best.get("value")) != before:
            seen["hash"] = checkpoints.sha256(trainer.lightning_module.state_dict())

    monkeypatch.setattr(Keeper, "consider", watch)
    run = train("trainer.accumulate_grad_batches=4", "trainer.val_check_interval=1", "data.batch_size=8")
    assert checkpoints.sha256(content(run, "best.ckpt")["state_dict"]) == seen["hash"]


def test_mode_min_and_nan(tmp_path):
    class Trainer:
        callback_metrics, current_epoch, world_size = {}, 0, 1

    keeper = Keeper(str(tmp_path), "val/loss", "min", write=False)
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
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

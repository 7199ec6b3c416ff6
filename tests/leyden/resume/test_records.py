import csv
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from conftest import SMALL
from lab.tasks.classification import Classification
from leyden.resume.records import Records, Table
from leyden.run.run import Run


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_table_gains_columns_and_survives(tmp_path):
    path = tmp_path / "metrics.csv"
    table = Table(path, 0)
    table.write({"epoch": 0, "step": 1, "a": 1.5})
    table.write({"epoch": 0, "step": 2, "b": 2.5})
    table = Table(path, 1)  # resumed after step 1
    table.write({"epoch": 0, "step": 2, "a": 3.5})
    assert rows(path) == [
        {"epoch": "0", "step": "1", "a": "1.5", "b": ""},
        {"epoch": "0", "step": "2", "a": "3.5", "b": ""},
    ]


def test_each_step_and_epoch_has_a_row(train):
    run = train("trainer.log_every_n_steps=2")
    found = rows(run / "metrics.csv")
    steps = [int(row["step"]) for row in found if row["train/loss_step"]]
    epochs = [int(row["epoch"]) for row in found if row["val/acc"]]
    assert steps == [2, 4, 6, 8, 10] and epochs == [0, 1]
    assert all(row["train/loss"] for row in found if row["val/acc"])
    assert [int(row["step"]) for row in found] == sorted(int(row["step"]) for row in found)
    log = (run / "train.log").read_text()
    assert log.count("epoch 1/2") == 1 and "\r" not in log


def test_an_epoch_without_validation_has_no_old_values(train):
    run = train("trainer.check_val_every_n_epoch=2", "trainer.max_epochs=3")
    found = [row for row in rows(run / "metrics.csv") if row["train/loss"]]
    assert [bool(row["val/acc"]) for row in found] == [False, True, False]
    assert Run(run).metrics["val"]["val/acc"] == float(found[1]["val/acc"])


def test_each_validation_has_a_row_a_line_and_its_best(train):
    """Of 5 batches an epoch the second and the fourth are followed by a validation, the last one is not."""
    run = train("trainer.val_check_interval=2", "trainer.log_every_n_steps=3", "logger=[tensorboard]")
    found = rows(run / "metrics.csv")
    values = {int(row["step"]): float(row["val/acc"]) for row in found if row["val/acc"]}
    assert [int(row["step"]) for row in found if row["val/acc"]] == [2, 4, 7, 9]
    assert [int(row["step"]) for row in found if row["train/loss"]] == [5, 10]
    best = Run(run).metrics["best"]
    assert (best["value"], best["step"]) == max((value, step) for step, value in values.items())
    log = (run / "train.log").read_text()
    lines = [f"epoch {epoch}/2, step {step}  val/loss" for epoch, step in [(1, 2), (1, 4), (2, 7), (2, 9)]]
    assert [log.count(line) for line in lines] == [1, 1, 1, 1]
    assert log.count("epoch 1/2  train/loss") == 1  # which repeats no validation of before
    board = EventAccumulator(str(run / "tensorboard")).Reload()
    assert [event.value for event in board.Scalars("val/acc")] == pytest.approx(list(values.values()))


def test_the_best_of_a_validation_inside_an_epoch_is_written_at_once(train, monkeypatch):
    seen = []

    def end(self, trainer, task):
        seen.append(Run(self.directory).metrics["best"]["step"])

    monkeypatch.setattr(Records, "on_train_epoch_end", end)
    train("trainer.val_check_interval=2", "trainer.max_epochs=1", "optimizer.lr=0")
    assert seen == [4]


@pytest.mark.parametrize(
    ("keys", "samples"),
    [
        ([], 16),
        (["trainer.accumulate_grad_batches=3"], 48),
        (["trainer.accumulate_grad_batches=64"], 80),  # an epoch has 5 batches of 16
        (["data.batch_size=4096"], 84),
        (["data.drop_last=false", "trainer.accumulate_grad_batches=64"], 84),
        (["trainer.limit_train_batches=2", "trainer.accumulate_grad_batches=64"], 32),
    ],
)
def test_the_samples_of_a_step_are_those_that_there_are(train, keys, samples):
    run = train("trainer.max_epochs=1", *keys)
    assert f", {samples} samples a step, " in (run / "train.log").read_text()
    assert Run(run).record["effective_batch"] == samples


class Sparse(Classification):
    """Logs each step, as Lightning does it by itself."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("train/plain", loss)
        self.log("train/both", loss, on_step=True, on_epoch=True)
        return loss


def test_what_is_logged_by_step_alone_is_in_the_row_of_a_short_epoch(configure):
    from train import train

    cfg = configure(*SMALL, "trainer.log_every_n_steps=50", "trainer.max_epochs=2")
    cfg.task._target_, cfg.trusted = f"{__name__}.Sparse", [__name__]
    train(cfg)
    run = Path(cfg.run_dir)
    (first, last) = rows(run / "metrics.csv")
    assert float(first["train/plain"]) != float(last["train/plain"]) == Run(run).metrics["train"]["train/plain"]
    assert "train/both" in last and "train/both_step" not in last
    assert (run / "train.log").read_text().count("train/plain") == 2

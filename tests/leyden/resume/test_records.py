import csv

from leyden.resume.records import Table
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

import csv
import re
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from leyden.data.samples import Samples

NAMES = {"time/step_seconds", "time/waiting", "time/samples_per_second"}


def rows(run):
    with open(run / "metrics.csv", newline="") as file:
        return [row for row in csv.DictReader(file) if row["train/loss"]]


def test_each_epoch_has_its_speed_in_the_log_the_table_and_the_curves(train):
    run = train("logger=[tensorboard]", "data.batch_size=32", "trainer.log_every_n_steps=2")
    log = (run / "train.log").read_text()
    assert len(re.findall(r"epoch \d/2 .* samples/s  [\d.]+ ms/step  \d+% waiting", log)) == 2
    found = rows(run)
    for row in found:
        step, waiting, rate = (float(row[f"time/{name}"]) for name in ("step_seconds", "waiting", "samples_per_second"))
        assert rate == pytest.approx(32 / step) and 0 <= waiting <= 1
    board = EventAccumulator(str(run / "tensorboard")).Reload()
    for name in NAMES:
        assert [event.value for event in board.Scalars(name)] == pytest.approx([float(row[name]) for row in found])


@pytest.fixture
def slow(monkeypatch):
    load = Samples.__getitems__

    def loads(self, keys):
        time.sleep(0.03)
        return load(self, keys)

    monkeypatch.setattr(Samples, "__getitems__", loads)


@pytest.mark.slow
def test_a_slow_loader_is_named_once_with_its_key(train, slow):
    run = train("data.num_workers=0")
    sentence = r"(\d+)% of the time of training is waiting for data; raise data.num_workers, or data.batch_size"
    (said,) = re.findall(sentence, (run / "train.log").read_text())
    assert int(said) > 20  # from where it is said
    assert all(0 < float(row["time/waiting"]) <= 1 and float(row["time/step_seconds"]) > 0.03 for row in rows(run))


def test_a_validation_is_no_step(train, monkeypatch):
    from lab.tasks.classification import Classification

    step = Classification.validation_step

    def slow_step(self, *batch):
        time.sleep(0.2)
        return step(self, *batch)

    monkeypatch.setattr(Classification, "validation_step", slow_step)
    run = train("trainer.val_check_interval=2", "trainer.num_sanity_val_steps=0")
    assert all(float(row["time/step_seconds"]) < 0.1 for row in rows(run))

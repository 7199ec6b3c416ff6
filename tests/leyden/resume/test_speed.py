import csv
import re
import sys
import time

import pytest
from lightning.pytorch.callbacks import Callback
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from leyden.data.samples import Samples
from leyden.run import build

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
    sentence = r"(\d+)% of training waits for data; raise data.num_workers or data.batch_size"
    (said,) = re.findall(sentence, (run / "train.log").read_text())
    assert int(said) > 20  # from where it is said
    assert all(0 < float(row["time/waiting"]) <= 1 and float(row["time/step_seconds"]) > 0.03 for row in rows(run))


@pytest.mark.slow
def test_a_validation_is_no_step(train, monkeypatch):
    from lab.tasks.classification import Classification

    step = Classification.validation_step

    def slow_step(self, *batch):
        time.sleep(0.2)
        return step(self, *batch)

    monkeypatch.setattr(Classification, "validation_step", slow_step)
    run = train("trainer.val_check_interval=2", "trainer.num_sanity_val_steps=0")
    assert all(float(row["time/step_seconds"]) < 0.1 for row in rows(run))


class Counter(Callback):
    """Counts the calls of Python functions of Lightning in a step of training and in one of validation."""

    def __init__(self):
        self.calls = {}

    def count(self, stage, trainer, batch_idx):
        if batch_idx == 2:
            self.now = 0
            sys.setprofile(lambda frame, event, _: self.note(frame) if event == "call" else None)
        elif batch_idx == 3:
            sys.setprofile(None)
            self.calls[stage] = self.now

    def note(self, frame):
        self.now += "lightning" in frame.f_code.co_filename

    def on_train_batch_end(self, trainer, task, outputs, batch, batch_idx):
        self.count("train", trainer, batch_idx)

    def on_validation_batch_end(self, trainer, task, outputs, batch, batch_idx):
        self.count("val", trainer, batch_idx)


def test_a_step_goes_through_few_functions_of_lightning(train, monkeypatch):
    counter, watchers = Counter(), build.watchers
    monkeypatch.setattr(build, "watchers", lambda cfg: [*watchers(cfg)[:1], counter, *watchers(cfg)[1:]])
    train("trainer.num_sanity_val_steps=0", "data.batch_size=4")
    assert counter.calls["train"] < 500 and counter.calls["val"] < 200

"""How fast an epoch trains, and what share of it waits for data, by the host's clock alone."""

import logging
import os
import time
from typing import Any

import torch
from lightning import LightningModule, Trainer

from leyden.lightning_internals import time_fetches

log = logging.getLogger(__name__)
MUCH = 0.2  # share of the time that is worth a sentence


class Clock:
    """Adds up, from the end of a batch to the end of the next one, without validations.

    The first batch of a fit, which starts a loader's processes, is left out. An accelerator is waited for once in an
    epoch, at its last batch.
    """

    def __init__(self) -> None:
        self.mark: float | None = None  # the end of the last batch or validation
        self.spent, self.waited, self.batches = 0.0, 0.0, 0
        self.warned = False

    def start(self, trainer: Trainer) -> None:
        time_fetches(trainer, lambda: self.wait(-time.perf_counter()), lambda: self.wait(time.perf_counter()))

    def wait(self, seconds: float) -> None:
        self.waited += seconds

    def batch(self, trainer: Trainer, task: LightningModule) -> None:
        if trainer.fit_loop.epoch_loop.batch_progress.is_last_batch and task.device.type != "cpu":
            torch.accelerator.synchronize(task.device)
        now = time.perf_counter()
        if self.mark is None:
            self.waited = 0.0
        else:
            self.spent, self.batches = self.spent + now - self.mark, self.batches + 1
        self.mark = now

    def go_on(self) -> None:
        """Leave out what was since the last batch."""
        if self.mark is not None:
            self.mark = time.perf_counter()

    def epoch(self, trainer: Trainer) -> dict[str, float]:
        """The epoch's numbers, empty where it had no batch to time; warns once where it waits too long."""
        spent, waited, batches = self.spent, self.waited, self.batches
        self.spent, self.waited, self.batches = 0.0, 0.0, 0
        self.go_on()
        if not batches:
            return {}
        times = {"time/step_seconds": spent / batches, "time/waiting": min(1.0, waited / spent)}
        if size := getattr(trainer.train_dataloader, "batch_size", None):
            times["time/samples_per_second"] = batches * size * trainer.world_size / spent
        if times["time/waiting"] > MUCH and not self.warned and trainer.is_global_zero:
            self.warned = True
            log.warning("%.0f%% of the time of training is waiting for data; %s.", 100 * waited / spent, key(trainer))
        return times


def key(trainer: Trainer) -> str:
    """What to change for the loader to keep up."""
    data: Any = trainer.datamodule
    workers = getattr(trainer.train_dataloader, "num_workers", 0)
    if workers == 0 and getattr(data, "num_workers", None) == "auto":
        return f"raise data.batch_size (now {data.batch_size}), or type data.num_workers=2 if a sample takes long"
    where = "data.num_workers" if hasattr(data, "num_workers") else "num_workers of your DataLoader"
    return f"raise {where} (now {workers}; this machine has {os.cpu_count()} cores)"

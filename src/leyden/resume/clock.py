"""How fast an epoch trains, and what share of it waits for data, by the host's clock alone."""

import logging
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from lightning import LightningModule, Trainer

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
        self.said = False

    def start(self, trainer: Trainer) -> None:
        """Time what the training loop takes from its loader, where Lightning has places for its profilers."""
        loop = trainer.fit_loop.epoch_loop
        before, after = loop._on_before_fetch, loop._on_after_fetch
        loop._on_before_fetch, loop._on_after_fetch = self.timed(before, -1), self.timed(after, 1)

    def timed(self, hook: Callable[[], None], sign: int) -> Callable[[], None]:
        def call() -> None:
            hook()
            self.waited += sign * time.perf_counter()

        return call

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
        """The epoch's numbers, empty where it had no batch to time; says once where it waits too long."""
        spent, waited, batches = self.spent, self.waited, self.batches
        self.spent, self.waited, self.batches = 0.0, 0.0, 0
        self.go_on()
        if not batches:
            return {}
        found = {"time/step_seconds": spent / batches, "time/waiting": min(1.0, waited / spent)}
        if size := getattr(trainer.train_dataloader, "batch_size", None):
            found["time/samples_per_second"] = batches * size * trainer.world_size / spent
        if found["time/waiting"] > MUCH and not self.said and trainer.is_global_zero:
            self.said = True
            log.warning("%.0f%% of the time of training is waiting for data; %s.", 100 * waited / spent, key(trainer))
        return found


def key(trainer: Trainer) -> str:
    """What to change for the loader to keep up."""
    data: Any = trainer.datamodule
    workers = getattr(trainer.train_dataloader, "num_workers", 0)
    if not hasattr(data, "num_workers"):
        return f"raise num_workers of your DataLoader (now {workers}; this machine has {os.cpu_count()} cores)"
    if workers == 0 and data.num_workers == "auto":
        return (
            f"it is in memory, so raise data.batch_size (now {data.batch_size}), or type data.num_workers=2 "
            "if a sample takes long to make"
        )
    cached = getattr(data, "cache", None)
    cache = " or type data.cache=true" if cached is False else ""
    return f"raise data.num_workers (now {workers}; this machine has {os.cpu_count()} cores){cache}"

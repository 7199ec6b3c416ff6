"""What a run leaves to read: a line of the log for each epoch, how fast it was, metrics.csv and metrics.json."""

import csv
import itertools
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.utilities import CombinedLoader

from leyden.files import read_json, replacing, write_json
from leyden.lightning_internals import step_values, time_fetches
from leyden.resume import exact
from leyden.resume.keeper import Keeper

log = logging.getLogger(__name__)
MUCH = 0.2  # share of the time that waits for data, from where it is worth a sentence


class Table:
    """A CSV file that may gain columns; of what it holds already, so many rows are kept."""

    def __init__(self, path: Path, rows: int):
        self.path, self.rows, self.columns = path, [], ["epoch", "step"]
        if path.exists() and rows:
            with open(path, newline="") as file:
                self.rows = list(itertools.islice(csv.DictReader(file), rows))
        self.add_columns([name for row in self.rows for name in row])

    def add_columns(self, names: list[str]) -> None:
        self.columns += [name for name in dict.fromkeys(names) if name not in self.columns]
        with replacing(self.path) as beside, open(beside, "w", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(self.rows)

    def write(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if set(row) - set(self.columns):
            self.add_columns(list(row))
        else:
            with open(self.path, "a", newline="") as file:
                csv.DictWriter(file, self.columns).writerow(row)


class Clock:
    """Adds up, from the end of a batch to the end of the next one, without validations.

    The first batch of a fit, which starts a loader's processes, is left out. An accelerator is waited for once in an
    epoch, at its last batch.
    """

    def __init__(self) -> None:
        self.mark: float | None = None  # the end of the last batch or validation
        self.spent, self.waited, self.batches = 0.0, 0.0, 0

    def start(self, trainer: Trainer) -> None:
        time_fetches(trainer, lambda: self.wait(-time.perf_counter()), lambda: self.wait(time.perf_counter()))

    def wait(self, seconds: float) -> None:
        self.waited += seconds

    def batch(self, trainer: Trainer) -> None:
        if trainer.fit_loop.epoch_loop.batch_progress.is_last_batch and trainer.strategy.root_device.type != "cpu":
            torch.accelerator.synchronize(trainer.strategy.root_device)
        now = time.perf_counter()
        if self.mark is None:
            self.waited = 0.0
        else:
            self.spent, self.batches = self.spent + now - self.mark, self.batches + 1
        self.mark = now

    def skip(self) -> None:
        """Leave out what was since the last batch."""
        if self.mark is not None:
            self.mark = time.perf_counter()

    def epoch(self, trainer: Trainer) -> dict[str, float]:
        """The numbers of the epoch, empty where it had no batch to time."""
        spent, waited, batches = self.spent, self.waited, self.batches
        self.spent, self.waited, self.batches = 0.0, 0.0, 0
        self.skip()
        if not batches:
            return {}
        times = {"time/step_seconds": spent / batches, "time/waiting": min(1.0, waited / spent)}
        if size := getattr(trainer.train_dataloader, "batch_size", None):
            times["time/samples_per_second"] = batches * size * trainer.world_size / spent
        return times


def advice(trainer: Trainer) -> str:
    """What to change for the loader to keep up."""
    data: Any = trainer.datamodule
    workers = getattr(trainer.train_dataloader, "num_workers", 0)
    if workers == 0 and getattr(data, "num_workers", None) == "auto":
        return f"raise data.batch_size (now {data.batch_size}), or type data.num_workers=2 if a sample takes long"
    where = "data.num_workers" if hasattr(data, "num_workers") else "num_workers of your DataLoader"
    return f"raise {where} (now {workers}; this machine has {os.cpu_count()} cores)"


class Records(Checkpoint):
    """Writes what was logged, on rank 0.

    `update_record` changes fields of the directory's run.json.
    It is a Checkpoint only because Lightning calls those after the task's own `on_train_epoch_end`, which logs.
    """

    def __init__(self, directory: str, keeper: Keeper, update_record: Callable[..., None]):
        self.directory, self.keeper, self.update_record = Path(directory), keeper, update_record
        self.stepwise: set[str] = set()  # names that are logged at steps
        self.metrics: dict[str, Any] = {}  # of metrics.json
        self.table: Table | None = None
        self.validated = False  # in this epoch
        self.seconds, self.rows = 0.0, 0  # of training, and of the table, before the run was stopped
        self.reasons: list[str] = []  # why the data is not read in an order that can be found again
        self.clock = Clock()
        self.warned, self.waits = "", False  # why the run is not exact; it waits for data

    def on_train_start(self, trainer: Trainer, task: LightningModule) -> None:
        self.step, self.started = trainer.global_step, time.perf_counter() - self.seconds
        self.clock.start(trainer)
        loaders = CombinedLoader(trainer.train_dataloader).flattened
        self.reasons = [reason for loader in loaders if (reason := exact.why_not(loader, trainer.world_size))]
        if trainer.is_global_zero:
            self.table = Table(self.directory / "metrics.csv", self.rows)
            size = getattr(trainer.train_dataloader, "batch_size", None)
            batch = size and size * trainer.world_size * trainer.accumulate_grad_batches
            self.update_record(exact=True, not_exact=None, effective_batch=batch)
            self.warn_inexact()

    def warn_inexact(self) -> None:
        """Say why the run is not exact, when something has turned out."""
        if (why := "; ".join(self.reasons + self.keeper.inexact)) != self.warned:
            self.warned = why
            self.update_record(exact=False, not_exact=why)
            log.warning("This run is not exact: %s.", why)

    def on_save_checkpoint(self, trainer: Trainer, task: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.is_global_zero:
            self.warn_inexact()

    def on_train_batch_end(self, trainer: Trainer, task: LightningModule, *_: Any) -> None:
        self.clock.batch(trainer)
        step, every = trainer.global_step, trainer.log_every_n_steps
        if step // every > self.step // every and self.table:
            row = step_values(trainer)
            self.stepwise |= row.keys()
            if row:
                self.table.write({"epoch": trainer.current_epoch, "step": step} | row)
        self.step = step

    def on_validation_end(self, trainer: Trainer, task: LightningModule) -> None:
        self.validated = not trainer.sanity_checking
        self.clock.skip()

    def on_train_epoch_end(self, trainer: Trainer, task: LightningModule) -> None:
        self.keeper.consider_training(trainer)
        stale = () if self.validated else ("val/",)
        logged = {
            name: float(value)
            for name, value in trainer.callback_metrics.items()
            if name not in self.stepwise and not name.startswith(stale)
        }
        self.validated = False
        times = self.clock.epoch(trainer)
        if times.get("time/waiting", 0) > MUCH and not self.waits and trainer.is_global_zero:
            self.waits, share = True, times["time/waiting"]
            log.warning("%.0f%% of the time of training is waiting for data; %s.", 100 * share, advice(trainer))
        for logger in trainer.loggers if times else []:
            logger.log_metrics(times, trainer.global_step)
        if self.table:
            self.table.write({"epoch": trainer.current_epoch, "step": trainer.global_step} | logged | times)
        for split in ("train", "val"):
            new = {name: value for name, value in logged.items() if name.startswith(f"{split}/")}
            self.metrics[split] = new or self.metrics.get(split, {})
        rate = times.get("time/samples_per_second")
        self.metrics |= {"best": self.keeper.best, "samples_per_second": rate and round(rate, 1)}
        self.metrics["seconds"] = round(time.perf_counter() - self.started, 3)
        if trainer.is_global_zero:
            write_json(self.directory / "metrics.json", self.metrics)
            last = f"/{trainer.max_epochs}" if trainer.max_epochs and trainer.max_epochs > 0 else ""
            words = [f"{name} {value:.4g}" for name, value in logged.items() if name != "lr"]
            words += [f"{rate:.0f} samples/s"] if rate else []
            if times:
                words += [f"{1e3 * times['time/step_seconds']:.3g} ms/step", f"{times['time/waiting']:.0%} waiting"]
            log.info("epoch %d%s  %s", trainer.current_epoch + 1, last, "  ".join(words))

    def state_dict(self) -> dict[str, Any]:
        return {
            "stepwise": sorted(self.stepwise),
            "validated": self.validated,
            "seconds": time.perf_counter() - self.started,
            "rows": len(self.table.rows) if self.table else 0,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state | {"stepwise": set(state["stepwise"])})
        self.metrics = read_json(self.directory / "metrics.json")  # all that is done again is replaced

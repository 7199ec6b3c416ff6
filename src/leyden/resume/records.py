"""What a run leaves to read: metrics.csv, metrics.json, a line for each epoch and validation."""

import csv
import logging
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from leyden.files import read_json, replacing, write_json
from leyden.lightning_internals import epoch_values, fetcher, step_values, time_fetches
from leyden.resume import exact
from leyden.resume.keeper import Keeper

log = logging.getLogger(__name__)
RATE, STEP, WAITING = "time/samples_per_second", "time/step_seconds", "time/waiting"
MUCH = 0.2  # of the time to wait


class Table:
    """A CSV file that may gain columns; so many rows are kept."""

    def __init__(self, path: Path, rows: int):
        self.path, self.rows, self.columns = path, list[dict[str, Any]](), list[str]()
        written = path.read_text().splitlines() if path.exists() else []
        self.write(*islice(csv.DictReader(written), rows))

    def write(self, *rows: dict[str, Any]) -> None:
        self.rows += rows
        columns = list(dict.fromkeys(["epoch", "step", *self.columns, *chain(*rows)]))
        if columns == self.columns:
            with open(self.path, "a", newline="") as file:
                csv.DictWriter(file, columns).writerows(rows)
        else:
            with replacing(self.path) as beside, open(beside, "w", newline="") as file:
                writer = csv.DictWriter(file, columns)
                writer.writeheader()
                writer.writerows(self.rows)
        self.columns = columns


def samples_in(trainer: Trainer, batches: int) -> int | None:
    """Samples of so many batches of all ranks, if the loader says."""
    loader: Any = trainer.train_dataloader
    size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    if not isinstance(size, int):
        return None
    samples, sampler = size * min(batches, trainer.num_training_batches), loader.sampler
    return int(min(samples, len(sampler) if hasattr(sampler, "__len__") else samples)) * trainer.world_size


class Records(Checkpoint):
    """Writes what was logged, on rank 0; a Checkpoint, as Lightning calls these after the task has logged its epoch."""

    def __init__(self, directory: Path, keeper: Keeper, update_record: Callable[..., None], announce: Callable):
        self.directory, self.keeper, self.update_record, self.announce = directory, keeper, update_record, announce
        self.metrics: dict[str, Any] = {"train": {}, "val": {}}
        self.table: Table | None = None
        self.validation: dict[str, float] = {}  # at the end of this epoch
        self.seconds, self.rows = 0.0, 0  # before a stop
        self.reasons: list[str] = []
        self.warned, self.waits = "", False
        self.mark: float | None = None  # the end of the last batch or validation
        self.steps, self.fetches = list[float](), list[float]()  # of a fetch its begin, negative, and end

    # what others ask of a Checkpoint
    dirpath = property(lambda self: str(self.directory / "checkpoints"))
    best_model_path = property(lambda self: str(next(self.directory.glob("checkpoints/best.ckpt"), "")))
    last_model_path = property(lambda self: str(next(self.directory.glob("checkpoints/last.ckpt"), "")))
    best_model_score = property(lambda self: torch.tensor(self.keeper.best["value"]) if self.keeper.best else None)

    def on_train_start(self, trainer: Trainer, task: LightningModule) -> None:
        self.started = perf_counter() - self.seconds
        time_fetches(trainer, self.fetches.append)
        loaders = fetcher(trainer).combined_loader.flattened
        self.reasons = [why for loader in loaders if (why := exact.why_not(loader, trainer.world_size))]
        if trainer.is_global_zero:
            self.table = Table(self.directory / "metrics.csv", self.rows)
            batch = samples_in(trainer, trainer.accumulate_grad_batches)
            self.update_record(exact=True, not_exact=None, effective_batch=batch)
            self.announce(trainer, task, batch)
            self.on_save_checkpoint(trainer)

    def on_save_checkpoint(self, trainer: Trainer, *_: Any) -> None:
        """Say why the run is not exact, once."""
        why = "; ".join(self.reasons + self.keeper.inexact)
        if trainer.is_global_zero and why != self.warned:
            self.warned = why
            self.update_record(exact=False, not_exact=why)
            log.warning("This run is not exact: %s.", why)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        device = trainer.strategy.root_device
        if trainer.fit_loop.epoch_loop.batch_progress.is_last_batch and device.type != "cpu":
            torch.accelerator.synchronize(device)
        begun, self.mark = self.mark, perf_counter()
        if begun:
            self.steps.append(self.mark - begun)
        else:  # the first batch starts processes
            self.fetches.clear()

        if self.table and self.keeper.logs and (values := step_values(trainer)):
            self.table.write({"epoch": trainer.current_epoch, "step": trainer.global_step} | values)

    def on_validation_end(self, trainer: Trainer, *_: Any) -> None:
        self.mark = self.mark and perf_counter()
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self.metrics["val"] = values = epoch_values(trainer)
            if trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
                self.validation = values
            else:
                self.write(trainer, values, {}, f", step {trainer.global_step}")

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        self.keeper.consider(trainer, training=True)
        times: dict[str, float] = {}
        if spent := sum(self.steps):
            times = {STEP: spent / len(self.steps), WAITING: min(1.0, sum(self.fetches) / spent)}
            if samples := samples_in(trainer, 1):
                times[RATE] = samples / times[STEP]

        self.steps.clear()
        self.fetches.clear()
        self.mark = self.mark and perf_counter()

        values = epoch_values(trainer)
        last = [name for name in step_values(trainer) if name != "lr" and name.removesuffix("_step") not in values]
        self.metrics["train"] = values | {name: float(trainer.callback_metrics[name]) for name in last}
        self.metrics["samples_per_second"] = times.get(RATE)
        for logger in trainer.loggers:
            logger.log_metrics(times, trainer.global_step)
        self.write(trainer, self.validation | self.metrics["train"], times)
        self.validation = {}

        if times.get(WAITING, 0) > MUCH and not self.waits and trainer.is_global_zero:
            self.waits = True
            log.warning(f"{times[WAITING]:.0%} of training waits for data; raise data.num_workers or data.batch_size.")

    def write(self, trainer: Trainer, values: dict[str, float], times: dict[str, float], when: str = "") -> None:
        """A row, a line and metrics.json, of an epoch or a validation inside it."""
        if self.table is None:
            return
        epoch, last = trainer.current_epoch, trainer.max_epochs or -1
        self.table.write({"epoch": epoch, "step": trainer.global_step} | values | times)

        self.metrics |= {"best": self.keeper.best, "seconds": round(perf_counter() - self.started, 3)}
        write_json(self.directory / "metrics.json", self.metrics)

        words = [f"{name} {value:.4g}" for name, value in values.items() if name != "lr"]
        words += [f"{times[RATE]:.0f} samples/s"] if RATE in times else []
        words += [f"{1e3 * times[STEP]:.3g} ms/step", f"{times[WAITING]:.0%} waiting"] if times else []
        log.info("epoch %d%s%s  %s", epoch + 1, f"/{last}" if last > 0 else "", when, "  ".join(words))

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": perf_counter() - self.started, "rows": len(self.table.rows) if self.table else 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seconds, self.rows = state["seconds"], state["rows"]
        self.metrics |= read_json(self.directory / "metrics.json")

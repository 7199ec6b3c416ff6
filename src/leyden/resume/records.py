"""What a run leaves to read: a line of the log for each epoch, metrics.csv and metrics.json."""

import csv
import itertools
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.utilities import CombinedLoader

from leyden import lightning_internals
from leyden.files import replacing, write_json
from leyden.resume import exact
from leyden.resume.clock import Clock
from leyden.resume.keeper import Keeper

log = logging.getLogger(__name__)


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


class Records(Checkpoint):
    """Writes what was logged, on rank 0.

    `tell` changes fields of the directory's run.json.
    It is a Checkpoint only because Lightning calls those after the task's own `on_train_epoch_end`, which logs.
    """

    def __init__(self, directory: str, keeper: Keeper, tell: Callable[..., None]):
        self.directory, self.keeper, self.tell = Path(directory), keeper, tell
        self.epochal: set[str] = set()  # names that are logged once in an epoch
        self.stepwise: set[str] = set()  # names that are logged at steps
        self.metrics: dict[str, Any] = {}
        self.table: Table | None = None
        self.validated = False  # in this epoch
        self.batches, self.seconds, self.rows = 0, 0.0, 0  # of training, before the run was stopped
        self.clock = Clock()

    def on_train_start(self, trainer: Trainer, task: LightningModule) -> None:
        self.step, self.started = trainer.global_step, time.perf_counter() - self.seconds
        self.clock.start(trainer)
        loaders = CombinedLoader(trainer.train_dataloader).flattened
        self.reasons = [reason for reason in map(exact.why_not, loaders) if reason]
        self.undivided = lightning_internals.undivided(trainer, loaders)
        if trainer.is_global_zero:
            self.table = Table(self.directory / "metrics.csv", self.rows)
            size = getattr(trainer.train_dataloader, "batch_size", None)
            batch = size and size * trainer.world_size * trainer.accumulate_grad_batches
            self.tell(exact=True, not_exact=None, effective_batch=batch)
            self.said = ""
            self.say_exact()

    def say_exact(self) -> None:
        """Say why the run is not exact, when something has turned out."""
        lost = "; ".join([*self.reasons, *filter(None, [self.keeper.changed])])
        if lost != self.said:
            self.said = lost
            self.tell(exact=False, not_exact=lost)
            log.warning("This run is not exact: %s.", lost)

    def on_save_checkpoint(self, trainer: Trainer, task: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.is_global_zero:
            self.say_exact()

    def check_shares(self, trainer: Trainer, batch: Any) -> None:
        """Say so, where the first batch of a fit is the same on all ranks."""
        self.undivided = False
        if lightning_internals.same_batch(trainer, batch) and trainer.is_global_zero:
            self.reasons.append(
                f"all {trainer.world_size} ranks read the same samples, so that an epoch holds each of them "
                f"{trainer.world_size} times; the data must divide them among the ranks"
            )
            self.say_exact()

    def on_train_batch_end(self, trainer: Trainer, task: LightningModule, outputs: Any, batch: Any, *_: Any) -> None:
        if self.undivided:
            self.check_shares(trainer, batch)
        self.batches += 1
        self.clock.batch(trainer, task)
        step, every = trainer.global_step, trainer.log_every_n_steps
        if step // every > self.step // every and self.table:
            logged = trainer.callback_metrics
            row = {name: float(logged[name]) for name in logged if name not in self.epochal}
            row = {name: value for name, value in row.items() if not name.startswith(("val/", "test/"))}
            self.stepwise = set(row)
            if row:
                self.table.write({"epoch": trainer.current_epoch, "step": step} | row)
        self.step = step

    def on_validation_end(self, trainer: Trainer, task: LightningModule) -> None:
        self.validated = not trainer.sanity_checking
        self.clock.go_on()

    def on_train_epoch_end(self, trainer: Trainer, task: LightningModule) -> None:
        self.keeper.conclude(trainer, task)
        logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.epochal |= set(logged) - self.stepwise
        logged = {name: value for name, value in logged.items() if name in self.epochal}
        if not self.validated:  # what is there is of an earlier epoch
            logged = {name: value for name, value in logged.items() if not name.startswith("val/")}
        self.validated = False
        times = self.clock.epoch(trainer)
        for logger in trainer.loggers if times else []:
            logger.log_metrics(times, trainer.global_step)
        if self.table:
            self.table.write({"epoch": trainer.current_epoch, "step": trainer.global_step} | logged | times)
        self.metrics |= {
            split: {name: value for name, value in logged.items() if name.startswith(f"{split}/")}
            or self.metrics.get(split, {})
            for split in ("train", "val")
        }
        self.metrics |= {
            "best": self.keeper.best,
            "seconds": round(time.perf_counter() - self.started, 3),
            "samples_per_second": (rate := self.rate(trainer)) and round(rate, 1),
        }
        if trainer.is_global_zero:
            write_json(self.directory / "metrics.json", self.metrics)
            last = f"/{trainer.max_epochs}" if trainer.max_epochs and trainer.max_epochs > 0 else ""
            values = "  ".join(f"{name} {value:.4g}" for name, value in logged.items() if name != "lr")
            log.info("epoch %d%s  %s%s", trainer.current_epoch + 1, last, values, speed(times))

    def state_dict(self) -> dict[str, Any]:
        return {
            "epochal": sorted(self.epochal),
            "stepwise": sorted(self.stepwise),
            "metrics": self.metrics,
            "validated": self.validated,
            "batches": self.batches,
            "seconds": time.perf_counter() - self.started,
            "rows": len(self.table.rows) if self.table else 0,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state | {name: set(state[name]) for name in ("epochal", "stepwise")})

    def rate(self, trainer: Trainer) -> float | None:
        """Training samples per second of all ranks, validation and saving included; None where batches have no size."""
        size = getattr(trainer.train_dataloader, "batch_size", None)
        return size and self.batches * size * trainer.world_size / (time.perf_counter() - self.started)


def speed(times: dict[str, float]) -> str:
    """The numbers of `Clock.epoch` for the log."""
    rate = times.get("time/samples_per_second")
    words = [f"{rate:.0f} samples/s"] if rate else []
    words += (
        [f"{1e3 * times['time/step_seconds']:.3g} ms/step", f"{times['time/waiting']:.0%} waiting"] if times else []
    )
    return "".join(f"  {word}" for word in words)

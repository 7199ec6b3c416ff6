"""The callback that decides when it is safe to save, what is best, and when to stop."""

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from leyden import UserError, listed, require
from leyden.lightning_internals import AT_VALIDATIONS, epoch_values, logged, shorten_steps
from leyden.resume import exact, snapshot
from leyden.resume.attributes import Attributes
from leyden.resume.stopping import Guard, Stop

log = logging.getLogger(__name__)


class Keeper(Callback):
    """Checkpoints right after `optimizer.step()`; later hooks run again on resume. It must be the first callback."""

    def __init__(
        self,
        directory: Path,
        monitor: str,
        mode: str,
        objective: str = "",
        every_n_steps: int | None = None,
        seed: int = 0,
        exact: bool = True,
        write: bool = True,
        judge: Callable[[float, int], bool] | None = None,  # of objective and epochs: a search gives the run up
    ):
        known = every_n_steps is None or (type(every_n_steps) is int and every_n_steps > 0)
        require(known, "checkpoint.every_n_steps", "null or a whole number from 1 up", every_n_steps)

        self.directory, self.monitor, self.mode, self.objective = directory, monitor, mode, objective or monitor
        self.every, self.seed, self.exact, self.write, self.judge = every_n_steps or math.inf, seed, exact, write, judge

        self.best: dict[str, Any] = {}
        self.step, self.saved = 0, -1  # steps done; those in last.ckpt
        self.aligned = True  # no batch since the last step
        self.due = self.logs = self.over = self.pruned = False

        self.snapshot: dict[str, Any] = {}
        self.restored: dict[str, Any] = {}  # the entry that the run goes on from
        self.fixed: dict[str, Any] = {}  # what must be the same then
        self.inexact: list[str] = []
        self.stop, self.guard = Stop(), Guard()

    def check(self, trainer: Trainer, datamodule: Any, entry: dict[str, Any]) -> None:
        """UserError if a run must not go on from an entry `leyden` of a checkpoint, if any."""
        size, fingerprint = (getattr(datamodule, name, None) for name in ("batch_size", "fingerprint"))
        self.fixed = {"world_size": trainer.world_size, "accumulate_grad_batches": trainer.accumulate_grad_batches}
        self.fixed |= {"batch_size": size if isinstance(size, int) else None, "data_fingerprint": fingerprint}
        if entry:
            self.restored, self.best, self.inexact = entry, entry["best"], entry["inexact"]
            changed = [f"{key} is {now}, was {entry[key]}" for key, now in self.fixed.items() if now != entry[key]]
            if self.exact and changed:
                raise UserError(f"{'; '.join(changed)}; type exact=false to go on, to other numbers.")
            self.inexact += [] if self.exact else ["it was resumed with exact=false", *changed]

    def on_fit_start(self, trainer: Trainer, task: LightningModule) -> None:
        shorten_steps(trainer, task)
        self.attributes = Attributes(trainer, task)

    def on_train_start(self, trainer: Trainer, task: LightningModule) -> None:
        if trainer.val_dataloaders is not None and not any(trainer.num_val_batches):
            trainer.limit_val_batches = 0  # else Lightning waits for it

        for each in [] if trainer.enable_validation else (*trainer.callbacks, *trainer.lr_scheduler_configs):
            name = str(getattr(each, "monitor", None))
            if each is not self and getattr(each, "strict", True) and name.startswith("val/"):
                raise UserError(f"There is no validation, but a callback or the scheduler watches {name}.")

        self.step = trainer.global_step
        self.stop.listen()
        if self.restored:
            self.inexact += snapshot.restore(trainer, task, self.restored, self.attributes)
        exact.fast_forward(trainer, self.seed)
        self.reseed(trainer)

    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        exact.reseed(self.seed, ~trainer.current_epoch)  # for samplers of torch

    def on_train_batch_start(self, trainer: Trainer, _: Any, batch: Any, batch_idx: int) -> None:
        self.attributes.restore()
        if batch_idx == 0:
            self.reseed(trainer)
        elif self.aligned and (self.stop.agreed(trainer) or self.due):
            self.save_last(trainer)

    def on_before_backward(self, trainer: Trainer, _: Any, loss: Tensor) -> None:
        self.guard.watch(trainer, loss)

    def on_before_optimizer_step(self, trainer: Trainer, task: LightningModule, *_: Any) -> None:
        """Let a shorter window at the end of an epoch be the mean of its batches."""
        whole = trainer.accumulate_grad_batches
        batches = (trainer.fit_loop.epoch_loop.batch_idx + 1) % whole
        for p in task.parameters() if batches and task.automatic_optimization else ():
            if p.grad is not None:
                p.grad.mul_(whole / batches)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        before, self.step = self.step, trainer.global_step
        self.aligned = self.step != before
        self.logs = self.step // trainer.log_every_n_steps > before // trainer.log_every_n_steps
        self.due |= self.step // self.every > before // self.every

        if self.logs:
            self.guard.check(trainer)
        self.reseed(trainer)

    def reseed(self, trainer: Trainer) -> None:
        """To the end of the next batch draw from (seed, rank, number of the batch)."""
        exact.reseed(self.seed, trainer.global_rank, trainer.fit_loop.epoch_loop.batch_progress.total.processed)

    def on_validation_start(self, trainer: Trainer, *_: Any) -> None:
        self.save_last(trainer)

    def on_validation_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if self.aligned and not trainer.sanity_checking and not self.ended(trainer):
            self.stop.leave()

    def on_validation_end(self, trainer: Trainer, task: LightningModule) -> None:
        """Judge what was logged, and step plateaus. UserError for a misspelt name."""
        if trainer.state.fn != "fit":
            return
        values = logged(trainer)
        plateaus = [config for config in trainer.lr_scheduler_configs if config.frequency == AT_VALIDATIONS]
        watched = {plateau.monitor: "task.monitor" for plateau in plateaus}
        watched |= {self.monitor: "checkpoint.monitor", self.objective: "objective"}

        for name, key in watched.items():
            unknown = name not in values and not name.startswith("train/")  # logged later
            if unknown and (plateaus or epoch_values(trainer)):
                raise UserError(f"{key}={name} is not logged; choose one of {listed(sorted(values))}.")

        if not trainer.sanity_checking:
            self.consider(trainer)
            for plateau in [] if self.ended(trainer) else plateaus:  # a longer run does it
                task.lr_scheduler_step(plateau.scheduler, values[plateau.monitor])

    def consider(self, trainer: Trainer, training: bool = False) -> None:
        """After a validation, or an epoch of training: save the best weights, of equal ones the later."""
        if training != self.monitor.startswith("train/"):
            return
        values = logged(trainer)  # the same on all ranks
        if training and self.monitor not in values:
            raise UserError(f"checkpoint.monitor={self.monitor} is not logged.")

        value, objective = values.get(self.monitor, math.nan), values.get(self.objective)
        if self.judge and objective is not None:
            epochs = trainer.current_epoch + 1
            verdict = trainer.strategy.broadcast(trainer.is_global_zero and self.judge(objective, epochs))
            self.pruned = verdict and epochs != trainer.max_epochs
            trainer.should_stop |= self.pruned

        sign = -1 if self.mode == "min" else 1
        if math.isnan(value) or (self.best and sign * value < sign * self.best["value"]):
            return

        self.best = {"monitor": self.monitor, "value": value, "epoch": trainer.current_epoch, "step": self.step}
        self.best["objective"] = objective
        if self.write:
            self.best["checkpoint"] = "checkpoints/best.ckpt"
            self.save(trainer, "best.ckpt")

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.fit_loop.restarting:  # else a schedule misses it
            trainer.fit_loop.on_iteration_done()
        self.save_last(trainer)

    def on_train_end(self, trainer: Trainer, *_: Any) -> None:
        if self.ended(trainer):
            self.over, self.snapshot["files"] = True, snapshot.lengths(trainer, self.directory)
            self.save(trainer, "last.ckpt")
            self.stop.agreed(trainer)
            self.stop.leave()
        if not self.best and trainer.is_global_zero:
            log.warning("%s was never logged as a number; the last weights count.", self.monitor)

    def ended(self, trainer: Trainer) -> bool:
        """Whether max_steps are done: Lightning then runs nothing again, so only `on_train_end` may save."""
        return 0 < trainer.max_steps <= self.step

    def save_last(self, trainer: Trainer) -> None:
        """After a step write last.ckpt, once, and leave if a signal came; see `ended`."""
        if trainer.state.fn != "fit" or trainer.sanity_checking or not self.aligned:
            return
        self.stop.agreed(trainer)
        if self.saved != self.step:
            self.saved, self.due = self.step, False
            self.snapshot = snapshot.capture(trainer, self.attributes, self.directory)
            self.inexact = list(dict.fromkeys(self.inexact + self.snapshot.pop("lost")))
            if not self.ended(trainer):
                self.save(trainer, "last.ckpt")
        if not self.ended(trainer):
            self.stop.leave()

    def save(self, trainer: Trainer, name: str) -> None:
        self.guard.check(trainer)
        if self.write:
            trainer.save_checkpoint(self.directory / "checkpoints" / name)

    def on_save_checkpoint(self, trainer: Trainer, _: Any, checkpoint: dict[str, Any]) -> None:
        entry = self.fixed | {"step": self.step, "best": self.best, "inexact": self.inexact}
        entry |= {"phase": "test" if self.over else "fit", "total_steps": trainer.estimated_stepping_batches}
        entry["metrics"] = {name: float(value) for name, value in trainer.callback_metrics.items()}
        entry["resumable"] = self.aligned and (self.over or not self.ended(trainer))
        entry["first"] = self.saved < 0 and not self.restored  # no last.ckpt yet

        if self.aligned:  # else the weights alone count
            snapshot.set_counters(checkpoint["loops"]["fit_loop"])
            checkpoint["callbacks"] = self.snapshot["callbacks"]
            entry |= {name: self.snapshot[name] for name in ("running", "files")}
        checkpoint["leyden"] = entry

    def teardown(self, *_: Any, **__: Any) -> None:
        self.stop.release()

    on_exception = teardown

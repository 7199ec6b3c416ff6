"""The one callback that decides when it is safe to save, what is best, and when to stop."""

import logging
import math
import signal
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from leyden import UserError

log = logging.getLogger(__name__)
SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name)]


class Keeper(Checkpoint):
    """Writes last.ckpt and best.ckpt, only ever right after an optimizer step, never inside an accumulation.

    Args:
        directory: the run's directory
        monitor: the logged value that decides which weights are best
        mode: min or max
        objective: another value that must be logged
        every_n_steps: write last.ckpt in mid-epoch too; None: at the end of each epoch
        write: False keeps track of the best, but writes nothing
    """

    def __init__(
        self,
        directory: str,
        monitor: str,
        mode: str,
        objective: str | None = None,
        every_n_steps: int | None = None,
        write: bool = True,
    ):
        if mode not in ("min", "max"):
            raise UserError(f"checkpoint.mode={mode} is none; choose min or max.")
        self.folder = Path(directory) / "checkpoints"
        self.monitor, self.mode, self.objective, self.write = monitor, mode, objective or monitor, write
        self.every_n_steps = every_n_steps
        self.best: dict[str, Any] = {}  # monitor, value, epoch, step, objective, checkpoint
        self.step = 0
        self.before: set[str] = set()  # names of what was logged before a validation
        self.aligned = True  # the last batch ended in an optimizer step
        self.weights: dict[str, Any] | None = None  # the best ones, when they were found inside an accumulation
        self.signal = 0
        self.handlers: dict[int, Any] = {}

    # what is best

    def on_sanity_check_end(self, trainer: Trainer, task: LightningModule) -> None:
        if any(trainer.num_sanity_val_batches):
            self.require(trainer, task)

    def on_validation_start(self, trainer: Trainer, task: LightningModule) -> None:
        self.before = set(trainer.callback_metrics)

    def require(self, trainer: Trainer, task: LightningModule) -> None:
        """Find a misspelt monitor before it costs an epoch; a task that logs nothing in validation needs none.

        Raises:
            UserError: the monitor or the objective is not among the values that the task logs.
        """
        if not set(trainer.callback_metrics) - self.before:
            return
        wanted = {self.monitor, self.objective}
        counted: Any = getattr(task, "counted", None)  # of a task of another kind nobody knows before its epoch ends
        ours = wanted if counted is None else {f"train/{name}" for name in ["loss", *counted]}
        names = set(trainer.callback_metrics) | {name for name in ours if name.startswith("train/")}
        for key, name in (("objective", self.objective), ("checkpoint.monitor", self.monitor)):
            if name not in names:
                raise UserError(f"{key}={name} is not logged; choose one of {', '.join(sorted(names))}.")

    def on_validation_end(self, trainer: Trainer, task: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self.require(trainer, task)
            if not self.monitor.startswith("train/") and self.monitor in trainer.callback_metrics:
                self.consider(trainer, task)

    def consider(self, trainer: Trainer, task: LightningModule) -> None:
        """Keep the weights when their monitored value is the best so far, the later of equals; NaN never is."""
        value = float(trainer.callback_metrics[self.monitor])
        sign = -1 if self.mode == "min" else 1
        if math.isnan(value) or (self.best and sign * value < sign * self.best["value"]):
            return
        epoch, step = trainer.current_epoch, trainer.global_step
        self.best = {"monitor": self.monitor, "value": value, "epoch": epoch, "step": step}
        if self.objective in trainer.callback_metrics:
            self.best["objective"] = float(trainer.callback_metrics[self.objective])
        if self.write:
            self.best["checkpoint"] = "checkpoints/best.ckpt"
        if self.aligned:
            self.save(trainer, "best.ckpt")
        else:
            self.weights = {name: value.clone() for name, value in task.state_dict().items()}

    # when it is safe to save

    def on_train_batch_end(self, trainer: Trainer, task: LightningModule, *_: Any) -> None:
        before, self.step = self.step, trainer.global_step
        self.aligned = self.step != before
        if not self.aligned:
            return
        self.settle(trainer)
        if self.stopping(trainer):
            self.save(trainer, "last.ckpt")
            raise SystemExit(128 + self.signal)
        every = self.every_n_steps  # several optimizers may step in a batch
        if every and self.step // every > before // every and not trainer.is_last_batch:
            self.save(trainer, "last.ckpt")

    def on_train_epoch_end(self, trainer: Trainer, task: LightningModule) -> None:
        if self.monitor.startswith("train/"):
            if self.monitor not in trainer.callback_metrics:
                raise UserError(f"checkpoint.monitor={self.monitor} is not logged by the task.")
            self.consider(trainer, task)
        self.settle(trainer)
        self.save(trainer, "last.ckpt")

    def on_train_end(self, trainer: Trainer, task: LightningModule) -> None:
        if not self.best and trainer.is_global_zero:
            log.warning("%s was never logged as a number; there is no best.ckpt, the last weights count.", self.monitor)

    def settle(self, trainer: Trainer) -> None:
        """Write the best weights that had to wait for the end of an accumulation."""
        if self.weights is not None:
            self.save(trainer, "best.ckpt")
            self.weights = None

    def save(self, trainer: Trainer, name: str) -> None:
        if self.write:
            trainer.save_checkpoint(self.folder / name)

    def on_save_checkpoint(self, trainer: Trainer, task: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self.weights is not None:
            checkpoint["state_dict"] = self.weights
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        epoch = trainer.current_epoch
        checkpoint["leyden"] = {"epoch": epoch, "step": self.step, "best": self.best, "metrics": metrics}

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = state["best"]

    # when to stop

    def on_train_start(self, trainer: Trainer, task: LightningModule) -> None:
        self.check_watchers(trainer)
        self.step = trainer.global_step
        self.handlers = {number: signal.signal(number, self.notice) for number in SIGNALS}

    def check_watchers(self, trainer: Trainer) -> None:
        """Raises UserError if a callback or a scheduler watches validation where there is none."""
        watched = [getattr(callback, "monitor", None) for callback in trainer.callbacks if callback is not self]
        watched += [
            config.monitor for config in trainer.lr_scheduler_configs if config.reduce_on_plateau and config.strict
        ]
        lost = [name for name in watched if str(name).startswith("val/")]
        if lost and trainer.val_dataloaders is not None and not any(trainer.num_val_batches):
            raise UserError(f"There is no validation data, but a callback or the scheduler watches {lost[0]}.")

    def notice(self, number: int, frame: Any) -> None:
        """A first signal waits for the next optimizer step, a second one does not."""
        if self.signal:
            raise SystemExit(128 + number)
        self.signal = number
        log.warning("Received %s; saving at the next optimizer step.", signal.Signals(number).name)

    def stopping(self, trainer: Trainer) -> bool:
        """Whether any rank got a signal; all of them must stop at the same step."""
        if trainer.world_size > 1:
            mine = torch.tensor(self.signal, device=trainer.strategy.root_device)
            self.signal = int(trainer.strategy.reduce(mine, reduce_op="max"))
        return self.signal > 0

    def teardown(self, trainer: Trainer, task: LightningModule, stage: str) -> None:
        self.release()

    def on_exception(self, trainer: Trainer, task: LightningModule, exception: BaseException) -> None:
        self.release()

    def release(self) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        self.handlers = {}

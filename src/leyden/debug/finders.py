"""Before training: a learning rate, and the largest batch that fits."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, Callback, LearningRateFinder
from lightning.pytorch.utilities.parsing import lightning_getattr, lightning_setattr
from matplotlib.figure import Figure

from leyden import UserError
from leyden.lightning_internals import reload

log = logging.getLogger(__name__)
RATES = ("lr", "initial_lr", "max_lr", "min_lr")  # of a group of parameters


@contextmanager
def trial(trainer: Trainer) -> Iterator[None]:
    """Steps that no callback sees, and that no end of epochs cuts short."""
    callbacks, epochs = trainer.callbacks, trainer.max_epochs
    trainer.callbacks, trainer.fit_loop.max_epochs = [], -1
    try:
        yield
    finally:
        trainer.callbacks, trainer.fit_loop.max_epochs = callbacks, epochs


class Rate(Callback):
    """Suggests a learning rate, and draws the losses into `lr_finder.png`; its options are Lightning's."""

    def __init__(self, directory: str, use: bool = False, **options: Any):
        self.directory, self.use, self.finder = Path(directory), use, LearningRateFinder(**options, update_attr=False)

    def on_fit_start(self, trainer: Trainer, task: LightningModule) -> None:
        if trainer.ckpt_path:  # the optimizer's state has the rate
            return
        with trial(trainer):
            self.finder.lr_find(trainer, task)
        found: Any = self.finder.optimal_lr
        if not (rate := found and found.suggestion()):
            raise UserError("No rate is suggested; type a larger callbacks.lr_finder.num_training_steps.")
        if trainer.is_global_zero:
            found.plot(suggest=True, ax=Figure().add_subplot()).savefig(self.directory / "lr_finder.png")

        (optimizer,) = trainer.optimizers
        before = optimizer.defaults["lr"]
        what = f"used in place of {before:.2e}" if self.use else f"type optimizer.lr={rate:.2e}, now it is {before:.2e}"
        log.info("lr_finder: the loss falls fastest at %.2e (lr_finder.png); %s.", rate, what)

        if self.use:  # in what a schedule begins with, too
            for group in optimizer.param_groups:
                group |= {key: group[key] * rate / before for key in RATES if key in group}
            for config in trainer.lr_scheduler_configs:
                rates = getattr(config.scheduler, "base_lrs", [])
                config.scheduler.base_lrs = [base * rate / before for base in rates]


class Size(Callback):
    """Suggests the largest batch that memory, the data and `max_val` allow; its options are Lightning's."""

    def __init__(self, use: bool = False, **options: Any):
        self.use, self.finder = use, BatchSizeFinder(**options)
        self.size: int | None = None  # in use, in a run that goes on, too

    def state_dict(self) -> dict:
        return {"size": self.size}

    def on_load_checkpoint(self, trainer: Trainer, task: LightningModule, checkpoint: Any) -> None:
        if size := checkpoint["callbacks"].get(self.state_key, {}).get("size"):
            self.size = size
            lightning_setattr(task, "batch_size", size)

    def on_fit_start(self, trainer: Trainer, task: LightningModule) -> None:
        if trainer.ckpt_path:
            return
        self.finder.setup(trainer, task, "fit")
        before = lightning_getattr(task, "batch_size")
        lightning_setattr(task, "batch_size", self.finder.optimal_batch_size)  # the first one that is tried
        with trial(trainer):
            self.finder.scale_batch_size(trainer, task)

        found = self.finder.optimal_batch_size
        self.size = found if self.use else None
        lightning_setattr(task, "batch_size", self.size or before)
        what = f"used in place of {before}" if self.use else f"type data.batch_size={found}, now it is {before}"
        log.info("batch_size_finder: %d samples fit; %s.", found, what)
        reload(trainer)
        trainer.strategy.setup_optimizers(trainer)  # whose schedules count the steps

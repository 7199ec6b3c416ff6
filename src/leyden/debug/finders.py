"""Before training: a learning rate from the loss over growing rates, and the largest batch that fits."""

import io
import logging
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder

from leyden import UserError

log = logging.getLogger(__name__)


class Rate(LearningRateFinder):
    """Trains some steps at rates that grow, draws the loss, suggests a rate, and begins anew.

    Args:
        directory: where `lr_finder.png` goes
        use: train with the suggestion, whatever the schedule makes of it
        options: of Lightning's LearningRateFinder
    """

    def __init__(self, directory: str, use: bool = False, **options: Any):
        super().__init__(**options, update_attr=False)
        self.directory, self.use, self.resumed = Path(directory), use, False

    def on_load_checkpoint(self, trainer: Trainer, task: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.resumed = True

    def on_fit_start(self, trainer: Trainer, task: LightningModule) -> None:
        from matplotlib import pyplot

        if self.resumed:  # the rate is in the optimizer's state
            return
        if len(trainer.optimizers) != 1:
            raise UserError(
                f"callbacks=[lr_finder] needs one optimizer; {type(task).__name__} has {len(trainer.optimizers)}."
            )
        chosen, epochs, loop = trainer.callbacks, trainer.max_epochs, trainer.fit_loop
        trainer.callbacks, loop.max_epochs = [], -1  # callbacks must not take this for the run
        try:
            with redirect_stderr(io.StringIO()):  # a bar, in files too
                self.lr_find(trainer, task)
        finally:
            trainer.callbacks, loop.max_epochs = chosen, epochs
        found = self.optimal_lr
        rate = found.suggestion() if found and found.results.get("lr") else None
        before = trainer.optimizers[0].defaults["lr"]
        if trainer.is_global_zero and found and len(found.results["lr"]) > 1:
            figure: Any = found.plot(suggest=rate is not None)
            figure.savefig(self.directory / "lr_finder.png")
            pyplot.close(figure)
        if not rate:
            log.warning("lr_finder: no suggestion; raise callbacks.lr_finder.num_training_steps.")
            return
        log.info(
            "lr_finder: the loss falls fastest at %.2e (lr_finder.png); %s.", rate,
            f"used in place of {before:.2e}" if self.use else f"type optimizer.lr={rate:.2e}, now it is {before:.2e}",
        )  # fmt: skip
        if self.use:
            multiply(trainer, rate / before)


def multiply(trainer: Trainer, ratio: float) -> None:
    """Let the optimizer and its schedules work at another rate."""
    for optimizer in trainer.optimizers:
        optimizer.defaults["lr"] *= ratio
        for group in optimizer.param_groups:
            group |= {key: group[key] * ratio for key in ("lr", "initial_lr", "max_lr", "min_lr") if key in group}
    for config in trainer.lr_scheduler_configs:
        if hasattr(config.scheduler, "base_lrs"):
            config.scheduler.base_lrs = [rate * ratio for rate in config.scheduler.base_lrs]


class Size(BatchSizeFinder):
    """Doubles the batch until memory, the data or `max_val` is at its end, and begins anew.

    Args:
        use: train with the size that was found, which a run that goes on keeps
        options: of Lightning's BatchSizeFinder
    """

    def __init__(self, use: bool = False, **options: Any):
        super().__init__(**options)
        self.use, self.resumed = use, False
        self.size: int | None = None  # in use

    def setup(self, trainer: Trainer, task: LightningModule, stage: str | None = None) -> None:
        if stage == "fit":
            super().setup(trainer, task, stage)

    def on_load_checkpoint(self, trainer: Trainer, task: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.resumed, self.size = True, checkpoint["callbacks"].get(self.state_key, {}).get("size")
        if self.size:
            trainer.datamodule.batch_size = self.size

    def state_dict(self) -> dict[str, Any]:
        return {"size": self.size}

    def on_fit_start(self, trainer: Trainer, task: LightningModule) -> None:
        if self.resumed:
            return
        data = trainer.datamodule
        before, chosen, trainer.callbacks = data.batch_size, trainer.callbacks, []
        try:
            data.batch_size = self._init_val
            self.scale_batch_size(trainer, task)
        finally:
            trainer.callbacks = chosen
        found = self.optimal_batch_size or before
        data.batch_size = found if self.use else before
        self.size = found if self.use else None
        log.info(
            "batch_size_finder: %d samples fit; %s.", found,
            f"used in place of {before}" if self.use else f"type data.batch_size={found}, now it is {before}",
        )  # fmt: skip
        loop = trainer.fit_loop
        loop._combined_loader = loop.epoch_loop.val_loop._combined_loader = None
        loop.setup_data()
        trainer.strategy.setup_optimizers(trainer)  # whose schedule counts the steps

    def nothing(self, *_: Any) -> None:
        """It works before training alone."""

    on_validation_start: Any = nothing
    on_test_start: Any = nothing
    on_predict_start: Any = nothing

"""Stops a run whose loss is no number, before the weights are none either, and one that a search gives up."""

import math
from collections.abc import Callable

from lightning import Trainer
from torch import Tensor
from torch.optim import Optimizer

from leyden import UserError

SKIPPED = 20  # steps in a row that a loss scaler may leave out


class Guard:
    """On a CPU each loss is looked at; elsewhere that would make the host wait, so a flag on the device guards the
    update, and the host reads it when it logs or saves. `judge`: (objective, epochs) -> whether a search gives up.
    """

    def __init__(self, judge: Callable[[float, int], bool] | None = None):
        self.judge, self.pruned = judge, False
        self.bad: Tensor | None = None  # whether a loss was not finite, on the device
        self.scale = 0.0  # the largest loss scale seen

    def watch(self, trainer: Trainer, loss: Tensor, step: int) -> None:
        loss = loss.detach()
        if self.waits(loss):
            self.bad = ~loss.isfinite() if self.bad is None else self.bad | ~loss.isfinite()
        elif not math.isfinite(loss):
            self.abort_nonfinite(trainer, f"The training loss is {float(loss)} at step {step + 1}")

    @staticmethod
    def waits(loss: Tensor) -> bool:
        return loss.device.type != "cpu"

    def protect(self, trainer: Trainer, optimizer: Optimizer) -> None:
        """Let an optimizer step change nothing after a loss that was not finite; a loss scaler sees to it itself."""
        if self.bad is None or getattr(trainer.precision_plugin, "scaler", None):
            return
        if optimizer.defaults.get("fused"):
            optimizer.found_inf = self.bad.float().reshape(())  # as torch.amp.GradScaler tells it
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.masked_fill_(self.bad, 0)

    def check(self, trainer: Trainer, step: int) -> None:
        """Raises UserError if a loss was not finite, or the scaler has left out too many steps in a row."""
        if self.bad is not None and self.bad:
            self.abort_nonfinite(trainer, f"A training loss was not finite at step {step} or shortly before")
        if scaler := getattr(trainer.precision_plugin, "scaler", None):
            scale = scaler.get_scale()
            self.scale = max(self.scale, scale)
            if scale <= self.scale / 2**SKIPPED:
                self.abort_nonfinite(
                    trainer, f"The loss scaler has left out {SKIPPED} steps in a row, the last at {step}"
                )

    def ask(self, trainer: Trainer, value: float | None) -> None:
        """Stop where a search gives the run up for its objective; all ranks do as rank 0 is told."""
        if self.judge and value is not None:
            epochs, last = trainer.current_epoch + 1, trainer.max_epochs or -1
            told = trainer.is_global_zero and self.judge(value, epochs)
            self.pruned = trainer.strategy.broadcast(told) and epochs != last  # nothing is saved at the end
            trainer.should_stop |= self.pruned

    def abort_nonfinite(self, trainer: Trainer, what: str) -> None:
        where = f"epoch {trainer.current_epoch + 1}, batch {trainer.fit_loop.epoch_loop.batch_idx + 1}"
        raise UserError(
            f"{what} ({where}); what was saved is of before. Lower optimizer.lr, type trainer.gradient_clip_val=1 or "
            "trainer.precision=32-true, or 'callbacks=[finite]', which names the first layer whose output is not "
            "finite; if it names none, look at how the loss is computed."
        )

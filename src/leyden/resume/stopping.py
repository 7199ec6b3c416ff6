"""What ends a run before its last step: a signal, or a loss that is no number."""

import logging
import math
import signal
from typing import Any

import torch
from lightning import Trainer
from torch import Tensor

from leyden import UserError

log = logging.getLogger(__name__)
WARNINGS = ("SIGUSR1", "SIGUSR2")  # that the time ends
SIGNALS = [number for number in signal.Signals if number.name in ("SIGTERM", "SIGINT", *WARNINGS)]


class Stop:
    """The first signal waits until all ranks are between steps, a second does not."""

    number = 0  # of the signal that came; 0: none
    handlers: dict[int, Any] = {}

    def listen(self) -> None:
        self.handlers = {number: signal.signal(number, self.notice) for number in SIGNALS}

    def release(self) -> None:
        """Give the signals back, unless Lightning has: its handler keeps a Trainer."""
        for number, handler in self.handlers.items():
            if signal.getsignal(number) == self.notice:
                signal.signal(number, handler)
        self.handlers = {}

    def notice(self, number: int, frame: Any) -> None:
        name = signal.Signals(number).name
        if self.number and (self.number != number or name not in WARNINGS):  # which come twice
            raise SystemExit(128 + number)
        if not self.number:
            log.warning("Received %s; saving at the next optimizer step.", name)
        self.number = number

    def agreed(self, trainer: Trainer) -> bool:
        """Whether any rank got a signal; all do as one."""
        if trainer.world_size > 1:
            mine = torch.tensor(self.number, device=trainer.strategy.root_device)
            self.number = int(trainer.strategy.reduce(mine, reduce_op="max"))
        return self.number > 0

    def leave(self) -> None:
        """SystemExit(128 + signal) if one came."""
        if self.number:
            raise SystemExit(128 + self.number)


class Guard:
    """Ends a run whose loss is no number, before it is saved.

    Off the CPU, where the host would wait for each loss, it looks when it logs or saves.
    """

    bad: Tensor | bool = False  # on the device: whether a loss was not finite
    waits = staticmethod(lambda loss: loss.device.type != "cpu")

    def watch(self, trainer: Trainer, loss: Tensor) -> None:
        loss = loss.detach()
        if self.waits(loss):
            self.bad = ~loss.isfinite() | self.bad
        elif not math.isfinite(loss):
            self.abort_nonfinite(trainer, f"The training loss is {float(loss)} at step {trainer.global_step + 1}")

    def check(self, trainer: Trainer) -> None:
        """UserError if a loss was not finite."""
        if self.bad:
            self.abort_nonfinite(trainer, f"A loss was not finite at step {trainer.global_step} or shortly before")

    def abort_nonfinite(self, trainer: Trainer, what: str) -> None:
        where = f"epoch {trainer.current_epoch + 1}, batch {trainer.fit_loop.epoch_loop.batch_idx + 1}"
        fix = "Type a lower optimizer.lr, trainer.gradient_clip_val=1, or 'callbacks=[finite]', which names the layer"
        raise UserError(f"{what} ({where}); checkpoints are of before. {fix}; else look at how the loss is computed.")

"""Signals that ask a run to stop."""

import logging
import signal
from typing import Any

import torch
from lightning import Trainer

log = logging.getLogger(__name__)
SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name)]


class Stop:
    """The first signal waits until all ranks are between two steps, a second one does not."""

    def __init__(self) -> None:
        self.number = 0  # of the signal that came; 0: none
        self.handlers: dict[int, Any] = {}

    def listen(self) -> None:
        self.handlers = {number: signal.signal(number, self.notice) for number in SIGNALS}

    def release(self) -> None:
        """Give the signals back to who had them, unless Lightning has done so: its own handler keeps its Trainer."""
        for number, handler in self.handlers.items():
            if signal.getsignal(number) == self.notice:
                signal.signal(number, handler)
        self.handlers = {}

    def notice(self, number: int, frame: Any) -> None:
        if self.number:
            raise SystemExit(128 + number)
        self.number = number
        log.warning("Received %s; saving at the next optimizer step.", signal.Signals(number).name)

    def agreed(self, trainer: Trainer) -> bool:
        """Whether any rank got a signal; all of them must stop at the same step."""
        if trainer.world_size > 1:
            mine = torch.tensor(self.number, device=trainer.strategy.root_device)
            self.number = int(trainer.strategy.reduce(mine, reduce_op="max"))
        return self.number > 0

    def leave(self) -> None:
        """Raises SystemExit(128 + signal) if one came."""
        if self.number:
            raise SystemExit(128 + self.number)

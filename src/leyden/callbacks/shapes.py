"""Shows what each layer makes of a batch and what it costs, and trains nothing."""

import logging
import time
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.exceptions import _TunerExitException
from torch.utils.flop_counter import FlopCounterMode

from leyden import replay

log = logging.getLogger(__name__)
TITLES = ("layer", "kind", "in", "out", "parameters", "FLOPs", "ms")


class Shapes(Callback):
    """Does the first training step a few times, to count and to time its forward pass, logs a table and ends the fit.

    A layer that is called twice has two lines. FLOPs are those of products and convolutions, two for a multiply-add.
    """

    def on_train_batch_start(self, trainer: Trainer, task: LightningModule, batch: Any, batch_idx: int) -> None:
        def clock() -> float:
            if task.device.type != "cpu":
                torch.accelerator.synchronize(task.device)
            return time.perf_counter()

        with trainer.precision_plugin.train_step_context():
            with FlopCounterMode(display=False) as counter, replay.watched(task, meter=counter.get_total_flops) as one:
                task.training_step(batch, batch_idx)
            for _ in range(2):  # the first one warms up
                with replay.watched(task, meter=clock) as two:
                    task.training_step(batch, batch_idx)
        if trainer.is_global_zero:
            log.info("\n%s", table(task, one, two))
        raise _TunerExitException  # which Lightning takes for a good end


def table(task: LightningModule, counted: list[replay.Call], timed: list[replay.Call]) -> str:
    """The layers in the order in which they are called, and their sums; times include the hooks' own."""
    seconds = [call.cost for call in timed]
    cells = [
        (call.name, call.kind, call.given, call.returned, f"{parameters(call.module):,}", f"{call.cost:,.0f}",
         f"{1e3 * spent:.3f}")
        for call, spent in zip(counted, seconds, strict=True) if call.leaf
    ]  # fmt: skip
    outer = [number for number, call in enumerate(counted) if "." not in call.name]
    flops, spent = sum(counted[i].cost for i in outer), sum(seconds[i] for i in outer)
    cells.append(("sum", "", "", "", f"{parameters(task):,}", f"{flops:,.0f}", f"{1e3 * spent:.3f}"))
    return "\n".join(replay.rows(cells, TITLES))


def parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())

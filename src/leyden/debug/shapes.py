"""Shows the sizes and the cost of each layer, and trains nothing."""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.exceptions import _TunerExitException
from torch.utils.flop_counter import FlopCounterMode

from leyden.debug.tensors import sizes

log = logging.getLogger(__name__)
TITLES = ("layer", "kind", "in", "out", "parameters", "FLOPs", "ms")


class Shapes(Callback):
    """Logs a table of the layers in the order of their calls, and ends the fit; `ms` is the forward pass.

    FLOPs are those of products and convolutions, two for a multiply-add (torch.utils.flop_counter).
    """

    def on_train_batch_start(self, trainer: Trainer, task: LightningModule, batch: Any, batch_idx: int) -> None:
        def clock() -> float:
            if task.device.type != "cpu":
                torch.accelerator.synchronize(task.device)
            return 1e3 * time.perf_counter()

        step = partial(task.training_step, batch, batch_idx)
        with trainer.precision_plugin.train_step_context(), torch.compiler.set_stance("force_eager"):
            with FlopCounterMode(display=False) as counter:
                flops = measure(task, step, counter.get_total_flops)
            times = measure(task, step, clock)
        rows = [(*row, f"{count:,}", f"{ms:.3f}") for (*row, count), (*_, ms) in zip(flops, times, strict=True)]
        widths = [max(map(len, column)) for column in zip(TITLES, *rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (TITLES, *rows)]
        if trainer.is_global_zero:
            log.info("\n%s", "\n".join(lines))
        raise _TunerExitException  # which Lightning takes for a good end


def measure(task: LightningModule, step: Callable[[], Any], meter: Callable[[], float]) -> list[tuple[Any, ...]]:
    """Layer, kind, in, out, parameters and the meter's count of each call, in their order, and of the whole step."""
    rows: list[tuple[Any, ...]] = []
    started: list[float] = []
    hooks = []
    for name, module in task.named_modules():
        if any(module.children()) and not any(True for _ in module.parameters(recurse=False)):
            continue

        def begin(module: torch.nn.Module, inputs: Any) -> None:
            started.append(meter())

        def end(module: torch.nn.Module, inputs: Any, keywords: Any, output: Any, name: str = name) -> None:
            cells = name, type(module).__name__, sizes([inputs, keywords]), sizes(output), parameters(module)
            rows.append((*cells, meter() - started.pop()))

        hooks += [module.register_forward_pre_hook(begin), module.register_forward_hook(end, with_kwargs=True)]
    start = meter()
    step()
    rows.append(("sum", "", "", "", parameters(task), meter() - start))
    for hook in hooks:
        hook.remove()
    return rows


def parameters(module: torch.nn.Module) -> str:
    return f"{sum(parameter.numel() for parameter in module.parameters()):,}"

"""What each layer takes and gives: its sizes and its cost in a table, and the first output that is not finite."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torchmetrics import Metric, MetricCollection

from leyden import UserError
from leyden.lightning_internals import EndFit

log = logging.getLogger(__name__)


class Shapes(Callback):
    """Logs a table of the layers in the order of their calls, and ends the fit.

    FLOPs are those of products and convolutions in the forward pass, two for a multiply-add.
    """

    trains_nothing = True

    def on_train_batch_start(self, trainer: Trainer, task: LightningModule, batch: Any, batch_idx: int) -> None:
        from pandas import DataFrame
        from torch.utils.flop_counter import FlopCounterMode

        rows, started, counter = list[Any](), list[int](), FlopCounterMode(display=False)

        def begin(*_: Any) -> None:
            started.append(counter.get_total_flops())

        def end(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            cost = sum(p.numel() for p in module.parameters()), counter.get_total_flops() - started.pop()
            rows.append((name, type(module).__name__, sizes([args, kwargs]), sizes(output), *cost))

        for name, module in task.named_modules():
            if not any(module.children()) or any(True for _ in module.parameters(recurse=False)):
                module.register_forward_pre_hook(begin)
                module.register_forward_hook(partial(end, name), with_kwargs=True)
        with trainer.precision_plugin.train_step_context(), torch.compiler.set_stance("force_eager"), counter:
            begin()
            end("sum", task, batch, {}, task.training_step(batch, batch_idx))
        table = DataFrame(rows, columns=["layer", "kind", "in", "out", "parameters", "FLOPs"])
        log.info("\n%s", table.to_string(index=False))
        raise EndFit


def tensors(node: Any) -> list[Tensor]:
    """Those of nested containers, in order."""
    return [leaf for leaf in tree_leaves(node) if isinstance(leaf, Tensor)]


def sizes(node: Any) -> str:
    """The sizes of the tensors of nested containers: `64 x 10, 64`."""
    return ", ".join(" x ".join(map(str, tensor.shape)) or "1" for tensor in tensors(node)) or "-"


class Finite(Callback):
    """Ends the run at the first output of a layer that is not finite; the batch is written to `bad_batch.pt`.

    The host waits for each layer.
    """

    def __init__(self, directory: str):
        self.directory = Path(directory)
        self.batch: Any = None  # of the last training step

    def on_train_start(self, trainer: Trainer, task: LightningModule) -> None:
        for name, layer in task.named_modules():
            if name and not isinstance(layer, Metric | MetricCollection):
                layer.register_forward_hook(partial(self.check, name), with_kwargs=True)

    def on_train_batch_start(self, trainer: Trainer, task: LightningModule, batch: Any, batch_idx: int) -> None:
        self.batch = batch

    @torch.compiler.disable
    def check(self, name: str, layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Raises UserError if an output of a training step is not finite."""
        if not torch.is_grad_enabled() or finite(output):  # without gradients it is no training
            return
        parts = {"its weights": list(layer.parameters(recurse=False)), "its input": [args, kwargs]}
        bad = " and ".join(part for part, node in parts.items() if not finite(node))
        cause = f"nor are {bad}" if bad else "its weights and input are: look for a log or a division"
        what = f"{name}, {type(layer).__name__} of {sizes([args, kwargs])}"
        raise UserError(f"The first layer whose output is not finite is {what}; {cause}.")

    def on_exception(self, trainer: Trainer, task: LightningModule, exception: BaseException) -> None:
        if self.batch is not None and isinstance(exception, UserError):
            path = self.directory / f"bad_batch{trainer.global_rank or ''}.pt"
            torch.save({"batch": move_data_to_device(self.batch, "cpu"), "step": trainer.global_step}, path)
            log.warning("The batch of step %d is in %s.", trainer.global_step + 1, path.name)


def finite(node: Any) -> bool:
    """Whether all numbers of nested containers are; of parts on several devices those of this one."""
    local = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors(node)]
    return all(tensor.isfinite().all() for tensor in local)

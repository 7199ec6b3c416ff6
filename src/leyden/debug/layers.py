"""What each layer takes and gives: its sizes and its cost in a table, and the first output that is not finite."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch.callbacks import Callback
from pandas import DataFrame
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from torch.utils.benchmark import timer
from torch.utils.flop_counter import FlopCounterMode
from torchmetrics import Metric, MetricCollection

from leyden import UserError
from leyden.lightning_internals import EndFit

log = logging.getLogger(__name__)


class Shapes(Callback):
    """Logs a table of the layers in the order of their calls, and ends the fit; `ms` is of the forward pass.

    FLOPs are those of products and convolutions, two for a multiply-add (torch.utils.flop_counter).
    """

    trains_nothing = True

    def on_train_batch_start(self, trainer: Trainer, task: LightningModule, batch: Any, batch_idx: int) -> None:
        step = partial(task.training_step, batch, batch_idx)
        with trainer.precision_plugin.train_step_context(), torch.compiler.set_stance("force_eager"):
            with FlopCounterMode(display=False) as counter:
                rows = measure(task, step, counter.get_total_flops)
            times = measure(task, step, timer)
        table = DataFrame(rows, columns=["layer", "kind", "in", "out", "parameters", "FLOPs"])
        table["ms"] = [1e3 * row[-1] for row in times]
        log.info("\n%s", table.to_string(index=False, float_format="{:.3f}".format))
        raise EndFit


def measure(task: LightningModule, step: Callable[[], Any], meter: Callable[[], float]) -> list[tuple[Any, ...]]:
    """Layer, kind, sizes in and out, parameters and what the meter counts, of each call and of the whole step."""
    rows: list[tuple[Any, ...]] = []
    started: list[float] = []
    hooks = []

    def count(module: nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    def end(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        cells = name, type(module).__name__, sizes([args, kwargs]), sizes(output), count(module)
        rows.append((*cells, meter() - started.pop()))

    for name, module in task.named_modules():
        if not any(module.children()) or any(True for _ in module.parameters(recurse=False)):
            hooks.append(module.register_forward_pre_hook(lambda *_: started.append(meter())))
            hooks.append(module.register_forward_hook(partial(end, name), with_kwargs=True))
    start = meter()
    step()
    for hook in hooks:
        hook.remove()
    return [*rows, ("sum", "", "", "", count(task), meter() - start)]


def tensors(node: Any) -> list[Tensor]:
    """Those of nested containers, in order."""
    return [leaf for leaf in tree_leaves(node) if isinstance(leaf, Tensor)]


def sizes(node: Any) -> str:
    """The sizes of the tensors of nested containers: `64 x 10, 64`."""
    return ", ".join(" x ".join(map(str, tensor.shape)) or "1" for tensor in tensors(node)) or "-"


class Finite(Callback):
    """Ends the run at the first NaN or infinity in a training step; the batch is written to `bad_batch.pt`.

    The host waits for each layer. With a loss scaler, which skips steps on purpose, gradients are not checked.
    """

    def __init__(self, directory: str):
        self.directory = Path(directory)
        self.batch: Any = None  # of the running training step

    def on_train_start(self, trainer: Trainer, task: LightningModule) -> None:
        for name, layer in task.named_modules():
            if layer is not task and not isinstance(layer, Metric | MetricCollection):
                layer.register_forward_hook(partial(self.check, name), with_kwargs=True)

    def on_train_batch_start(self, trainer: Trainer, task: LightningModule, batch: Any, batch_idx: int) -> None:
        self.batch = batch

    def on_train_batch_end(self, *_: Any) -> None:
        self.batch = None

    @torch.compiler.disable
    def check(self, name: str, layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Raises UserError if an output of a training step is not finite."""
        if self.batch is None or finite(output):
            return
        parts = {"weights": list(layer.parameters(recurse=False)), "input": [args, kwargs], "batch": self.batch}
        bad = [part for part, node in parts.items() if not finite(node)]
        cause = f"not finite either: {', '.join(bad)}" if bad else "weights and input are: look for a log or a root in it"
        what = f"{name}, {type(layer).__name__} of {sizes([args, kwargs])}"
        raise UserError(f"The first layer whose output is not finite is {what}; {cause}.")

    def on_before_backward(self, trainer: Trainer, task: LightningModule, loss: Tensor) -> None:
        if not finite(loss):
            raise UserError(f"The loss is {float(loss)}, although each layer's output is finite.")

    def on_before_optimizer_step(self, trainer: Trainer, task: LightningModule, optimizer: Optimizer) -> None:
        grads = {name: p.grad for name, p in task.named_parameters() if p.grad is not None}
        bad = [name for name, grad in grads.items() if not finite(flat([grad]))]
        if bad and not getattr(trainer.precision_plugin, "scaler", None):
            names = ", ".join(bad[:5])
            raise UserError(f"The loss is finite, but not the gradients of {names}; debug=anomaly names the operator.")

    def on_exception(self, trainer: Trainer, task: LightningModule, exception: BaseException) -> None:
        if self.batch is not None and isinstance(exception, UserError):
            path = self.directory / f"bad_batch{trainer.global_rank or ''}.pt"
            torch.save({"batch": move_data_to_device(self.batch, "cpu"), "step": trainer.global_step}, path)
            log.warning("The batch of step %d is in %s.", trainer.global_step + 1, path.name)


def finite(node: Any) -> bool:
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors(node)]
    return all(tensor.sum().isfinite() or tensor.isfinite().all() for tensor in local)  # a sum alone is faster


def flat(tensors: list[Any]) -> Tensor:
    """A copy of all values, one after the other, with those that FSDP keeps on other ranks."""
    whole = (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    return torch.cat([tensor.detach().to_dense().float().flatten() for tensor in whole])

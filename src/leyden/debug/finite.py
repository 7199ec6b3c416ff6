"""Names the first layer whose output is not finite, or the parameters whose gradients are not."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torchmetrics import Metric, MetricCollection

from leyden import UserError
from leyden.debug.tensors import sizes, tensors, whole

log = logging.getLogger(__name__)


class Finite(Callback):
    """Ends the run at the first NaN or infinity in a training step; the batch is written to `bad_batch.pt`.

    The host waits for each layer. With a loss scaler, which skips steps on purpose, gradients are not checked.

    Raises:
        UserError: the layer or the parameters, and the likely cause.
    """

    def __init__(self, directory: str):
        self.directory = Path(directory)
        self.batch: Any = None  # of the running training step
        self.hooks: list[Any] = []

    def on_train_start(self, trainer: Trainer, task: LightningModule) -> None:
        for name, layer in task.named_modules():
            if layer is not task and not isinstance(layer, Metric | MetricCollection):
                check = partial(self.check, trainer, name)
                self.hooks.append(layer.register_forward_hook(check, with_kwargs=True))

    def teardown(self, trainer: Trainer, task: LightningModule, stage: str) -> None:
        while self.hooks:
            self.hooks.pop().remove()

    def on_train_batch_start(self, trainer: Trainer, task: LightningModule, batch: Any, batch_idx: int) -> None:
        self.batch = batch

    def on_train_batch_end(self, *_: Any) -> None:
        self.batch = None

    @torch.compiler.disable
    def check(self, trainer: Trainer, name: str, layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self.batch is None or finite(output):
            return
        if not finite(list(layer.parameters(recurse=False))):
            cause = "its weights are not finite, so the last step was too large: lower optimizer.lr"
        elif finite([args, kwargs]):
            cause = "its input is finite: look for a log, a root, a division or an exponent in it, and clamp its input"
        elif finite(self.batch):
            cause = "its input is not finite either: look at the code between it and the layer before it"
        else:
            cause = "the batch itself has values that are not finite: mend the data"
        what = f"{name} ({type(layer).__name__}, input {sizes([args, kwargs])})"
        raise UserError(f"{step(trainer)}: the first layer whose output is not finite is {what}; {cause}.")

    def on_before_backward(self, trainer: Trainer, task: LightningModule, loss: Tensor) -> None:
        if not finite(loss):
            raise UserError(f"{step(trainer)}: the loss is {float(loss)}, although each layer's output is finite.")

    def on_before_optimizer_step(self, trainer: Trainer, task: LightningModule, optimizer: Optimizer) -> None:
        if getattr(trainer.precision_plugin, "scaler", None):
            return
        bad = [n for n, p in task.named_parameters() if p.grad is not None and not finite(whole(p.grad))]
        if bad:
            names = ", ".join(bad[:5]) + f" and {len(bad) - 5} more" * (len(bad) > 5)
            what = "the loss is finite, but something has no finite slope, as a root or a norm of zero"
            raise UserError(f"{step(trainer)}: {what}: see the gradients of {names}; debug=anomaly names the operator.")

    def on_exception(self, trainer: Trainer, task: LightningModule, exception: BaseException) -> None:
        if self.batch is not None and isinstance(exception, UserError):
            path = self.directory / f"bad_batch{trainer.global_rank or ''}.pt"
            torch.save({"batch": move_data_to_device(self.batch, "cpu"), "step": trainer.global_step}, path)
            log.warning("The batch is in %s in the run directory.", path.name)


def finite(node: Any) -> bool:
    found = [tensor.detach() for tensor in tensors(node)]
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in found]
    return all(tensor.sum().isfinite() or tensor.isfinite().all() for tensor in local)  # a sum alone is faster


def step(trainer: Trainer) -> str:
    return f"Step {trainer.global_step + 1} (epoch {trainer.current_epoch + 1})"

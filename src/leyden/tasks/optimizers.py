"""The optimizer and the schedule of the config, for any LightningModule."""

import inspect
import logging
import re
from collections.abc import Iterator, MutableSequence
from functools import partial
from typing import Any

from lightning import LightningModule, Trainer
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from leyden import UserError, require
from leyden.lightning_internals import AT_VALIDATIONS

log = logging.getLogger(__name__)


def configure_optimizers(
    task: LightningModule, optimizer: partial, scheduler: partial | None = None, monitor: str = "val/loss"
) -> dict[str, Any]:
    """What `configure_optimizers` of a LightningModule returns, from the config's `${optimizer}` and `${scheduler}`.

    The scheduler is a partial of one of torch, or of a factor (step, total) -> share of the rate; a plateau watches
    `monitor`.
    """
    for name, part in ("optimizer", optimizer), ("scheduler", scheduler or optimizer):
        require(isinstance(part, partial), name, "a class or a function with `_partial_: true`", part)
    weights = dict.fromkeys(decayed(task))  # each once, where modules share it
    rest = dict.fromkeys(parameter for parameter, _ in learning(task) if parameter not in weights)
    groups = [{"params": list(weights)}, {"params": list(rest), "weight_decay": 0.0}]
    keywords, trainer = dict(optimizer.keywords), task.trainer
    if keywords.get("fused") == "auto":
        keywords["fused"] = can_fuse(task)
    if keywords.pop("scale_lr", False) and trainer.estimated_stepping_batches:  # which counts the batches, too
        batches = min(trainer.accumulate_grad_batches, trainer.num_training_batches)
        keywords["lr"] *= trainer.world_size * batches  # (Goyal et al. 2017, arXiv:1706.02677)
    try:
        made = {"optimizer": optimizer.func([group for group in groups if group["params"]], **keywords)}
        if scheduler:
            made["lr_scheduler"] = schedule(made["optimizer"], scheduler, trainer, monitor)
        return made
    except (TypeError, ValueError) as error:
        raise UserError(f"optimizer or scheduler cannot be built: {error}.") from error


class Frozen(nn.Module):
    """A part that does not learn, and stays as in an evaluation."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module.requires_grad_(False).eval()

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        return self.module(*arguments, **keywords)

    def train(self, mode: bool = True) -> "Frozen":
        return super().train(False)


def learning(module: nn.Module) -> Iterator[tuple[nn.Parameter, bool]]:
    """Each parameter but for what is frozen, and whether weights decay there.

    Those of matrices and kernels do: neither biases nor norms nor embeddings, which it only hurts.
    """
    if isinstance(module, Frozen):
        return
    for name, parameter in module.named_parameters(recurse=False):
        spared = isinstance(module, nn.Embedding) or re.search("bias|embed|position|token", name)
        yield parameter, parameter.ndim >= 2 and not spared
    for child in module.children():
        yield from learning(child)


def decayed(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter, decays in learning(module) if decays]


def can_fuse(task: LightningModule) -> bool:
    """Whether one kernel can step all parameters; in mixed precision Lightning does not clip for such a kernel."""
    if task.trainer.precision.endswith("-mixed") and task.trainer.gradient_clip_val:
        log.warning("The optimizer is not fused: in %s that excludes gradient clipping.", task.trainer.precision)
        return False
    return task.device.type in ("cpu", "cuda")


def schedule(optimizer: Optimizer, scheduler: partial, trainer: Trainer, monitor: str) -> dict[str, Any]:
    """The scheduler as Lightning wants it: a factor steps with the optimizer, one of torch with the epoch.

    A plateau steps with what it watches: with the epoch if that is of training, else at each validation.
    """
    if not isinstance(scheduler.func, type):
        total = trainer.estimated_stepping_batches
        plain = {k: list(v) if isinstance(v, MutableSequence) else v for k, v in scheduler.keywords.items()}
        factor = partial(scheduler.func, **plain)  # Hydra's own would check its target, and its lists, at each step
        return {"scheduler": LambdaLR(optimizer, lambda step: factor(step, total)), "interval": "step"}
    require(issubclass(scheduler.func, LRScheduler), "scheduler", "one of torch or a factor", scheduler.func.__name__)
    if issubclass(scheduler.func, ReduceLROnPlateau):
        every = 1 if monitor.startswith("train/") else AT_VALIDATIONS
        return {"scheduler": scheduler(optimizer), "monitor": monitor, "frequency": every}
    if "total_steps" in inspect.signature(scheduler.func).parameters:
        return {"scheduler": scheduler(optimizer, total_steps=trainer.estimated_stepping_batches), "interval": "step"}
    return {"scheduler": scheduler(optimizer)}

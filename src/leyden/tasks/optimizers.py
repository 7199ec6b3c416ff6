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
    `monitor`. Raises UserError for what torch does not take.
    """
    for name, part in ("optimizer", optimizer), ("scheduler", scheduler or optimizer):
        require(isinstance(part, partial), name, "a class or a function with `_partial_: true`", part)
    weights = dict.fromkeys(decayed(task))  # each once, where modules share it
    rest = [p for p in dict.fromkeys(parameter for _, _, parameter in learning(task)) if p not in weights]
    groups = [{"params": list(weights)}, {"params": rest, "weight_decay": 0.0}]
    keywords, trainer = dict(optimizer.keywords), task.trainer
    if keywords.get("fused") == "auto":
        keywords["fused"] = can_fuse(task)
    if keywords.pop("scale_lr", False) and trainer.estimated_stepping_batches:  # which counts the batches, too
        batches = min(trainer.accumulate_grad_batches, trainer.num_training_batches)
        keywords["lr"] *= trainer.world_size * batches  # (Goyal et al. 2017, arXiv:1706.02677)
    try:
        made = optimizer.func([group for group in groups if group["params"]], **keywords)
        stepped = {"lr_scheduler": schedule(made, scheduler, trainer, monitor)} if scheduler else {}
        return {"optimizer": made} | stepped
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


def learning(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    """Each parameter, with its module and its name there, but for what is frozen."""
    if not isinstance(module, Frozen):
        yield from ((module, name, parameter) for name, parameter in module.named_parameters(recurse=False))
        for child in module.children():
            yield from learning(child)


def decayed(task: LightningModule) -> list[nn.Parameter]:
    """Matrices and kernels: neither biases nor norms nor embeddings, which weight decay only hurts."""
    spared = re.compile("bias|embed|position|token")
    found = [(part, name, p) for part, name, p in learning(task) if p.ndim >= 2 and not spared.search(name)]
    return [parameter for part, _, parameter in found if not isinstance(part, nn.Embedding)]


def can_fuse(task: LightningModule) -> bool:
    """Whether one kernel can step all parameters; in mixed precision Lightning does not clip for such a kernel."""
    mixed = task.trainer.precision.endswith("-mixed") and bool(task.trainer.gradient_clip_val)
    if mixed:
        log.warning("The optimizer is not fused: in %s that excludes gradient clipping.", task.trainer.precision)
    return not mixed and task.device.type in ("cpu", "cuda")


def schedule(optimizer: Optimizer, scheduler: partial, trainer: Trainer, monitor: str) -> dict[str, Any]:
    """The scheduler as Lightning wants it: a factor steps with the optimizer, one of torch with the epoch.

    A plateau steps with what it watches: with the epoch if that is of training, else at each validation.
    """
    if not isinstance(scheduler.func, type):
        total = trainer.estimated_stepping_batches
        plain = {k: list(v) if isinstance(v, MutableSequence) else v for k, v in scheduler.keywords.items()}
        factor = partial(scheduler.func, **plain)  # Hydra's own would check its target, and its lists, at each step
        return {"scheduler": LambdaLR(optimizer, lambda step: factor(step, total)), "interval": "step"}
    if not issubclass(scheduler.func, LRScheduler):
        raise UserError(f"`scheduler` must be a scheduler of torch or a factor; got `{scheduler.func.__name__}`.")
    if issubclass(scheduler.func, ReduceLROnPlateau):
        every = 1 if monitor.startswith("train/") else AT_VALIDATIONS
        return {"scheduler": scheduler(optimizer), "monitor": monitor, "frequency": every}
    if "total_steps" in inspect.signature(scheduler.func).parameters:
        return {"scheduler": scheduler(optimizer, total_steps=trainer.estimated_stepping_batches), "interval": "step"}
    return {"scheduler": scheduler(optimizer)}

"""The optimizer and the schedule of the config, for any LightningModule."""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from lightning import LightningModule, Trainer
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR, ReduceLROnPlateau

from leyden import UserError, require
from leyden.lightning_internals import AT_VALIDATIONS

OURS = {"fused": "auto", "scale_lr": False}  # of conf/optimizer; torch takes neither


def configure_optimizers(
    task: LightningModule, optimizer: partial, scheduler: partial | None = None, monitor: str = "val/loss"
) -> dict[str, Any]:
    """What a LightningModule's `configure_optimizers` returns, from the config's `${optimizer}` and `${scheduler}`.

    A scheduler is one of torch, or a factor (step, total) -> share of the rate; a plateau watches `monitor`.
    """
    for name, part in ("optimizer", optimizer), ("scheduler", scheduler or optimizer):
        require(isinstance(part, partial), name, "a class or a function with `_partial_: true`", part)
    weights = dict.fromkeys(decayed(task))  # each once, where modules share it
    rest = dict.fromkeys(parameter for parameter, _ in learning(task) if parameter not in weights)
    groups = [{"params": list(weights)}, {"params": list(rest), "weight_decay": 0.0}]
    keywords, trainer = optimizer.keywords | vars(optimizer).get("ours", {}), task.trainer
    if keywords.get("fused") == "auto":  # Lightning does not clip for one kernel in mixed precision
        clipped = trainer.precision.endswith("-mixed") and trainer.gradient_clip_val
        keywords["fused"] = not clipped and task.device.type in ("cpu", "cuda")
    if keywords.pop("scale_lr", False) and trainer.estimated_stepping_batches:  # which counts the batches, too
        batches = min(trainer.accumulate_grad_batches, trainer.num_training_batches)
        keywords["lr"] *= trainer.world_size * batches  # (Goyal et al. 2017, arXiv:1706.02677)
    try:
        made = optimizer.func([group for group in groups if group["params"]], **keywords)
        if scheduler is None:
            return {"optimizer": made}
        return {"optimizer": made, "lr_scheduler": schedule(made, scheduler, trainer, monitor)}
    except (TypeError, ValueError) as error:
        raise UserError(f"optimizer or scheduler cannot be built: {error}.") from error


def make_callable(task: LightningModule) -> None:
    """Let a task call the config's optimizer itself: torch does not see `OURS`, unless somebody changed it."""
    for part in [*vars(task).values(), *task.hparams.values()]:
        if isinstance(part, partial) and "scale_lr" in part.keywords:
            same = [name for name, value in OURS.items() if part.keywords.get(name) == value]
            vars(part)["ours"] = {name: part.keywords.pop(name) for name in same}


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
    """Each parameter that is not frozen, and whether it decays: biases, norms and embeddings do not."""
    if isinstance(module, Frozen):
        return
    for name, parameter in module.named_parameters(recurse=False):
        spared = isinstance(module, nn.Embedding) or re.search("bias|embed|position|token", name)
        yield parameter, parameter.ndim >= 2 and not spared
    for child in module.children():
        yield from learning(child)


def decayed(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter, decays in learning(module) if decays]


def schedule(optimizer: Optimizer, scheduler: partial, trainer: Trainer, monitor: str) -> dict[str, Any]:
    """The scheduler as Lightning wants it: a factor steps with the optimizer, one of torch with the epoch."""
    kind = scheduler.func
    if not isinstance(kind, type):
        total = trainer.estimated_stepping_batches
        factor = partial(kind, **scheduler.keywords)  # Hydra's own would check its target at each step
        return {"scheduler": LambdaLR(optimizer, lambda step: factor(step, total)), "interval": "step"}
    require(issubclass(kind, LRScheduler), "scheduler", "one of torch or a factor", kind.__name__)
    if issubclass(kind, ReduceLROnPlateau):  # steps with what it watches
        every = 1 if monitor.startswith("train/") else AT_VALIDATIONS
        return {"scheduler": scheduler(optimizer), "monitor": monitor, "frequency": every}
    if issubclass(kind, OneCycleLR):
        return {"scheduler": scheduler(optimizer, total_steps=trainer.estimated_stepping_batches), "interval": "step"}
    return {"scheduler": scheduler(optimizer)}

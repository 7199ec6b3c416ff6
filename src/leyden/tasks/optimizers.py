"""The config's optimizer and schedule for any LightningModule."""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from lightning import LightningModule, Trainer
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau

from leyden import UserError, require
from leyden.lightning_internals import AT_VALIDATIONS

OURS = {"fused": "auto", "scale_lr": False}  # in conf/optimizer, not in torch


def configure_optimizers(
    task: LightningModule, optimizer: partial, scheduler: partial | None = None, monitor: str = "val/loss"
) -> dict[str, Any]:
    """What a LightningModule's `configure_optimizers` returns, from the config's `${optimizer}` and `${scheduler}`.

    A scheduler is one of torch, or a factor (step, total) -> share of the rate; a plateau watches `monitor`.
    """
    for name, part in ("optimizer", optimizer), ("scheduler", optimizer if scheduler is None else scheduler):
        require(isinstance(part, partial), name, "a class or a function with `_partial_: true`", part)

    weights = dict.fromkeys(decayed(task))  # each once
    rest = dict.fromkeys(p for p, _ in learning(task) if p not in weights)
    groups = [{"params": list(weights)}, {"params": list(rest), "weight_decay": 0.0}]
    keywords, trainer = optimizer.keywords | vars(optimizer).get("ours", {}), task.trainer
    if keywords.get("fused") == "auto":
        clips = trainer.gradient_clip_val and trainer.precision.endswith("-mixed")  # Lightning allows one
        keywords["fused"] = not clips and task.device.type in ("cpu", "cuda")
    if keywords.pop("scale_lr", False) and trainer.estimated_stepping_batches:  # counts batches
        batches = min(trainer.accumulate_grad_batches, trainer.num_training_batches)
        keywords["lr"] *= trainer.world_size * batches  # arXiv:1706.02677

    try:
        made = optimizer.func([group for group in groups if group["params"]], **keywords)
        rate = {"lr_scheduler": schedule(made, scheduler, trainer, monitor)} if scheduler else {}
        return {"optimizer": made} | rate
    except (TypeError, ValueError, LookupError) as error:
        raise UserError(f"optimizer or scheduler cannot be built: {error}.") from error


def make_callable(task: LightningModule) -> None:
    """Let a task call the config's optimizer itself: torch sees of `OURS` what somebody changed."""
    for part in [*vars(task).values(), *task.hparams.values()]:
        if isinstance(part, partial) and "scale_lr" in part.keywords:
            same = [name for name in OURS if part.keywords.get(name) == OURS[name]]
            vars(part)["ours"] = {name: part.keywords.pop(name) for name in same}


class Frozen(nn.Module):
    """A part that does not learn, and stays as in an evaluation."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module.requires_grad_(False).eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def train(self, mode: bool = True) -> "Frozen":
        return super().train(False)


def learning(module: nn.Module) -> Iterator[tuple[nn.Parameter, bool]]:
    """Each parameter that is not frozen, and whether its weights decay."""
    if isinstance(module, Frozen):
        return
    for name, p in module.named_parameters(recurse=False):
        spared = isinstance(module, nn.Embedding) or re.search("bias|embed|position|token", name)
        yield p, p.ndim >= 2 and not spared
    for child in module.children():
        yield from learning(child)


def decayed(module: nn.Module) -> list[nn.Parameter]:
    return [p for p, decays in learning(module) if decays]


def schedule(optimizer: Optimizer, scheduler: partial, trainer: Trainer, monitor: str) -> dict[str, Any]:
    """For Lightning: a factor steps with the optimizer, one of torch with the epoch."""
    kind = scheduler.func
    if not isinstance(kind, type):
        total = trainer.estimated_stepping_batches
        factor = partial(kind, **scheduler.keywords)  # Hydra's own checks its target at each step
        return {"scheduler": LambdaLR(optimizer, lambda step: factor(step, total)), "interval": "step"}
    if issubclass(kind, ReduceLROnPlateau):  # steps with what it watches
        every = 1 if monitor.startswith("train/") else AT_VALIDATIONS
        return {"scheduler": scheduler(optimizer), "monitor": monitor, "frequency": every}
    if issubclass(kind, OneCycleLR):
        return {"scheduler": scheduler(optimizer, total_steps=trainer.estimated_stepping_batches), "interval": "step"}
    return {"scheduler": scheduler(optimizer)}

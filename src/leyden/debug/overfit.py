"""Says whether a model can learn one batch by heart."""

import logging
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.optim import Optimizer

log = logging.getLogger(__name__)
FEW = 20  # steps in which hardly a model learns a batch by heart


class Overfit(Callback):
    """Compares the first and the last loss; `share` of the first one is close enough to zero."""

    def __init__(self, share: float = 0.05):
        self.share = share
        self.first: float | None = None
        self.last: Tensor | None = None
        self.idle: list[str] = []  # parameters without a gradient in the last step

    def on_before_optimizer_step(self, trainer: Trainer, task: LightningModule, optimizer: Optimizer) -> None:
        self.idle = [name for name, p in task.named_parameters() if p.grad is None or not p.grad.any()]

    def on_before_backward(self, trainer: Trainer, task: LightningModule, loss: Tensor) -> None:
        self.last = loss.detach()
        if self.first is None:
            self.first = float(self.last)

    def on_train_end(self, trainer: Trainer, task: LightningModule) -> None:
        if self.first is None or self.last is None or not trainer.is_global_zero:
            return
        last, steps = float(self.last), trainer.global_step
        fell = f"the loss of one batch went from {self.first:.4g} to {last:.4g} in {steps} steps"
        if last <= self.share * self.first:
            log.info("overfit: passed, %s.", fell)
            return
        causes = [f"{steps} steps are few: leave trainer.max_epochs out"] if steps < FEW else []
        if self.idle:
            many = f"{self.idle[0]} (of {len(self.idle)} parameters)"
            causes.append(f"{many} has no gradient: frozen, detached, unused, or before ReLUs that give only zeros")
        if last > self.first / 2:
            causes += ["optimizer.lr is wrong by a factor of ten or more", "inputs and targets do not belong together"]
        else:
            causes += ["dropout, augmentation or weight decay keeps it up", "it needs more steps or a larger model"]
        log.warning("overfit: NOT passed, %s. The likeliest causes: %s.", fell, "; ".join(causes[:3]))

    def state_dict(self) -> dict[str, Any]:
        return {"first": self.first}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first = state["first"]

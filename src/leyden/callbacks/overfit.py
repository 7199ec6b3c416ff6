"""Says whether a model can learn one batch by heart."""

import logging
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.optim import Optimizer

log = logging.getLogger(__name__)
FEW = 20  # steps in which hardly a model learns a batch by heart


class Overfit(Callback):
    """Compares the first and the last loss; `share` of the first one is close enough to zero."""

    def __init__(self, share: float = 0.05):
        self.share = share
        self.first: float | None = None
        self.last: Tensor | None = None
        self.without: list[str] = []  # parameters that had no gradient in the last step, and those of which it was zero
        self.zeros: list[str] = []

    def on_before_optimizer_step(self, trainer: Trainer, task: LightningModule, optimizer: Optimizer) -> None:
        named = list(task.named_parameters())
        self.without = [name for name, p in named if not p.requires_grad or p.grad is None]
        self.zeros = [name for name, p in named if p.grad is not None and not p.grad.any()]

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
        else:
            found = [f"{steps} steps are few: leave trainer.max_epochs out"] if steps < FEW else []
            found += gradients(self.without, self.zeros) + usual(task, self.first, last)
            causes = "; ".join(f"{number}. {cause}" for number, cause in enumerate(found, 1))
            log.warning("overfit: NOT passed, %s. This usually means, the likeliest first: %s.", fell, causes)

    def state_dict(self) -> dict[str, Any]:
        return {"first": self.first}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first = state["first"]


def gradients(without: list[str], zeros: list[str]) -> list[str]:
    """What parameters that do not learn say."""
    causes = []
    if without:
        causes.append(
            f"{without[0]} gets no gradient ({len(without)} parameters do not): it is frozen, detached or not used"
        )
    if zeros:
        causes.append(
            f"the gradient of {zeros[0]} is zero ({len(zeros)} parameters): a ReLU behind it may give nothing but zeros"
        )
    return causes


def usual(task: LightningModule, first: float, last: float) -> list[str]:
    """What keeps a model from learning a batch, as far as this one may have it."""
    causes = []
    if last > 0.5 * first:
        causes.append("optimizer.lr is too small or too large by a factor of ten or more: try both")
        causes.append("inputs and targets do not belong together, or are mixed up in the step")
        causes.append("the loss does not fit the outputs, such as a softmax before a cross entropy")
    dropout = sum(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in task.modules())
    if dropout:
        causes.append(f"dropout in {dropout} layers keeps the loss up: try model.dropout=0 where the model has it")
    causes.append("augmentation, weight decay or another penalty keeps it up: try without")
    causes.append("it was on its way and needs more steps, trainer.max_epochs=1000, or the model is too small")
    return causes

"""Fine-tuning: the head alone first, then everything."""

from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import nn

from leyden import UserError


class Freeze(Callback):
    """Before `until_epoch`, counted from 0, only `task.model.head` trains; BatchNorm statistics stay, too."""

    def __init__(self, until_epoch: int):
        self.until_epoch = until_epoch

    def setup(self, trainer: Trainer, task: LightningModule, stage: str) -> None:
        self.body = nn.ModuleList(part for name, part in task.model.named_children() if name != "head")
        if len(self.body) == len(list(task.model.children())):
            raise UserError(f"callbacks=[freeze] needs a model with a head; {type(task.model).__name__} has none.")
        self.parameters = [p for p in self.body.parameters() if p.requires_grad]

    def on_train_start(self, trainer: Trainer, task: LightningModule) -> None:
        self.on_train_epoch_start(trainer, task)  # a resume in mid-epoch does not call it

    def on_train_epoch_start(self, trainer: Trainer, task: LightningModule) -> None:
        self.frozen = trainer.current_epoch < self.until_epoch
        for module in self.body.modules():
            if isinstance(module, nn.modules.batchnorm._NormBase):
                module.train(not self.frozen)
        if trainer.world_size == 1:  # saves their backward pass; DDP must know all parameters from the start
            for parameter in self.parameters:
                parameter.requires_grad_(not self.frozen)

    def on_before_optimizer_step(self, trainer: Trainer, task: LightningModule, *_: Any) -> None:
        if self.frozen:  # without a gradient an optimizer leaves a parameter alone, its weight decay too
            for parameter in self.parameters:
                parameter.grad = None

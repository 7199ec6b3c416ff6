"""A module as many templates write it: all arguments, objects among them, are hyper-parameters."""

from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F


class Habit(LightningModule):
    def __init__(self, net: nn.Module, optimizer: Any, scheduler: Any, width: int = 3):
        super().__init__()
        self.save_hyperparameters()
        self.net = net

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.net(x.float() / 255), y)

    def evaluate(self, batch: tuple[Tensor, Tensor], split: str) -> None:
        x, y = batch
        self.log(f"{split}/acc", (self.net(x.float() / 255).argmax(1) == y).float().mean(), on_epoch=True)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.evaluate(batch, "val")

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.evaluate(batch, "test")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())

"""A student that learns what the run of a teacher says, on data and with an optimizer of the config."""

from functools import partial
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F

import leyden
from leyden.tasks import configure_optimizers


class Distill(LightningModule):
    """`teacher`: a module, or the run that it comes from."""

    def __init__(self, student: nn.Module, teacher: nn.Module | str, optimizer: partial, scheduler: partial):
        super().__init__()
        self.student, self.teacher = student, leyden.load_model(teacher) if isinstance(teacher, str) else teacher
        self.parts = optimizer, scheduler

    @property
    def example_input(self) -> Tensor:
        return torch.linspace(0, 1, 128).view(2, 1, 8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.student(x.float())

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, _ = batch
        loss = F.cross_entropy(self(x), self.teacher(x).softmax(1))
        self.log("train/loss", loss, on_step=False, on_epoch=True)
        return loss

    def evaluate(self, batch: Any, split: str) -> None:
        x, y = batch
        logits = self(x)
        self.log(f"{split}/acc", (logits.argmax(1) == y).float().mean())
        self.log(f"{split}/like", (logits.argmax(1) == self.teacher(x).argmax(1)).float().mean())

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluate(batch, "test")

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        return {"class": self(batch[0]).argmax(1)}

    def configure_optimizers(self) -> Any:
        return configure_optimizers(self, *self.parts)

"""A task and data with two test loaders, as Lightning takes them."""

from typing import Any

import torch
from lightning import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def loader(first: int, count: int) -> DataLoader:
    return DataLoader(TensorDataset(torch.arange(first, first + count).float()[:, None]), batch_size=2)


class Two(LightningDataModule):
    """Numbers 0..5 to train on; the tests are 10..14 and 20..22."""

    def __init__(self, named: bool = False):
        super().__init__()
        self.named = named

    def train_dataloader(self) -> DataLoader:
        return loader(0, 6)

    def val_dataloader(self) -> DataLoader:
        return loader(0, 6)

    def test_dataloader(self) -> Any:
        loaders = [loader(10, 5), loader(20, 3)]
        return {"near": loaders[0], "far": loaders[1]} if self.named else loaders


class Doubled(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(2.0))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = (self.factor * batch[0] - 2 * batch[0]).square().mean()
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val/loss", (self.factor * batch[0] - 2 * batch[0]).square().mean())

    def test_step(self, batch: list[Tensor], batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("test/mean", batch[0].mean())

    def predict_step(self, batch: list[Tensor], batch_idx: int, dataloader_idx: int = 0) -> dict[str, Tensor]:
        return {"input": batch[0], "value": self.factor * batch[0], "pair": batch[0].expand(-1, 2)}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


class Unaware(Doubled):
    def predict_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:
        return {"value": batch[0]}

"""In the style of lightning-hydra-template: a net and partials of optimizer and scheduler are hyper-parameters."""

from itertools import pairwise
from typing import Any

import torch
from lightning import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, TensorDataset, random_split
from torchmetrics import MaxMetric, MeanMetric
from torchmetrics.classification import Accuracy


class DenseNet(nn.Module):
    def __init__(self, input_size: int = 8, sizes: list[int] | None = None, output_size: int = 3):
        super().__init__()
        widths = [input_size, *(sizes or [16]), output_size]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()]
        self.model = nn.Sequential(*layers[:-2])

    @classmethod
    def small(cls, **sizes: int) -> "DenseNet":
        return cls(sizes=[4], **sizes)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x.view(x.size(0), -1))


class LitModule(LightningModule):
    def __init__(self, net: nn.Module, optimizer: Any, scheduler: Any, compile: bool):
        super().__init__()
        self.save_hyperparameters(logger=False)
        self.net = net
        self.criterion = nn.CrossEntropyLoss()
        self.train_acc = Accuracy(task="multiclass", num_classes=3)
        self.val_acc = Accuracy(task="multiclass", num_classes=3)
        self.test_acc = Accuracy(task="multiclass", num_classes=3)
        self.train_loss, self.val_loss, self.test_loss = MeanMetric(), MeanMetric(), MeanMetric()
        self.val_acc_best = MaxMetric()

    @property
    def example_input(self) -> Tensor:
        return torch.linspace(-1, 1, 16).view(2, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def on_train_start(self) -> None:
        self.val_loss.reset()
        self.val_acc.reset()
        self.val_acc_best.reset()

    def model_step(self, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        x, y = batch
        logits = self.forward(x)
        return self.criterion(logits, y), torch.argmax(logits, dim=1), y

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss, preds, targets = self.model_step(batch)
        self.train_loss(loss)
        self.train_acc(preds, targets)
        self.log("train/loss", self.train_loss, on_step=False, on_epoch=True, prog_bar=True)
        self.log("train/acc", self.train_acc, on_step=False, on_epoch=True, prog_bar=True)
        return loss

    def on_train_epoch_end(self) -> None:
        pass

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        loss, preds, targets = self.model_step(batch)
        self.val_loss(loss)
        self.val_acc(preds, targets)
        self.log("val/loss", self.val_loss, on_step=False, on_epoch=True, prog_bar=True)
        self.log("val/acc", self.val_acc, on_step=False, on_epoch=True, prog_bar=True)

    def on_validation_epoch_end(self) -> None:
        self.val_acc_best(self.val_acc.compute())
        self.log("val/acc_best", self.val_acc_best.compute(), sync_dist=True, prog_bar=True)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        loss, preds, targets = self.model_step(batch)
        self.test_loss(loss)
        self.test_acc(preds, targets)
        self.log("test/loss", self.test_loss, on_step=False, on_epoch=True, prog_bar=True)
        self.log("test/acc", self.test_acc, on_step=False, on_epoch=True, prog_bar=True)

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        return {"class": self.forward(batch[0]).argmax(1)}

    def setup(self, stage: str) -> None:
        if self.hparams.compile and stage == "fit":
            self.net = torch.compile(self.net)

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = self.hparams.optimizer(params=self.trainer.model.parameters())
        if self.hparams.scheduler is not None:
            scheduler = self.hparams.scheduler(optimizer=optimizer)
            plateau = {"scheduler": scheduler, "monitor": "val/loss", "interval": "epoch", "frequency": 1}
            return {"optimizer": optimizer, "lr_scheduler": plateau}
        return {"optimizer": optimizer}


class DataModule(LightningDataModule):
    def __init__(
        self,
        data_dir: str = "data/",
        train_val_test_split: tuple[int, int, int] = (96, 32, 32),
        batch_size: int = 16,
        num_workers: int = 0,
        pin_memory: bool = False,
    ):
        super().__init__()
        self.save_hyperparameters(logger=False)
        self.data_train: Dataset | None = None
        self.data_val: Dataset | None = None
        self.data_test: Dataset | None = None
        self.batch_size_per_device = batch_size
        self.epochs_seen = 0

    @property
    def num_classes(self) -> int:
        return 3

    def points(self, train: bool) -> Dataset:
        draw = torch.Generator().manual_seed(int(train))
        x = torch.randn(120 if train else 40, 8, generator=draw)
        return TensorDataset(x, x[:, :3].argmax(1))

    def prepare_data(self) -> None:
        self.points(train=True)

    def setup(self, stage: str | None = None) -> None:
        if self.trainer is not None:
            if self.hparams.batch_size % self.trainer.world_size != 0:
                raise RuntimeError(f"Batch size ({self.hparams.batch_size}) is not divisible by the number of devices.")
            self.batch_size_per_device = self.hparams.batch_size // self.trainer.world_size
        if not self.data_train and not self.data_val and not self.data_test:
            dataset = ConcatDataset(datasets=[self.points(train=True), self.points(train=False)])
            parts = random_split(dataset=dataset, lengths=self.hparams.train_val_test_split)
            self.data_train, self.data_val, self.data_test = parts

    def loader(self, dataset: Dataset, shuffle: bool) -> DataLoader:
        return DataLoader(
            dataset=dataset,
            batch_size=self.batch_size_per_device,
            num_workers=self.hparams.num_workers,
            pin_memory=self.hparams.pin_memory,
            shuffle=shuffle,
        )

    def train_dataloader(self) -> DataLoader:
        self.epochs_seen += 1
        return self.loader(self.data_train, True)

    def val_dataloader(self) -> DataLoader:
        return self.loader(self.data_val, False)

    def test_dataloader(self) -> DataLoader:
        return self.loader(self.data_test, False)

    def teardown(self, stage: str | None = None) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"epochs_seen": self.epochs_seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epochs_seen = state_dict["epochs_seen"]

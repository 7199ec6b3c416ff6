"""In the style of nn-template: modules get nodes of the config and build from them."""

from typing import Any

import hydra
import torch
from lightning import LightningDataModule, LightningModule
from omegaconf import DictConfig, ListConfig
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from foreign.partials import DataModule


class Net(nn.Module):
    def __init__(self, cfg: DictConfig):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(cfg.inputs, cfg.hidden), nn.Tanh(), nn.Linear(cfg.hidden, cfg.classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class PLModule(LightningModule):
    def __init__(self, net: DictConfig, optimizer: DictConfig, names: ListConfig, *args: Any, **kwargs: Any):
        super().__init__()
        self.save_hyperparameters(logger=False, ignore=("metadata",))
        assert isinstance(net, DictConfig) and isinstance(names, ListConfig)
        self.names = list(names)
        self.net = hydra.utils.instantiate(self.hparams.net, _recursive_=False)

    @property
    def example_input(self) -> Tensor:
        return torch.linspace(-1, 1, 16).view(2, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def step(self, batch: Any, split: str) -> Tensor:
        x, y = batch
        logits = self(x)
        loss = nn.functional.cross_entropy(logits, y)
        self.log_dict({f"{split}/loss": loss, f"{split}/acc": (logits.argmax(1) == y).float().mean()}, on_epoch=True)
        return loss

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.step(batch, "train")

    def validation_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.step(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.step(batch, "test")

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"name": [self.names[k] for k in self(batch[0]).argmax(1).tolist()]}

    def configure_optimizers(self) -> Any:
        opt = hydra.utils.instantiate(self.hparams.optimizer, params=self.parameters(), _convert_="partial")
        if "lr_scheduler" not in self.hparams:
            return [opt]
        return [opt], [hydra.utils.instantiate(self.hparams.lr_scheduler, optimizer=opt)]


class PLDataModule(LightningDataModule):
    def __init__(self, datasets: DictConfig, batch_size: DictConfig, num_workers: DictConfig):
        super().__init__()
        self.datasets, self.batch_size, self.num_workers = datasets, batch_size, num_workers
        self.sets: dict[str, Dataset] = {}

    def setup(self, stage: str | None = None) -> None:
        self.sets = {name: hydra.utils.instantiate(node) for name, node in self.datasets.items()}

    def loader(self, split: str, shuffle: bool = False) -> DataLoader:
        return DataLoader(
            self.sets[split], shuffle=shuffle, batch_size=self.batch_size[split], num_workers=self.num_workers[split]
        )

    def train_dataloader(self) -> DataLoader:
        return self.loader("train", True)

    def val_dataloader(self) -> list[DataLoader]:
        return [self.loader("val")]

    def test_dataloader(self) -> DataLoader:
        return self.loader("test")


def points(train: bool) -> Dataset:
    return DataModule().points(train)

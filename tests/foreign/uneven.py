"""A task that logs what its rank has seen, without a thought of other ranks, and data that ranks cannot halve."""

import json
from pathlib import Path
from typing import Any

import torch
from lightning import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

EVEN, ODD = (1.0, 4.0, 2.0, 2.0, 2.0, 2.0), (6.0, 2.0, 3.0, 3.0, 3.0, 3.0)  # scores: ranks have other best epochs


def numbers(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(float(count))[:, None])


class Numbers(LightningDataModule):
    """Of two ranks one has the even numbers, the other the odd ones."""

    def __init__(self, batch_size: int = 20):
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader:
        return DataLoader(numbers(40), self.batch_size)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(numbers(101), 10)

    def test_dataloader(self) -> list[DataLoader]:
        return [DataLoader(numbers(101), 10), DataLoader(numbers(7), 2, shuffle=True)]


class Averages(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.norm = nn.Linear(1, 1), nn.BatchNorm1d(1, affine=False)
        self.metric, self.listed = MeanMetric(), [MeanMetric()]
        self.trained: list[Tensor] = []
        self.seen: list[Tensor] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        (x,) = batch
        self.norm(x)  # has buffers, which DDP sends around
        self.trained.append(x.mean())
        self.log("train/mean", x.mean(), on_step=False, on_epoch=True)
        self.log("train/both", x.mean(), on_step=True, on_epoch=True)
        self.log("train/sum", x.sum(), on_step=False, on_epoch=True, reduce_fx="sum")
        self.log("train/last", x.mean())
        return (self.net(x / 40) - 1).square().mean()

    def on_train_epoch_end(self) -> None:
        self.log("train/at_end", torch.stack(self.trained).mean())
        self.trained.clear()

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        (x,) = batch
        epoch, odd = self.trainer.current_epoch, x[x % 2 == 1]
        self.seen.append(self.norm(x) * 0 + x)
        self.listed[0].update(x)
        self.metric.update(x)
        self.log("val/metric", self.metric)
        self.log("val/mean", x.mean())
        self.log("val/synced", x.mean(), sync_dist=True)
        self.log("val/both", x.mean(), on_step=True, on_epoch=True, sync_dist=True)
        self.log("val/square", x.square().mean())
        for name in ("sum", "max", "min"):
            self.log(f"val/{name}", getattr(x, name)(), reduce_fx=name)
        self.log("val/score", torch.where(x % 2 == 1, ODD[epoch], EVEN[epoch]).mean())
        if len(odd):
            self.log("val/odd", odd.mean(), batch_size=len(odd))

    def on_validation_epoch_end(self) -> None:
        self.log("val/at_end", torch.cat(self.seen).square().mean())
        self.log("val/listed", self.listed[0].compute())
        self.log("val/rank", float(self.global_rank), rank_zero_only=True)
        if self.trainer.is_global_zero and not self.trainer.sanity_checking:
            assert self.trainer.callback_metrics["val/mean"] == 50
        self.listed[0].reset()
        self.seen.clear()

    def test_step(self, batch: list[Tensor], batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("test/mean", batch[0].mean())
        self.log("test/sum", batch[0].sum(), reduce_fx="sum")

    def on_train_end(self) -> None:
        """What this rank has at the end."""
        seen: dict[str, Any] = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
        seen |= {"lr": self.trainer.optimizers[0].param_groups[0]["lr"], "epochs": self.current_epoch}
        seen |= {name: value.item() for name, value in self.net.named_parameters()}
        folder, checkpoint = Path(self.trainer.default_root_dir), self.trainer.checkpoint_callback
        assert Path(checkpoint.best_model_path).parent == folder / "user" and checkpoint.monitor == "val/score"
        (folder / f"seen{self.global_rank}.json").write_text(json.dumps(seen), "utf-8")

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.SGD(self.parameters(), 0.5)
        schedule = ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": schedule, "monitor": "val/score"}

"""Masks: a class for each pixel, judged by intersection over union."""

import torch
from lightning import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import Metric


def shapes(count: int, seed: int, side: int = 16) -> TensorDataset:
    """Noisy pictures B x 3 x H x W of a disc and a square, and their masks B x H x W: 0 ground, 1 disc, 2 square."""
    draw, places = torch.Generator().manual_seed(seed), torch.arange(side)
    y, x, v, u = (places - torch.randint(3, side - 3, (4, count, 1), generator=draw)).abs()
    masks = (y[:, :, None] ** 2 + x[:, None] ** 2 <= 9).long()
    masks[(v[:, :, None] <= 2) & (u[:, None] <= 2)] = 2
    colors = torch.tensor([[0.1, 0.1, 0.1], [0.8, 0.3, 0.2], [0.2, 0.3, 0.8]])[masks].permute(0, 3, 1, 2)
    return TensorDataset(colors + 0.2 * torch.randn(colors.shape, generator=draw), masks)


class Shapes(LightningDataModule):
    def __init__(self, batch_size: int = 16):
        super().__init__()
        self.batch_size = batch_size
        self.facts = {"shape": [3, 16, 16], "outputs": 3}

    def setup(self, stage: str) -> None:
        self.splits = [shapes(count, seed) for seed, count in enumerate((128, 40, 41))]

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.splits[0], self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.splits[1], self.batch_size)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(self.splits[2], self.batch_size)


class IoU(Metric):
    """The mean over the classes of intersection over union, over all pixels of the split."""

    def __init__(self, num_classes: int):
        super().__init__()
        self.num_classes = num_classes
        for name in ("both", "either"):
            self.add_state(name, torch.zeros(num_classes), dist_reduce_fx="sum")

    def update(self, preds: Tensor, masks: Tensor) -> None:
        preds, masks = (F.one_hot(which, self.num_classes).flatten(0, 2).bool() for which in (preds, masks))
        self.both += (preds & masks).sum(0)
        self.either += (preds | masks).sum(0)

    def compute(self) -> Tensor:
        return (self.both / self.either.clamp(min=1)).mean()


class Segmentation(LightningModule):
    """A class for each pixel: B x C x H x W -> B x num_classes x H x W."""

    def __init__(self, num_classes: int, width: int = 16, lr: float = 1e-2):
        super().__init__()
        first, last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, num_classes, 3, padding=1)
        self.net = nn.Sequential(first, nn.ReLU(), last)
        self.val_iou, self.test_iou, self.lr = IoU(num_classes), IoU(num_classes), lr

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:
        masks = self.net(batch[0]).argmax(1)
        return {"mask": masks.byte(), "ground": (masks == 0).float().mean((1, 2))}

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        images, masks = batch
        loss = F.cross_entropy(self.net(images), masks)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.val_iou.update(self.net(batch[0]).argmax(1), batch[1])
        self.log("val/iou", self.val_iou)

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.test_iou.update(self.net(batch[0]).argmax(1), batch[1])
        self.log("test/iou", self.test_iou)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), self.lr)

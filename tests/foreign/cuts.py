"""Data that is cut at random without a generator of its own, in each of the ways that other templates do it."""

import json
import os
import random
from pathlib import Path

import numpy as np
import torch
from lightning import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split

SIZES = (70, 20, 30)


class Cut(LightningDataModule):
    """Guarded: the splits are drawn once in a process. Each split that is loaded is noted in `notes`."""

    def __init__(self, notes: str, batch_size: int = 10):
        super().__init__()
        self.notes, self.batch_size = Path(notes), batch_size
        self.parts: list[Subset] | None = None
        self.data = TensorDataset(torch.linspace(-1, 1, sum(SIZES))[:, None])

    def cut(self) -> list[Subset]:
        return random_split(self.data, SIZES)

    def setup(self, stage: str) -> None:
        if not self.parts:
            self.parts = self.cut()

    def loader(self, place: int) -> DataLoader:
        note = {"split": ("train", "val", "test")[place], "indices": sorted(map(int, self.parts[place].indices))}
        with open(self.notes, "a", encoding="utf-8") as file:
            file.write(json.dumps(note | {"rank": os.environ.get("RANK", "0")}) + "\n")
        return DataLoader(self.parts[place], self.batch_size, shuffle=place == 0)

    def train_dataloader(self) -> DataLoader:
        return self.loader(0)

    def val_dataloader(self) -> DataLoader:
        return self.loader(1)

    def test_dataloader(self) -> DataLoader:
        return self.loader(2)


class Unguarded(Cut):
    def setup(self, stage: str) -> None:
        self.parts = self.cut()


class Permuted(Unguarded):
    def cut(self) -> list[Subset]:
        return parts(self.data, np.random.permutation(len(self.data)))


class Shuffled(Cut):
    def cut(self) -> list[Subset]:
        order = list(range(len(self.data)))
        random.shuffle(order)
        return parts(self.data, order)


class Early(Cut):
    """Cuts when it is made."""

    def __init__(self, notes: str, batch_size: int = 10):
        super().__init__(notes, batch_size)
        self.parts = self.cut()


class Late(Cut):
    """Cuts when a loader is asked for."""

    def setup(self, stage: str) -> None:
        pass

    def loader(self, place: int) -> DataLoader:
        self.parts = self.cut()
        return super().loader(place)


class Prepared(Cut):
    """Cuts in `prepare_data`, into a file."""

    def prepare_data(self) -> None:
        order = np.random.permutation(len(self.data)).tolist()
        self.notes.with_suffix(".order").write_text(json.dumps(order), encoding="utf-8")

    def cut(self) -> list[Subset]:
        return parts(self.data, json.loads(self.notes.with_suffix(".order").read_text(encoding="utf-8")))


def parts(data: Dataset, order: list[int] | np.ndarray) -> list[Subset]:
    first, second = SIZES[0], SIZES[0] + SIZES[1]
    return [Subset(data, order[:first]), Subset(data, order[first:second]), Subset(data, order[second:])]


class Line(LightningModule):
    """A line through the points."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(1, 1)

    def loss(self, batch: list[Tensor], split: str) -> Tensor:
        loss = (self.net(batch[0]) - 2 * batch[0]).square().mean()
        self.log(f"{split}/loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.loss(batch, "train")

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.loss(batch, "val")

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.loss(batch, "test")

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:
        return {"x": batch[0][:, 0], "y": self.net(batch[0])[:, 0]}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)

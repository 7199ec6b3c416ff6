"""Dict batches from an HDF5 file that each loader process opens for itself."""

from pathlib import Path

import h5py
import numpy as np
import torch
from lightning import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassAccuracy

SIZES = {"train": 192, "val": 50, "test": 49}
STEPS = 32


class Waves(Dataset):
    """{"wave": T, "phase": (), "label": ()} of a split; a handle must not cross a fork, so the first use opens it."""

    def __init__(self, path: Path, split: str):
        self.path, self.split, self.group = path, split, None

    def __len__(self) -> int:
        return SIZES[self.split]

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if self.group is None:
            self.group = h5py.File(self.path)[self.split]
        return {name: torch.as_tensor(values[index]) for name, values in self.group.items()}


class WavesData(LightningDataModule):
    facts = {"classes": ["sine", "square", "arch"]}

    def __init__(self, path: str, batch_size: int = 32, num_workers: int = 2):
        super().__init__()
        self.path, self.batch_size, self.num_workers = Path(path), batch_size, num_workers

    def prepare_data(self) -> None:
        if self.path.exists():
            return
        draw, time = np.random.default_rng(0), np.linspace(0, 3, STEPS)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(self.path, "w") as file:
            for split, size in SIZES.items():
                label, phase = draw.integers(3, size=size), draw.random(size)
                sine = np.sin(2 * np.pi * (time + phase[:, None]))
                wave = np.choose(label[:, None], [sine, np.sign(sine), np.abs(sine)])
                columns = {"wave": wave.astype("float32"), "phase": phase.astype("float32"), "label": label}
                file.create_group(split).update(columns)

    def loader(self, split: str) -> DataLoader:
        shuffle = split == "train"
        return DataLoader(Waves(self.path, split), self.batch_size, shuffle=shuffle, num_workers=self.num_workers)

    def train_dataloader(self) -> DataLoader:
        return self.loader("train")

    def val_dataloader(self) -> DataLoader:
        return self.loader("val")

    def test_dataloader(self) -> DataLoader:
        return self.loader("test")


class WaveForm(LightningModule):
    """Which form a wave has, from its values and its phase."""

    def __init__(self, classes: list[str], lr: float = 1e-2):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(STEPS + 1, 64), nn.ReLU(), nn.Linear(64, len(classes)))
        self.accuracy, self.lr = MulticlassAccuracy(len(classes), average="micro"), lr

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.net(torch.cat([batch["wave"], batch["phase"][:, None]], 1))

    @property
    def example_input(self) -> dict[str, Tensor]:
        return {"wave": torch.linspace(-1, 1, 2 * STEPS).view(2, STEPS), "phase": torch.tensor([0.0, 0.5])}

    def predict_step(self, batch: dict[str, Tensor], batch_idx: int) -> dict[str, Tensor]:
        probs = self(batch).softmax(1)
        return {"form": probs.argmax(1), "prob": probs.amax(1)}

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch), batch["label"])

    def evaluate(self, batch: dict[str, Tensor], split: str) -> None:
        self.accuracy(self(batch), batch["label"])
        self.log(f"{split}/accuracy", self.accuracy)

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self.evaluate(batch, "val")

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self.evaluate(batch, "test")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), self.lr)

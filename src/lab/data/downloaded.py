"""MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100, as torchvision reads them."""

import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision import datasets

from leyden import UserError, said
from leyden.data.datamodule import DataModule
from leyden.files import lock

log = logging.getLogger(__name__)


class MNIST(DataModule):
    """Handwritten digits of 1 x 28 x 28, 60,000 for training and 10,000 for test (LeCun et al. 1998)."""

    reader: type[datasets.VisionDataset] = datasets.MNIST

    def __init__(self, data_dir: str | Path, **loader: Any):
        super().__init__(**loader)
        self.data_dir = Path(data_dir)

    def read(self, split: str) -> tuple[Tensor, Tensor] | None:
        if split == "val":
            return None
        source = self.source(train=split == "train")
        x, self.classes = torch.as_tensor(source.data), list(source.classes)
        x = x.unsqueeze(1) if x.dim() == 3 else x.permute(0, 3, 1, 2).contiguous()
        return x, torch.as_tensor(source.targets)

    def source(self, train: bool) -> datasets.VisionDataset:
        """The reader of a split; one process downloads, others wait. UserError where files are missing or damaged."""
        try:
            return self.reader(self.data_dir, train)
        except Exception:  # not there, damaged, or being unpacked
            log.info("%s is not complete in %s; downloading it.", self.title, self.data_dir)

        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            with lock(self.data_dir / f".{self.title}.lock"):
                return self.reader(self.data_dir, train, download=True)
        except Exception as error:
            what = f"{self.title} is missing or damaged in {self.data_dir} and cannot be downloaded"
            raise UserError(f"{what} ({said(error)}); put {self.files()}.") from error

    def files(self) -> str:
        """What to put where without a network."""
        names = ", ".join(name for name, _ in self.reader.resources)
        folder = self.data_dir / self.reader.__name__ / "raw"  # whose files torchvision never replaces
        return f"{names} from {self.reader.mirrors[0]} into the empty folder {folder}"


class FashionMNIST(MNIST):
    """Pictures of clothes, as many as digits in MNIST (Xiao et al. 2017, arXiv:1708.07747)."""

    reader = datasets.FashionMNIST


class CIFAR10(MNIST):
    """Photographs of 3 x 32 x 32 in ten classes, 50,000 for training and 10,000 for test (Krizhevsky 2009)."""

    reader = datasets.CIFAR10

    def files(self) -> str:
        return f"{self.reader.filename} from {self.reader.url} into {self.data_dir}"


class CIFAR100(CIFAR10):
    """The same in a hundred classes: the fine labels."""

    reader = datasets.CIFAR100
